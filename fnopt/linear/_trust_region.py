"""The damping at which the step just fits a trust region."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.linear._damped import damped_solution, divide, gauss_newton_solution
from fnopt.linear._norms import norm
from fnopt.linear._singular import SingularFactors, determined

_SLACK = 0.1  # a step within 10 % of the radius is near enough (Moré 1978)
_ITERATIONS = 10  # Newton needs two or three; each costs O(k)


def trust_region_solution(
    factors: SingularFactors, radius: jax.Array, m: int
) -> tuple[jax.Array, jax.Array]:
    r"""Solves :math:`\min_p \tfrac12\|A p + r\|^2` subject to :math:`\|p\| \le \Delta`.

    If the Gauss-Newton step fits, it is taken and the damping is 0. Else the damping is the root
    of the secular equation

    .. math:: \phi(\lambda) = \|z(\lambda)\| - \Delta = 0, \qquad
        z(\lambda) = \frac{s\, b}{s^2 + \lambda},

    which is convex and falls with :math:`\lambda`. Hebden's iteration is Newton's for
    :math:`1/\Delta - 1/\|z\|`, which is nearly linear:

    .. math:: \lambda \leftarrow \lambda
        - \frac{\phi + \Delta}{\Delta} \frac{\phi}{\phi'}, \qquad
        \phi' = -\frac{1}{\|z\|} \sum_i \frac{z_i^2}{s_i^2 + \lambda}.

    It is kept inside a bracket: :math:`\|z(\lambda)\| \le \|s b\| / \lambda` bounds the root from
    above, and a Newton step for :math:`\phi` itself, which is convex, from below.

    Args:
        factors: The factors of `A` and `r`.
        radius: The trust radius, a scalar > 0.
        m: The number of rows of `A`.

    Returns:
        The damping `lam >= 0` and the coefficients `z` in the singular basis, `[k]`; the step is
        `-Vt.T @ z`. The number of iterations is fixed, so this always ends.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import norm, singular_factors, trust_region_solution
        >>> factors = singular_factors(jnp.eye(2), jnp.asarray([3.0, 4.0]))
        >>> lam, z = trust_region_solution(factors, jnp.float32(1), 2)
        >>> print(round(float(norm(z)), 1))
        1.0

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 5.
    """
    full = gauss_newton_solution(factors, m)
    slack = jnp.asarray(1 + _SLACK, radius.dtype)
    # Directions below rounding noise have no full step, but a damped one may still help.
    fits = jnp.all(determined(factors, m)) & (norm(full) <= slack * radius)
    lam = _secular_root(factors, radius)
    return (
        jnp.where(fits, jnp.zeros_like(lam), lam),
        jnp.where(fits, full, damped_solution(factors, lam)),
    )


def _secular_root(factors: SingularFactors, radius: jax.Array) -> jax.Array:
    dtype = radius.dtype
    highest = norm(factors.s * factors.b) / radius
    start = highest * jnp.asarray(1e-3, dtype)

    def iterate(_: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        lam, low, high = carry
        return _hebden(factors, radius, lam, low, high)

    init = (start, jnp.zeros((), dtype), highest)
    lam, low, high = lax.fori_loop(0, _ITERATIONS, iterate, init)
    return jnp.clip(lam, low, high)


def _hebden(
    factors: SingularFactors, radius: jax.Array, lam: jax.Array, low: jax.Array, high: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One safeguarded iteration; returns the next damping and bracket."""
    dtype = radius.dtype
    inside = (lam > low) & (lam < high)
    lam = jnp.where(inside, lam, jnp.maximum(jnp.asarray(1e-3, dtype) * high, jnp.sqrt(low * high)))
    z = damped_solution(factors, lam)
    length = norm(z)
    phi = length - radius
    # phi' * length, of one sign: divide() gives 0 where it vanishes
    slope = jnp.sum(divide(jnp.square(z), jnp.square(factors.s) + lam))
    newton = divide(phi * length, slope)  # = -phi / phi'
    high = jnp.where(phi < 0, jnp.minimum(high, lam), high)
    low = jnp.maximum(low, lam + newton)
    done = jnp.abs(phi) < jnp.asarray(_SLACK, dtype) * radius
    return jnp.where(done, lam, lam + newton * length / radius), low, high
