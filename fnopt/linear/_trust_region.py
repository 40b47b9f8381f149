"""The damping at which the step just fits a trust region."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.linear._damped import damped_solution, divide
from fnopt.linear._norms import norm
from fnopt.linear._singular import SingularFactors

_SLACK = 0.1  # a step within 10 % of the radius is near enough (Moré 1978)
_ITERATIONS = 30  # two or three are usual; each costs O(k)


def trust_region_solution(
    factors: SingularFactors, radius: jax.Array
) -> tuple[jax.Array, jax.Array]:
    r"""Solves :math:`\min_p \tfrac12\|A p + r\|^2` subject to :math:`\|p\| \le \Delta`.

    If the Gauss-Newton step fits, it is taken and the damping is 0. Else the damping is the root
    of the secular equation

    .. math:: \phi(\lambda) = \|z(\lambda)\| - \Delta = 0, \qquad
        z(\lambda) = \frac{s\, b}{s^2 + \lambda},

    which falls with :math:`\lambda`. Hebden's iteration is Newton's for
    :math:`1/\|z\| - 1/\Delta`, which is nearly linear:

    .. math:: \lambda \leftarrow \lambda
        - \frac{\|z\|}{\Delta} \frac{\phi}{\phi'}, \qquad
        \phi' = -\frac{1}{\|z\|} \sum_i \frac{z_i^2}{s_i^2 + \lambda}.

    That function rises and is concave. So from the left, where the step is too long, the iteration
    rises to the root and never beyond it, and needs no bracket; it starts at 0, even if rounding
    hides some directions. They are where problems that are singular at their solution make their
    progress, and the radius bounds what rounding can do to them.

    Args:
        factors: The factors of `A` and `r`.
        radius: The trust radius, a scalar > 0.

    Returns:
        The damping `lam >= 0` and the coefficients `z` in the singular basis, `[k]`; the step is
        `-Vt.T @ z`. The number of iterations is bounded, so this always ends.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import norm, singular_factors, trust_region_solution
        >>> factors = singular_factors(jnp.eye(2), jnp.asarray([3.0, 4.0]))
        >>> lam, z = trust_region_solution(factors, jnp.float32(1))
        >>> print(round(float(norm(z)), 1))
        1.0

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 5.
    """
    lam = _secular_root(factors, radius)
    return lam, damped_solution(factors, lam)


def _secular_root(factors: SingularFactors, radius: jax.Array) -> jax.Array:
    slack = jnp.asarray(1 + _SLACK, radius.dtype) * radius

    def iterate(at: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        lam, _, count = at
        z = damped_solution(factors, lam)
        length = norm(z)
        near = length <= slack
        # -phi' / length, by way of z / length, whose squares don't overflow
        fall = jnp.sum(divide(jnp.square(z / length), jnp.square(factors.s) + lam))
        return jnp.where(near, lam, lam + (length / radius - 1) / fall), near, count + 1

    def unfinished(at: tuple[jax.Array, ...]) -> jax.Array:
        _, near, count = at
        return ~near & (count < _ITERATIONS)

    init = (jnp.zeros_like(radius), jnp.zeros((), bool), jnp.zeros((), jnp.int32))
    return lax.while_loop(unfinished, iterate, init)[0]
