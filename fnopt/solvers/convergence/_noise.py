"""Rounding at a point: what changes it explains, and what residuals show in spite of it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import norm
from fnopt.solvers.convergence._options import Options
from fnopt.solvers.model._linearization import Linearization

_IDLE = 10  # steps in a row that are accepted and gain no more than rounding
_DONE = 2  # of them, where rounding is all that is left of the residuals
_LEANING = 1e-5  # of the residuals' length, that the linear model would take off them
_ABOVE = 3.0  # times the rounding of the residuals, that this has to be
_ROUNDED = 32.0  # rounding units, of a column that depends on others
_STEADIER = 0.8  # times what it was


class Noise(NamedTuple):
    """The rounding errors at a point."""

    residual: jax.Array  # rho, of the residual's length
    cost: jax.Array
    change: jax.Array  # of the cost, from one point to another


def rounding(point: Linearization, options: Options) -> Noise:
    r"""Changes of the residuals and of the cost that rounding explains.

    .. math:: \rho = \epsilon\, \max(1, n / m)\, \| (\|J_j\| x_j)_j \|, \qquad
        \delta f = \max(4 \epsilon f, 2 \rho^2), \qquad
        \Delta f = \delta f + \rho\, \|r\| / \sqrt m

    The residuals are known to about :math:`\rho`, the rounding of what they are differences of.
    With more params than residuals each is a sum of many, whose partial sums are rounded, too.
    Where that is all that is left of them, no step is better than another. Between two points each
    residual is rounded anew, so their product with the residuals adds up as of random signs.
    """
    m = max(point.r.size, 1)
    rho = options.eps * max(1.0, point.x.size / m) * norm(point.columns * point.x)
    cost = jnp.maximum(options.noise * point.cost, 2 * jnp.square(rho))
    rows = jnp.asarray(m**0.5, rho.dtype)
    return Noise(rho, cost, cost + rho * jnp.sqrt(2 * point.cost) / rows)


def is_idle(idle: jax.Array, point: Linearization, noise: jax.Array) -> jax.Array:
    """Whether too many steps in a row were accepted that gain no more than rounding."""
    return idle > jnp.where(point.cost <= noise, _DONE, _IDLE)


def leans(point: Linearization, noise: Noise) -> jax.Array:
    r"""Whether the residuals still lean on the columns, where their cost can't show it.

    .. math:: \|P r\| > \max(10^{-5} \|r\|, 3 \rho)

    with the projection `P` on the range of the Jacobian, if it has full rank. What could be gained
    is the square of it: 1e-10 of the cost, which float32 rounds to 1e-7 already, while params that
    the data hardly determine are off in their third digit.
    """
    full = is_full(point)
    assert point.triangle is not None
    least = jnp.asarray(_LEANING, point.cost.dtype) * jnp.sqrt(2 * point.cost)
    least = jnp.maximum(least, jnp.asarray(_ABOVE, least.dtype) * noise.residual)
    return full & (norm(point.triangle.c) > least)


def is_full(point: Linearization) -> jax.Array:
    """Whether no column depends on those before it, beyond rounding."""
    assert point.triangle is not None
    pivots = jnp.abs(jnp.diagonal(point.triangle.L))
    noise_of_columns = _ROUNDED * float(jnp.finfo(pivots.dtype).eps)
    return jnp.all(pivots > jnp.asarray(noise_of_columns, pivots.dtype) * point.columns)


def is_steadier(after: Linearization, before: Linearization) -> jax.Array:
    """Whether the residuals clearly lean less on the columns at one point than at another."""
    assert after.triangle is not None
    assert before.triangle is not None
    factor = jnp.asarray(_STEADIER, after.cost.dtype)
    return norm(after.triangle.c) <= factor * norm(before.triangle.c)
