"""A cost that falls no more while params go on: the way to a limit at infinity."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_LOWER = 1e-5  # of the cost, that has to be gained
_STEPS = 100  # within which it has to be


class LevelCost(NamedTuple):
    """For how long a cost has hardly fallen."""

    cost: jax.Array  # when it last fell clearly
    steps: jax.Array  # int32, since then

    def after(self, cost: jax.Array, anew: jax.Array) -> LevelCost:
        """This after one more step, to a cost; `anew` is one in another unit."""
        fell = anew | (cost < (1 - jnp.asarray(_LOWER, cost.dtype)) * self.cost)
        steps = jnp.where(fell, jnp.zeros_like(self.steps), self.steps + 1)
        return LevelCost(jnp.where(fell, cost, self.cost), steps)

    @property
    def lasts(self) -> jax.Array:
        r"""Whether it has lasted: less than :math:`10^{-5}` of the cost in 100 steps.

        A minimum so near, of `m` data, is within :math:`0.005 \sqrt m` standard errors, where a fit
        comes in a few steps. Params that meanwhile become a hundred times their starts follow a
        cost that falls without end, such as `1 / x`, by ever less.
        """
        return self.steps >= _STEPS
