"""Params that never had an effect: whether they have one elsewhere.

Where an exponential underflows at the start, or a peak lies far from all data, its columns are
zero: the other params reach a minimum, and nothing there tells that from data which don't depend
on these params at all. So they are tried at other magnitudes, one by one and several at once,
before a claim stands.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.solvers.convergence._noise import Noise
from fnopt.solvers.model._linearization import Linearization

_POWERS = (-5, 5, -10, 10)  # of two, by which one is moved
_ALONE = 4  # params that are moved alone
_TOGETHER = 8  # places, where there are several
_COLUMNS = 16  # params that are moved independently of each other
_GAIN = 0.01  # of the cost, by which a place is better
_EFFECT = 1e-4  # of the cost, by which it is another


def place(
    point: Linearization, peak: jax.Array, visits: jax.Array, noise: Noise
) -> tuple[jax.Array, jax.Array]:
    """The next place at which params without effect may have one, and whether there is any.

    Args:
        point: The point at which convergence is claimed.
        peak: The largest norms of the Jacobian's columns that were seen, of shape `[n]`.
        visits: How many places were tried.
        noise: The rounding at the point; a cost that is no more leaves nothing to look for.
    """
    dead = (peak <= 0) & (point.x != 0)
    order = jnp.cumsum(dead, dtype=jnp.int32)
    count = order[-1]
    skipped = len(_POWERS) * jnp.maximum(_ALONE - count, 0)
    row = jnp.where(visits < _ALONE * len(_POWERS) - skipped, visits, visits + skipped)
    end = _ALONE * len(_POWERS) + jnp.where(count > 1, _TOGETHER, 0)
    factors = lax.dynamic_index_in_dim(jnp.asarray(_factors(), point.x.dtype), row, keepdims=False)
    factor = factors.at[lax.rem(order, jnp.int32(_COLUMNS))].get(mode="promise_in_bounds")
    exists = (count > 0) & (row < end) & (point.cost > noise.cost)
    return jnp.where(dead, factor, jnp.ones_like(factor)) * point.x, exists


def least_gain(cost: jax.Array) -> jax.Array:
    """The reduction of the cost that makes it worth going to a place."""
    return jnp.asarray(_GAIN, cost.dtype) * cost


def is_other(gained: jax.Array, cost: jax.Array) -> jax.Array:
    """Whether the cost is another at a place, by how much it is lower there."""
    return jnp.isfinite(gained) & (jnp.abs(gained) > jnp.asarray(_EFFECT, cost.dtype) * cost)


def _factors() -> np.ndarray:
    """The factors of params in their order at every place: one moves after the other, then all."""
    alone = np.kron(np.eye(_ALONE, _COLUMNS), np.reshape(_POWERS, (-1, 1)))
    # The first column stays zero: orders begin with 1.
    alone = np.roll(alone, 1, axis=1)
    together = np.random.default_rng(0).choice((0, *_POWERS), (_TOGETHER, _COLUMNS))
    return np.exp2(np.concatenate([alone, together]))
