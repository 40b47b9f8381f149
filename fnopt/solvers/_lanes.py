"""Many small problems at once: the loop of `least_squares`, with a problem in each lane.

Problems lie along the last axis, the *lanes*, so that a number of the algorithm is a vector of so
many. Residuals and normal equations are written for lanes; steps, stopping tests and certificates
are those of one problem under `jax.vmap`. A lane whose problem is done takes the next one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, while_loop
from fnopt.linear import (
    DampedStep,
    Rows,
    cut_to_radius,
    divide,
    normal_equations,
    rounding_damping,
    sum_points,
    unrolled_backward,
    unrolled_cholesky,
    unrolled_forward,
    unrolled_inverse,
    unrolled_rank,
    unrolled_solve,
)
from fnopt.residuals import Box, RobustCost
from fnopt.solvers._bounded import bounded_step, free_point
from fnopt.solvers._certify import Spectrum, certified_end
from fnopt.solvers._levenberg_marquardt import levenberg_marquardt
from fnopt.solvers._loop import SearchState, after_step, metric
from fnopt.solvers._search import ROUNDS, final_status
from fnopt.solvers._stopping import Tolerances, checked_status, negligible_decrease
from fnopt.solvers._trust_region import Trial, straight
from fnopt.solvers.linear_model._linearization import Linearization, NormalMatrix
from fnopt.solvers.linear_model._scaling import initial_scale

over_lanes = functools.partial(jax.vmap, in_axes=-1, out_axes=-1)


class LaneProblems(NamedTuple):
    """The functions of many problems."""

    linearise: Callable[[tuple[jax.Array, ...], Any], tuple[list[jax.Array], jax.Array]]
    """The columns of the Jacobians and the residuals, each `[m, lanes]`, from params and data."""
    losses: Callable[[Any], RobustCost | None]
    """What residuals cost, from the data."""


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
        lanes: How many problems are worked on at once.
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
        step = functools.partial(_step, problems, method, tolerances, data, sides)

        def running(now: _Lanes) -> jax.Array:
            return jnp.sum(is_running(now), dtype=jnp.int32)

        few = jnp.where(queue.begun < fits, running(queue.lanes) // _LEAVE, 0)
        lanes = while_loop(lambda now: running(now) > few, step, queue.lanes)
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
    evaluate = functools.partial(_evaluate, problems, dense=dense)
    shapes = jax.eval_shape(evaluate, x, data)
    point, r = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
    blank = jnp.zeros_like(x[0])
    count = blank.astype(jnp.int32)
    return SearchState(
        point=point._replace(x=x),
        residuals=r,
        scale=jnp.zeros_like(x),
        steepest=jnp.zeros_like(x),
        radius=blank,
        lam=blank,
        rejections=count,
        status=count + Status.RUNNING.value,
        steps=count - 1,
        history=None,
    )


def _evaluate(
    problems: LaneProblems, x: jax.Array, data: Any, dense: bool = False, **floor: float
) -> tuple[Linearization, jax.Array | None]:
    """The points with their normal equations, and the residuals that aren't weighted by a loss.

    The normal matrix is a tuple of its entries, or dense where params are taken out of it.
    """
    columns, residuals = problems.linearise(tuple(x), data)
    losses, r = problems.losses(data), residuals
    if losses is not None:
        a, b = losses.corrections(residuals, **floor)
        columns, r = [b * column for column in columns], a * residuals
    # Behind a barrier: the model would otherwise be evaluated anew for what uses the residuals.
    *columns, r = jax.lax.optimization_barrier((*columns, r))
    sums = normal_equations(columns, r)
    A = NormalMatrix(_full(sums.A), jnp.ones_like(x)) if dense else sums.A
    cost = sums.square / 2
    if losses is not None:
        cost = _costed(problems, RobustCost.felt_cost, data, residuals)
    norms = jnp.sqrt(jnp.stack([row[-1] for row in sums.A]))
    point = Linearization(x, r, A, cost, jnp.stack(sums.g), norms)
    return point, None if losses is None else residuals


def _costed(problems: LaneProblems, cost: Any, data: Any, *residuals: Any) -> jax.Array:
    """A cost of residuals that have losses, or its reduction from one to another."""

    def one(data: Any, *r: jax.Array) -> jax.Array:
        return cost(problems.losses(data), *r)

    return over_lanes(one)(data, *residuals)


def lane_summary(problems: LaneProblems, x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    r"""The cost at params of shape `[n, lanes]`, and :math:`(J^T J)^{-1}` of `[n, n, lanes]`.

    `J` is without the floor under the curvature of a loss.
    """
    point, r = _evaluate(problems, x, data, floor=0.0)
    inverse = over_lanes(_gram_spectrum)(point)[1]
    if r is None:
        return point.cost, inverse
    return _costed(problems, RobustCost.cost, data, r), inverse


def _step(
    problems: LaneProblems,
    method: levenberg_marquardt,
    tolerances: Tolerances,
    data: Any,
    box: Box | None,
    lanes: _Lanes,
) -> _Lanes:
    """One step of every lane; lanes that are done keep what they have, to the last bit."""
    search = lanes.search

    scale = metric(search, sized=box is None)
    if box is None:
        trial = _propose(search.point, scale, search.radius, search.lam)
        x = search.point.x + trial.step
    else:
        trial, x = over_lanes(_propose_within)(search, scale, box)
    x = jnp.where(search.radius <= 0, search.point.x, x)
    there, r = _evaluate(problems, x, data, dense=box is not None)
    if r is None:
        before, after = search.point.r, there.r
        actual = sum_points([(before - after) * (before + after)])[0] / 2
    else:
        actual = _costed(problems, RobustCost.reduction, data, search.residuals, r)

    running = search.status == Status.RUNNING.value
    # A lane that is done takes no step.
    actual = jnp.where(running, actual, -jnp.inf)
    after, _ = after_step(
        method, tolerances, box, search, scale, trial, there, r, actual, lanes.restart
    )
    small = {
        name: jnp.where(running, getattr(after, name), getattr(search, name))
        for name in ("radius", "lam", "rejections", "status", "steps")
    }
    return lanes._replace(search=after._replace(**small))


def _propose_within(state: SearchState, scale: jax.Array, box: Box) -> tuple[Trial, jax.Array]:
    """The step of one problem within bounds, and where it ends."""

    def propose(point: Linearization, lam: jax.Array) -> Trial:
        return _propose(point, scale, state.radius, lam)

    return bounded_step(state.point, box, scale, state.radius, state.lam, propose)


def _propose(point: Linearization, scale: jax.Array, radius: jax.Array, lam: jax.Array) -> Trial:
    """The steps of problems by an unrolled Cholesky factorisation, for guesses of the damping.

    As in :class:`fnopt.linear.TriangleSystem` a step is cut to the radius, and one factorisation is
    all: the damping of the next step follows from it.
    """
    A, g = _scaled_rows(point, scale), point.gradient / scale
    least = rounding_damping(jnp.ones_like(lam), len(g))
    factor = unrolled_cholesky(A, jnp.maximum(lam, least))
    p = [-entry for entry in unrolled_solve(factor, tuple(g))]
    inner = jnp.sum(jnp.square(jnp.stack(unrolled_forward(factor, p))), axis=0)  # ||L^-1 p||^2
    p = jnp.stack(p)
    square = jnp.sum(jnp.square(p), axis=0)
    model_norm = -jnp.sum(g * p, axis=0) - jnp.maximum(lam, least) * square
    step = DampedStep(
        p,
        lam,
        model_norm,
        predicted=model_norm / 2 + lam * square,
        full=jnp.sqrt(square),
        rise=divide(square, inner),
    )
    return straight(point, scale, cut_to_radius(step, radius))


def _scaled_rows(point: Linearization, scale: jax.Array) -> Any:
    """The lower triangle of the scaled normal matrix, number by number."""
    A = point.J.matrix if isinstance(point.J, NormalMatrix) else point.J
    return tuple(
        tuple(A[i][j] / (scale[i] * scale[j]) for j in range(i + 1)) for i in range(len(scale))
    )


def _full(A: Rows) -> jax.Array:
    """The symmetric matrix of a lower triangle."""
    n = range(len(A))
    return jnp.stack([jnp.stack([A[max(i, j)][min(i, j)] for j in n]) for i in n])


def _gram_spectrum(point: Linearization) -> tuple[Spectrum, jax.Array]:
    """What the normal matrix with a diagonal of 1 shows of one problem, and its inverse.

    A pivot that rounding explains counts as zero, and its param as determined by the others.
    """
    scale = initial_scale(point.columns)
    n = len(scale)
    A = _scaled_rows(point, scale)
    least = rounding_damping(jnp.ones_like(point.cost), n)
    factor = unrolled_cholesky(A, jnp.zeros_like(point.cost), least)
    c = unrolled_forward(factor, tuple(point.gradient / scale))
    p = jnp.stack(unrolled_backward(factor, c))
    inverse, full = _full(unrolled_inverse(factor)), _full(A)
    dropped = ~jnp.isfinite(jnp.stack(factor.diagonal))
    # A param is determined if no change of the dropped ones moves it.
    moved = jnp.abs(jnp.sum(inverse[:, :, None] * full[None], axis=1)) * dropped.astype(scale.dtype)
    root = jnp.asarray(float(jnp.finfo(scale.dtype).eps) ** 0.5, scale.dtype)
    null = dropped | jnp.any(moved > root, axis=1)
    decrement = jnp.sum(jnp.square(jnp.stack(c))) / 2
    length = jnp.sqrt(jnp.sum(jnp.square(p)))
    spectrum = Spectrum(unrolled_rank(factor), decrement, length, null)
    return spectrum, inverse / scale / scale[:, None]


def _certified(
    problems: LaneProblems,
    tolerances: Tolerances,
    data: Any,
    box: Box | None,
    lanes: _Lanes,
    idle: jax.Array,
    max_steps: int,
) -> tuple[_Lanes, LaneEnds]:
    """Tests the ends of searches: those that the certificate refutes begin another one there."""

    def end(state: SearchState, box: Box | None) -> Any:
        point, free = state.point, free_point(state.point, box)
        whole, inverse = _gram_spectrum(point)
        part = whole if box is None else _gram_spectrum(free)[0]
        bound = negligible_decrease(free, tolerances)
        certified = certified_end(state, point, free, whole, part, bound, tolerances)
        return certified, inverse

    search, rounds = lanes.search, lanes.rounds + 1
    certified, inverse = over_lanes(end)(search, box)
    cost = search.point.cost
    helped = (lanes.rounds == 0) | (cost < (1 - tolerances.share) * lanes.cost)
    refuted = certified.refuted & helped
    restarts = idle & refuted & (rounds < ROUNDS) & (search.steps < max_steps)
    status = final_status(search.status, certified, helped)
    if search.residuals is not None:
        cost = _costed(problems, RobustCost.cost, data, search.residuals)
        inverse = lane_summary(problems, search.point.x, data)[1]
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
        status=checked_status(status, jnp.any(search.steepest > 0, axis=0), cost),
    )
    again = search._replace(
        scale=jnp.zeros_like(search.scale),
        radius=jnp.zeros_like(search.radius),
        rejections=jnp.zeros_like(search.rejections),
        status=jnp.full_like(search.status, Status.RUNNING.value),
        steps=search.steps - 1,  # to evaluate the point again is no step
    )
    again = lanes._replace(search=again, rounds=rounds, cost=cost, restart=certified.radius)
    return _choose(restarts, again, lanes), ends
