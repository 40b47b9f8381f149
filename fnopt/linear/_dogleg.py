"""The dogleg path through a linear model."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear._krylov_system import to_boundary
from fnopt.linear._norms import divide, norm
from fnopt.linear._system import DampedStep, System


def dogleg_step(system: System, g: jax.Array, radius: jax.Array) -> DampedStep:
    r"""The farthest point within a trust region on the path by the Cauchy step to the full one.

    .. math:: p_C = -\frac{\|g\|^2}{\|A g\|^2}\, g, \qquad
        p(t) = \begin{cases} t\, p_C & t \le 1 \\
        p_C + (t - 1)(p_N - p_C) & t > 1 \end{cases}

    Along it the length grows and the model falls, so the farthest point is the best one.

    Args:
        system: The linear model.
        g: :math:`A^T r`, of shape `[n]`.
        radius: The trust radius, a scalar > 0.

    Returns:
        The step. Its damping is 0 where the full step fits, else only a sign that it doesn't.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import TallGramSystem, dogleg_step
        >>> G, g = jnp.diag(jnp.asarray([1.0, 4.0])), jnp.asarray([1.0, 4.0])
        >>> system = TallGramSystem(G, g, jnp.float32(0))
        >>> print(dogleg_step(system, g, jnp.float32(9)).p.round(4))
        [-1. -1.]
    """
    full = system.gauss_newton()
    length = norm(full.p)
    square = jnp.sum(jnp.square(g))
    cauchy = -divide(square, system.model_norm(g)) * g
    leg = full.p - cauchy
    inside = norm(cauchy) < radius
    t = jnp.minimum(to_boundary(cauchy, leg, radius), jnp.ones_like(radius))
    far = jnp.where(norm(cauchy) > 0, radius / norm(cauchy), jnp.zeros_like(radius))
    bent = jnp.where(inside, cauchy + t * leg, far * cauchy)
    fits = length <= radius
    p = jnp.where(fits, full.p, bent)
    model_norm = jnp.where(fits, full.model_norm, system.model_norm(p))
    predicted = jnp.where(
        fits, full.predicted, -matmul(g, p) - jnp.asarray(0.5, p.dtype) * model_norm
    )
    lam = jnp.where(fits, full.lam, jnp.maximum(divide(norm(g), radius), jnp.finfo(p.dtype).tiny))
    return DampedStep(p, lam, model_norm, predicted)
