"""The state of the problems in work, a lane each.

Problems lie along the last axis, the lanes: a number of the algorithm is an array of shape
`[lanes]`, so the arithmetic of one problem is a vector instruction for many.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.linear import NormalEquations

Params = tuple[jax.Array, ...]
"""One array of shape `[lanes]` for each parameter."""


class Lanes(NamedTuple):
    """The state of every lane between steps."""

    x: Params  # the best params so far
    trial: Params  # where to look next
    sums: NormalEquations  # at x
    lam: jax.Array  # damping
    growth: jax.Array  # by what damping grows at the next refusal
    radius: jax.Array  # of the region where the linear model was seen to hold; 0 before that
    steps: jax.Array  # int32
    status: jax.Array  # int32, a fnopt.Status
    fresh: jax.Array  # bool, nothing is known at x yet: the trial is x itself
    peak: Params  # the largest squares of the norms of the Jacobian's columns so far


class LaneTolerances(NamedTuple):
    """Numbers of the algorithm, scalars of the dtype that is computed in."""

    ftol: jax.Array
    xtol: jax.Array
    gtol: jax.Array
    damping: jax.Array  # the first one
    noise: jax.Array  # relative changes of the cost below this are rounding
    eps: jax.Array  # rounding unit
    size_floor: jax.Array  # of the metric


def is_running(status: jax.Array) -> jax.Array:
    """Whether there is work left."""
    return status == Status.RUNNING.value


def choose(choice: jax.Array, a: Any, b: Any) -> Any:
    """Lane by lane `a` where `choice` holds, else `b`."""
    return jax.tree.map(lambda new, old: jnp.where(choice, new, old), a, b)
