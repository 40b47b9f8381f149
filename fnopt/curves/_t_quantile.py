"""Quantiles of Student's t distribution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import betainc, erfinv

from fnopt.numerics import default_float

# Degrees of freedom from which on the quantile z of the normal distribution is used. t exceeds z by
# a relative (z^2 + 1) / (4 nu), or 1e-6 for z = 2 (Abramowitz and Stegun 1964, eq. 26.7.5). The
# error of the incomplete beta function grows: the relative error of t is 3e-7 at 1e9, 4e-4 at 1e12.
_NEARLY_NORMAL = 1e6


def t_quantile(level: float | jax.Array, dof: float | jax.Array) -> jax.Array:
    r"""Compute the two-sided quantile of Student's t distribution.

    .. math:: P(|T| < t) = I_{t^2 / (\nu + t^2)}\!\left( \tfrac12, \tfrac{\nu}{2} \right) = p

    The equation is solved for :math:`\ln t` by bisection.

    Args:
        level: The probability `p`, between 0 and 1.
        dof: The degrees of freedom :math:`\nu`; infinite for the normal distribution.

    Returns:
        The quantile `t`, a scalar; infinite without degrees of freedom.

    Example:
        >>> from fnopt.curves import t_quantile
        >>> print(f"{t_quantile(0.95, 10):.3f} {t_quantile(0.95, jnp.inf):.3f}")
        2.228 1.960
    """
    dtype = default_float()
    p, nu = jnp.asarray(level, dtype), jnp.asarray(dof, dtype)
    normal = jnp.sqrt(jnp.asarray(2, dtype)) * erfinv(p)
    # A substitute keeps the bisection finite if another branch is selected below.
    safe_nu = jnp.where((nu > 0) & (nu < _NEARLY_NORMAL), nu, jnp.ones_like(nu))

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) / 2
        square = jnp.exp(2 * middle)
        # The tail probability P(|T| > t) is accurate for large t, where P(|T| < t) rounds to 1.
        tail = betainc(safe_nu / 2, jnp.asarray(0.5, dtype), safe_nu / (safe_nu + square))
        return jnp.where(tail > 1 - p, middle, low), jnp.where(tail > 1 - p, high, middle)

    # t is between exp(-15) = 3e-7 and exp(40) = 2e17; 64 halvings are exact in float64 too.
    ends = (jnp.full_like(p * safe_nu, -15), jnp.full_like(p * safe_nu, 40))
    low, high = lax.fori_loop(0, 64, halve, ends)
    student = jnp.exp((low + high) / 2)
    t = jnp.where(nu < _NEARLY_NORMAL, student, normal)
    return jnp.where(nu > 0, t, jnp.asarray(jnp.inf, dtype))
