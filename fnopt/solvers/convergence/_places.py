"""Params that never had an effect: whether they have one elsewhere.

Where an exponential underflows at the start, or a peak lies far from all data, its columns are
zero: the other params reach a minimum, and nothing there tells that from data which don't depend
on these params at all. So they are tried at other magnitudes and with the other sign (that of a
hinge), one by one and several at once, before a claim stands. A param that is zero has its say only
beside others: the height of a peak that is far off. An exponential that all but underflows is the
same: its column has digits, whose steps lead nowhere.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.solvers.convergence._noise import Noise
from fnopt.solvers.model._linearization import Linearization

_SIZES = (2**-5, 2**5, 2**-10, 2**10)
_FACTORS = (*_SIZES, 2**-20, 2**20, -1)  # by which one is moved
_ALONE = 4  # params that are moved alone
_LEVELS = (1, 2**5, 2**-5)  # by which several are moved at once
_TURN = 7  # rows between the orders of threes
_COLUMNS = 16  # params that are moved independently of each other
_EFFECT = 1e-4  # of the cost, by which a place is another, or better
_FEW = 64  # params; of more those without a column are enough
_NOTHING = 2  # power of the rounding unit: of the residuals, what a whole param moves them by


def without_effect(point: Linearization, peak: jax.Array, start: jax.Array) -> jax.Array:
    r"""Which params never had an effect, as a mask of `[n]`.

    .. math:: d_j = 0 \quad\text{or}\quad d_j\, |x_j| \le \epsilon^2 \|r\|, \quad
        |x_j - x_{0,j}| \le \tfrac12 |x_{0,j}|

    Args:
        point: The point.
        peak: The largest norms of the Jacobian's columns that were seen, of shape `[n]`.
        start: Where the search began, of shape `[n]`.
    """
    if point.x.size > _FEW:
        return peak <= 0
    least = float(jnp.finfo(peak.dtype).eps) ** _NOTHING
    nothing = peak * jnp.abs(point.x) <= jnp.asarray(least, peak.dtype) * jnp.sqrt(2 * point.cost)
    stayed = jnp.abs(point.x - start) <= jnp.abs(start) / 2
    return (peak <= 0) | (nothing & stayed & (point.x != 0))


def place(
    point: Linearization, dead: jax.Array, visits: jax.Array, noise: Noise
) -> tuple[jax.Array, jax.Array]:
    """The next place at which params without effect may have one, and whether there is any.

    Args:
        point: The point at which convergence is claimed.
        dead: Which params never had an effect, as a mask of `[n]`.
        visits: How many places were tried.
        noise: The rounding at the point; a cost that is no more leaves nothing to look for.
    """
    sized = dead & (point.x != 0)
    count, extent = jnp.sum(sized, dtype=jnp.int32), jnp.sum(dead, dtype=jnp.int32)
    # Those of a size come first.
    zeros = count + jnp.cumsum(dead & ~sized, dtype=jnp.int32)
    order = jnp.where(sized, jnp.cumsum(sized, dtype=jnp.int32), zeros)
    table, alone = _factors(), _ALONE * len(_FACTORS)
    skipped = len(_FACTORS) * jnp.maximum(_ALONE - count, 0)
    row = jnp.where(visits < alone - skipped, visits, visits + skipped)
    end = jnp.where(extent > 1, len(table), alone)
    factors = lax.dynamic_index_in_dim(jnp.asarray(table, point.x.dtype), row, keepdims=False)
    factor = factors.at[lax.rem(order, jnp.int32(_COLUMNS))].get(mode="promise_in_bounds")
    exists = (count > 0) & (row < end) & (point.cost > noise.cost)
    m = jnp.asarray(max(point.r.size, 1), point.cost.dtype)
    size = jnp.where(factor == 1, jnp.zeros_like(factor), jnp.sqrt(2 * point.cost / m))
    there = factor * jnp.where(sized, point.x, size)
    return jnp.where(dead, there, point.x), exists


def least_gain(cost: jax.Array) -> jax.Array:
    """The reduction of the cost that makes it worth going to a place."""
    return jnp.asarray(_EFFECT, cost.dtype) * cost


def is_other(gained: jax.Array, cost: jax.Array) -> jax.Array:
    """Whether the cost is another at a place, by how much it is lower there."""
    return jnp.isfinite(gained) & (jnp.abs(gained) > jnp.asarray(_EFFECT, cost.dtype) * cost)


def _factors() -> np.ndarray:
    """The factors of params in their order at every place: one moves after the other, then all."""
    alone = np.ones((_ALONE, len(_FACTORS), _COLUMNS))
    for one in range(_ALONE):
        alone[one, :, one + 1] = _FACTORS  # orders begin with 1
    return np.concatenate([alone.reshape(-1, _COLUMNS), _together()])


def _together() -> np.ndarray:
    """Two or three of three params move, in all ways; further ones by threes, in other orders."""
    levels = np.stack(np.meshgrid(*[_LEVELS] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    levels = levels[np.sum(levels != 1, axis=1) > 1]
    threes = [np.roll(levels, _TURN * k, axis=0) for k in range(_COLUMNS // 3 + 1)]
    return np.roll(np.concatenate(threes, axis=1)[:, :_COLUMNS], 1, axis=1)
