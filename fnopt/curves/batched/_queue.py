"""From any number of problems to chunks of lanes, and back.

Problems are worked through in chunks that stay in a core's cache. A chunk is left as soon as most
of its lanes are done; the others go back to the queue and meet in full chunks in the next round.
So a slow problem holds up nobody, and no vector instruction runs for a few lanes only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import while_loop
from fnopt.curves.batched._bounds import lanes_of
from fnopt.curves.batched._lanes import Lanes, LaneTolerances, Params, is_running
from fnopt.curves.batched._method import advance
from fnopt.curves.batched._progress import BatchState, indices, load, store, take
from fnopt.curves.batched._retries import with_retries
from fnopt.linear import NormalEquations
from fnopt.residuals import Box

Evaluate = Callable[[Params, Any], NormalEquations]
"""The sums at params of many problems, from their data (the last axis is the lanes)."""

_LEAVE = 4  # a chunk is left when less than one lane in four still runs


def fit_all(
    evaluate: Evaluate,
    x0: jax.Array,
    rows: Any,
    box: Box | None,
    tol: LaneTolerances,
    max_steps: int,
    chunk: int,
) -> BatchState:
    """Fits all problems.

    Args:
        evaluate: The sums at params.
        x0: Where to start, of shape `[fits, n]`.
        rows: The problems' data: arrays whose first axis is the problems.
        box: The bounds, of shape `[fits, n]`.
        tol: The tolerances.
        max_steps: The most steps of a problem.
        chunk: How many problems are worked on at once.

    Returns:
        The progress when all problems have a status. Memory beyond data and result is what one
        chunk needs, an index of the problems, and a second result.
    """
    fits = x0.shape[0]

    def run(progress: BatchState, tol: LaneTolerances, most: jax.Array) -> BatchState:
        def one_chunk(order: jax.Array, k: jax.Array, progress: BatchState) -> BatchState:
            index = lax.dynamic_slice_in_dim(order, k * chunk, chunk)
            data, ends = jax.tree.map(lambda a: jnp.moveaxis(take(a, index), 0, -1), (rows, box))
            sides = lanes_of(ends)

            def step(lanes: Lanes) -> Lanes:
                return advance(lanes, evaluate(lanes.trial, data), tol, most, sides)

            lanes = _work(load(progress, index), step)
            return store(progress, lanes, index, x0, tol, sides)

        def one_round(progress: BatchState) -> BatchState:
            running = is_running(progress.status)
            count = jnp.sum(running, dtype=jnp.int32)
            order = indices(running, -(-fits // chunk) * chunk)
            chunks = (count + (chunk - 1)) // chunk
            return lax.fori_loop(0, chunks, lambda k, p: one_chunk(order, k, p), progress)

        return while_loop(lambda p: jnp.any(is_running(p.status)), one_round, progress)

    return with_retries(run, x0, box, tol, max_steps)


def _work(lanes: Lanes, step: Callable[[Lanes], Lanes]) -> Lanes:
    """Steps until most lanes are done; all of them if there are few."""

    def running(lanes: Lanes) -> jax.Array:
        return jnp.sum(is_running(lanes.status), dtype=jnp.int32)

    few = running(lanes) // _LEAVE
    return while_loop(lambda now: running(now) > few, step, lanes)
