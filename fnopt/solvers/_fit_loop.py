"""The state of a fit from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fnopt.solvers.convergence._level import LevelCost
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.result._solution import StepHistory
from fnopt.solvers.trust_region._step import TrustRegionState


class FitLoop(NamedTuple):
    """The state of the loop: a point is evaluated once, and factorised once, if that is dear."""

    point: Linearization  # of the model: its J^T r is the gradient of the cost
    r: jax.Array | None  # [m], the residuals, where the model has others
    unit: jax.Array  # what residuals are multiplied by, a power of two
    closer: jax.Array  # whether that is more than at the start
    factors: Any  # of an earlier step from the point, or None
    search: TrustRegionState
    scaled_gradient: jax.Array  # of the params that may and do move the residuals
    peak: jax.Array  # [n], the largest norms of the Jacobian's columns
    start: jax.Array  # [n]
    since: jax.Array  # [n], the start, or the end of the last step that took all of the cost
    known: jax.Array | None  # whether the data ever determined all params; None where not seen
    rooted: jax.Array  # whether the point is a singular root, as good as it can be told
    status: jax.Array
    claimed: jax.Array  # the status whose test is the next evaluation; else `RUNNING`
    tried: jax.Array  # [m], the residuals at the last evaluation
    gained: jax.Array  # by how much the cost was lower there
    accepted: jax.Array  # whether the point is that of the last evaluation
    again: jax.Array  # whether the search begins again with the next step
    visits: jax.Array  # int32, places at which params without effect were tried
    stirred: jax.Array  # whether they had one there
    level_cost: LevelCost  # for how long it has hardly fallen
    steps: jax.Array
    njev: jax.Array
    nhev: jax.Array
    history: StepHistory | None

    @property
    def residuals(self) -> jax.Array:
        """The residuals."""
        return self.point.r if self.r is None else self.r


Evaluate = Callable[[jax.Array, jax.Array, jax.Array], Linearization]
"""What is known at a point, from its residuals in their unit, and that."""
