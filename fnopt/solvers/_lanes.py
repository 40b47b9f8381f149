"""Many small problems at once: the loop of `least_squares`, with a problem in each lane.

Problems lie along the last axis, the *lanes*, so that a number of the algorithm is a vector of so
many. Residuals and normal equations are written for lanes; steps, stopping tests and certificates
are those of one problem under `jax.vmap`. A lane whose problem is done takes the next one.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.residuals import Box
from fnopt.sharding import while_loop
from fnopt.solvers._bounded import free_point
from fnopt.solvers._certify import certified_end
from fnopt.solvers._lane_steps import (
    LaneProblems,
    evaluate,
    gram_spectrum,
    lane_summary,
    over_lanes,
    step,
)
from fnopt.solvers._levenberg_marquardt import levenberg_marquardt
from fnopt.solvers._loop import SearchState, restarted
from fnopt.solvers._search import ROUNDS, final_status
from fnopt.solvers._stopping import Tolerances, checked_status, negligible_decrease


class LaneEnds(NamedTuple):
    """The ends of all problems, along the first axis."""

    x: jax.Array  # [fits, n]
    cost: jax.Array
    inverse: jax.Array  # [fits, n, n], (J^T J)^-1
    rank: jax.Array  # int32
    undetermined: jax.Array  # bool[fits, n]
    certified: jax.Array  # bool
    steps: jax.Array  # int32
    status: jax.Array  # int32


class _Lanes(NamedTuple):
    """The problems in work, along the last axis."""

    search: SearchState
    index: jax.Array  # int32, which problems; their number where there is none
    rounds: jax.Array  # int32, certificates so far
    cost: jax.Array  # at the last restart
    restart: jax.Array  # first radius of a restart


class _Queue(NamedTuple):
    """The problems in work, how many were begun, and the ends of those that are done."""

    lanes: _Lanes
    begun: jax.Array  # int32
    ends: LaneEnds


# Lanes are refilled when at most one in four still works. To refill them costs about a step of all;
# of 500 fits with 6.4 +- 1.4 evaluations steps and refills, simulated, are 44, for one in two 47,
# for one in eight 46.
_LEAVE = 4


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
    """Fits all problems, so many at a time.

    Args:
        problems: The functions of the problems.
        x0: Where to start, of shape `[fits, n]`.
        rows: The problems' data: arrays whose first axis is the problems.
        box: The bounds, of shape `[fits, n]`.
        method: The method.
        tolerances: Its numbers.
        max_steps: The most steps of a problem.
        lanes: Number of problems that are worked on at once.
    """
    fits, n = x0.shape

    def is_running(lanes: _Lanes) -> jax.Array:
        search = lanes.search
        return (search.status == Status.RUNNING.value) & (search.steps < max_steps)

    def refilled(queue: _Queue) -> _Queue:
        """The queue with new problems in the lanes that are done."""
        old, begun, ends = queue
        idle = ~is_running(old)
        index = begun + jnp.cumsum(idle, dtype=jnp.int32) - 1
        index = jnp.where(idle, jnp.minimum(index, fits), old.index)
        new = _fresh(problems, *_lane_rows((x0, rows), index), dense=box is not None)
        empty = jnp.where(index < fits, new.status, Status.MAX_STEPS.array)
        blank = jnp.zeros_like(new.lam)
        fresh = _Lanes(new._replace(status=empty), index, 0 * index, blank, blank)
        begun = jnp.minimum(begun + jnp.sum(idle, dtype=jnp.int32), fits)
        return _Queue(_choose(idle, fresh, old), begun, ends)

    def worked(queue: _Queue) -> _Queue:
        """The queue after steps of all lanes, until most are done."""
        queue = refilled(queue)
        data, sides = _lane_rows((rows, box), queue.lanes.index)

        def advance(now: _Lanes) -> _Lanes:
            search = step(problems, method, tolerances, data, sides, now.search, now.restart)
            return now._replace(search=search)

        def running(now: _Lanes) -> jax.Array:
            return jnp.sum(is_running(now), dtype=jnp.int32)

        few = jnp.where(queue.begun < fits, running(queue.lanes) // _LEAVE, 0)
        lanes = while_loop(lambda now: running(now) > few, advance, queue.lanes)
        idle = ~is_running(lanes)
        lanes, ends = _certified(problems, tolerances, data, sides, lanes, idle, max_steps)
        index = jnp.where(idle & ~is_running(lanes), lanes.index, fits)
        ends = jax.tree.map(
            lambda all_, some: all_.at[index].set(jnp.moveaxis(some, -1, 0), mode="drop"),
            queue.ends,
            ends,
        )
        return queue._replace(lanes=lanes, ends=ends)

    def unfinished(queue: _Queue) -> jax.Array:
        return (queue.begun < fits) | jnp.any(is_running(queue.lanes))

    nobody = jnp.full(lanes, fits, jnp.int32)
    blank = jnp.zeros(lanes, x0.dtype)
    search = _fresh(problems, *_lane_rows((x0, rows), nobody), dense=box is not None)
    search = search._replace(status=jnp.full(lanes, Status.MAX_STEPS.value, jnp.int32))
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
    begin = _Queue(_Lanes(search, nobody, 0 * nobody, blank, blank), jnp.zeros((), jnp.int32), ends)
    return while_loop(unfinished, worked, begin).ends


def _lane_rows(tree: Any, index: jax.Array) -> Any:
    """Rows of arrays as lanes; any for an index that is out of range."""
    return jax.tree.map(lambda a: jnp.moveaxis(a.at[index].get(mode="clip"), 0, -1), tree)


def _choose(which: jax.Array, new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), new, old)


def _fresh(problems: LaneProblems, x: jax.Array, data: Any, dense: bool) -> SearchState:
    """The states before the first evaluation."""
    shapes = jax.eval_shape(functools.partial(evaluate, problems, dense=dense), x, data)
    point, r = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    blank = jnp.zeros_like(x[0])
    count = blank.astype(jnp.int32)
    return SearchState(
        point=point._replace(x=x),
        residuals=r,
        scale=jnp.zeros_like(x),
        max_columns=jnp.zeros_like(x),
        radius=blank,
        lam=blank,
        rejections=count,
        status=count + Status.RUNNING.value,
        steps=count - 1,
        history=None,
    )


def _certified(
    problems: LaneProblems,
    tolerances: Tolerances,
    data: Any,
    box: Box | None,
    lanes: _Lanes,
    idle: jax.Array,
    max_steps: int,
) -> tuple[_Lanes, LaneEnds]:
    """Certify finished searches, and restart those whose certificate fails."""

    def end(state: SearchState, box: Box | None) -> Any:
        point, free = state.point, free_point(state.point, box)
        whole, inverse = gram_spectrum(point)
        part = whole if box is None else gram_spectrum(free)[0]
        bound = negligible_decrease(free, tolerances)
        certified = certified_end(state, point, free, whole, part, bound, tolerances)
        return certified, inverse

    search, rounds = lanes.search, lanes.rounds + 1
    certified, inverse = over_lanes(end)(search, box)
    cost = search.point.cost
    decreased = (lanes.rounds == 0) | (cost < (1 - tolerances.share) * lanes.cost)
    failed = certified.failed & decreased
    restarts = idle & failed & (rounds < ROUNDS) & (search.steps < max_steps)
    status = final_status(search.status, certified, decreased)
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
    again = _Lanes(restarted(search), lanes.index, rounds, search.point.cost, certified.radius)
    return _choose(restarts, again, lanes), ends
