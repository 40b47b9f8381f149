"""Many small problems at once: the loop of `least_squares`, with a problem in each lane.

The last axis of all arrays is the batch of problems, the *lanes*. Residuals and normal equations
are computed for all lanes at once; steps, stopping tests and certificates are functions of one
problem under `jax.vmap`. Once three of four lanes have finished, they take the next problems.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, select_tree
from fnopt.residuals import Box
from fnopt.sharding import while_loop
from fnopt.solvers._bounded import free_point
from fnopt.solvers._certify import certified_end
from fnopt.solvers._lane_steps import (
    LaneProblems,
    evaluate,
    lane_spectra,
    lane_summary,
    over_lanes,
    step,
)
from fnopt.solvers._levenberg_marquardt import levenberg_marquardt
from fnopt.solvers._loop import SearchState, initial_state, restarted, zeros_of
from fnopt.solvers._search import ROUNDS, final_status
from fnopt.solvers._stopping import Tolerances, checked_status


class LaneEnds(NamedTuple):
    """The results of all problems, along the first axis."""

    x: jax.Array  # [fits, n]
    cost: jax.Array
    inverse: jax.Array  # [fits, n, n], (J^T J)^-1
    rank: jax.Array  # int32
    undetermined: jax.Array  # bool[fits, n]
    certified: jax.Array  # bool
    steps: jax.Array  # int32
    status: jax.Array  # int32


class _Lanes(NamedTuple):
    """The problems in progress, along the last axis."""

    search: SearchState
    index: jax.Array  # int32, indices of the problems; the number of problems for an idle lane
    rounds: jax.Array  # int32, number of certificates so far
    cost: jax.Array  # the cost at the last restart
    radius: jax.Array  # the initial radius of a restart


class _Queue(NamedTuple):
    """The problems in the lanes, the number of started problems, and the results so far."""

    lanes: _Lanes
    begun: jax.Array  # int32
    ends: LaneEnds


# Lanes are refilled when at most one in four is still running. Refilling costs about as much as a
# step of all lanes. In a simulation of 500 fits with 6.4 +- 1.4 evaluations, the total number of
# steps and refills is 44. It is 47 with one lane in two, and 46 with one in eight.
_REFILL = 4


def search_lanes(
    problems: LaneProblems,
    x0: jax.Array,
    rows: Any,
    box: Box | None,
    method: levenberg_marquardt,
    tolerances: Tolerances,
    max_steps: int,
    lanes: int,
) -> LaneEnds:
    """Solve all problems, `lanes` of them at a time.

    Args:
        problems: The functions of the problems.
        x0: The initial guesses, of shape `[fits, n]`.
        rows: The data of the problems: arrays whose first axis is the problems.
        box: The bounds, of shape `[fits, n]`.
        method: The method.
        tolerances: The tolerances of the method.
        max_steps: The maximum number of steps of a problem.
        lanes: Number of problems that are solved at once.
    """
    fits, n = x0.shape
    linear = method.rule.is_region and not method.geodesic
    assert linear, "lanes take trust-region steps without acceleration"

    def is_running(search: SearchState) -> jax.Array:
        return (search.status == Status.RUNNING.value) & (search.steps < max_steps)

    def count_running(lanes: _Lanes) -> jax.Array:
        return jnp.sum(is_running(lanes.search), dtype=jnp.int32)

    def start_lanes(index: jax.Array) -> _Lanes:
        """Return lanes before the first evaluation of these problems; idle without a problem."""
        x, data = _lane_rows((x0, rows), index)
        point, r = zeros_of(functools.partial(evaluate, problems, dense=box is not None), x, data)
        search = initial_state(point._replace(x=x), r)
        # A lane without a problem must not run.
        status = jnp.where(index < fits, search.status, Status.MAX_STEPS.array)
        blank = jnp.zeros_like(search.lam)
        return _Lanes(search._replace(status=status), index, 0 * index, blank, blank)

    def certify_lanes(lanes: _Lanes, data: Any, box: Box | None) -> tuple[_Lanes, LaneEnds]:
        """Restart the lanes whose certificate failed; return all lanes and their results."""
        search, rounds = lanes.search, lanes.rounds + 1
        point = free = search.point
        spectra = free_spectra = lane_spectra(problems, point, data)
        if box is not None:
            free = over_lanes(free_point)(point, box)
            free_spectra = lane_spectra(problems, free, data)
        certify = functools.partial(certified_end, tolerances=tolerances)
        certified = over_lanes(certify)(search, point, spectra, free, free_spectra)
        cost, inverse = search.point.cost, certified.inverse
        decreased = (lanes.rounds == 0) | (cost < (1 - tolerances.share) * lanes.cost)
        status = final_status(search.status, certified, decreased, rounds)
        restarts = ~is_running(search) & certified.failed & decreased
        restarts &= (rounds < ROUNDS) & (search.steps < max_steps)
        fresh = _Lanes(restarted(search), lanes.index, rounds, cost, certified.radius)
        if search.residuals is not None:
            cost, inverse = lane_summary(problems, search.point.x, data)
        if box is not None:
            status = jnp.where(over_lanes(Box.is_feasible)(box), status, Status.INFEASIBLE.array)
        ends = LaneEnds(
            x=search.point.x,
            cost=cost,
            inverse=inverse,
            rank=certified.rank,
            undetermined=certified.certificate.undetermined,
            certified=certified.certificate.certified,
            steps=search.steps,
            status=checked_status(status, jnp.any(search.max_columns > 0, axis=0), cost),
        )
        return select_tree(restarts, fresh, lanes), ends

    def advance_queue(queue: _Queue) -> _Queue:
        """Run all lanes until most problems are finished, and put new problems into idle lanes."""
        idle = ~is_running(queue.lanes.search)
        index = queue.begun + jnp.cumsum(idle, dtype=jnp.int32) - 1
        index = jnp.where(idle, jnp.minimum(index, fits), queue.lanes.index)
        begun = jnp.minimum(queue.begun + jnp.sum(idle, dtype=jnp.int32), fits)
        lanes = select_tree(idle, start_lanes(index), queue.lanes)
        data, sides = _lane_rows((rows, box), index)

        def advance(now: _Lanes) -> _Lanes:
            search = step(problems, method, tolerances, data, sides, now.search, now.radius)
            return now._replace(search=search)

        # Once all problems have begun, there is nothing to refill, so all lanes run to their end.
        least = jnp.where(begun < fits, count_running(lanes) // _REFILL, 0)
        stopped = while_loop(lambda now: count_running(now) > least, advance, lanes)
        lanes, ends = certify_lanes(stopped, data, sides)
        # Only the results of lanes that stopped and don't restart are kept.
        index = jnp.where(is_running(stopped.search) | is_running(lanes.search), fits, index)
        ends = jax.tree.map(
            lambda old, new: old.at[index].set(jnp.moveaxis(new, -1, 0), mode="drop"),
            queue.ends,
            ends,
        )
        return _Queue(lanes, begun, ends)

    def unfinished(queue: _Queue) -> jax.Array:
        return (queue.begun < fits) | jnp.any(is_running(queue.lanes.search))

    count = jnp.zeros(fits, jnp.int32)
    ends = LaneEnds(
        x=x0,
        cost=jnp.zeros(fits, x0.dtype),
        inverse=jnp.zeros((fits, n, n), x0.dtype),
        rank=count,
        undetermined=jnp.zeros((fits, n), bool),
        certified=jnp.zeros(fits, bool),
        steps=count,
        status=count,
    )
    idle = start_lanes(jnp.full(lanes, fits, jnp.int32))
    return while_loop(unfinished, advance_queue, _Queue(idle, jnp.zeros((), jnp.int32), ends)).ends


def _lane_rows(tree: Any, index: jax.Array) -> Any:
    """Return rows of arrays as lanes; arbitrary values for an index out of range."""
    # The index of an idle lane is out of range, so the lane gets the last problem, and no result is
    # kept.
    return jax.tree.map(lambda a: jnp.moveaxis(a.at[index].get(mode="clip"), 0, -1), tree)
