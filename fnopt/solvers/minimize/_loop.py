"""The loop of `minimize`: one evaluation per iteration, so that no problem of a batch waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, is_converged, select_tree
from fnopt.linear import norm
from fnopt.numerics import safe_increment
from fnopt.sharding import cond, while_loop
from fnopt.solvers._search import ROUNDS
from fnopt.solvers._stopping import first_of
from fnopt.solvers._trust_region import SHARE
from fnopt.solvers.minimize._method import (
    Direction,
    MinimizeMethod,
    WolfeConditions,
    dot,
    rounding_of,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective
from fnopt.solvers.minimize._stopping import (
    OPTIMALITY,
    MinimizeTolerances,
    relative_gradient,
    step_converged,
    value_converged,
)
from fnopt.solvers.result._solution import StepHistory, noted
from fnopt.transforms import (
    LinePoint,
    LineSearch,
    LineSearchCriteria,
    advance_search,
    next_rate,
    start_search,
)

# Maximum evaluations of a line search, as in L-BFGS-B (Byrd, Lu, Nocedal and Zhu, 1995).
_EVALUATIONS = 20
# Moré and Thuente (1994), section 4: the largest factor by which a step size grows.
_GROWTH = 4.0
_NARROW = 0.1  # relative width of an interval, L-BFGS-B's xtol (Byrd, Lu, Nocedal and Zhu, 1995)


class SearchLine(NamedTuple):
    """A line search along a direction."""

    direction: Direction
    search: LineSearch
    trial: Evaluation  # the best trial point of the line search so far


class MinimizeState(NamedTuple):
    """The state of the loop."""

    point: Evaluation  # the iterate
    memory: Any  # the state of the method
    line: SearchLine  # the line search from the iterate
    best: Evaluation | None  # the lowest iterate so far, for methods whose value may rise
    typical: jax.Array  # typical magnitude of values: the magnitude at the initial guess, at most 1
    fresh: jax.Array  # whether the state of the method contains no step yet
    restarts: jax.Array  # int32, consecutive restarts without a decrease
    restarted: jax.Array  # the value at the last restart
    status: jax.Array
    steps: jax.Array  # int32, number of trial points
    nfev: jax.Array  # int32
    history: StepHistory | None


Watch = Callable[[MinimizeState, StepHistory], jax.Array]
"""Call the callback with the state and a history entry; return the new status."""


def blank_state(
    problem: SmoothObjective, method: MinimizeMethod, x: jax.Array, history: StepHistory | None
) -> MinimizeState:
    """Return the state before the first evaluation, which is the loop's first iteration."""
    zero, none, still = jnp.zeros((), x.dtype), jnp.zeros((), jnp.int32), jnp.zeros_like(x)
    point = Evaluation(x, zero, still)
    return MinimizeState(
        point=point,
        memory=method.begin(problem, point),
        line=SearchLine(Direction(still, zero, zero, zero), start_search(zero, zero, zero), point),
        best=None if method.monotone else point,
        typical=zero,
        fresh=jnp.ones((), bool),
        restarts=none,
        restarted=zero,
        status=Status.RUNNING.array,
        steps=none - 1,
        nfev=none,
        history=history,
    )


def iterate(
    problem: SmoothObjective,
    method: MinimizeMethod,
    tolerances: MinimizeTolerances,
    state: MinimizeState,
    max_steps: jax.Array,
    watch: Watch | None,
) -> MinimizeState:
    """Take steps until a stopping test holds or the limit of trial points is reached."""
    share = jnp.asarray(SHARE, state.point.x.dtype)

    def advance(state: MinimizeState) -> MinimizeState:
        first = state.steps < 0
        rate = _next_rate(state.line)
        there = method.evaluate(problem, _trial_point(problem, state, rate), state.memory)
        outcome = _search(method, state, rate, there)
        over, accepted = first | outcome.over, first | outcome.accepted
        point = select_tree(accepted, select_tree(first, there, outcome.line.trial), state.point)
        typical = jnp.where(first, jnp.minimum(jnp.abs(point.value), 1), state.typical)
        fresh = jnp.where(over, first | ~accepted, state.fresh)

        def renew() -> tuple[Any, Direction]:
            learned = method.learn(state.memory, state.point, point, state.fresh)
            memory = select_tree(fresh, method.begin(problem, point), learned)
            direction, memory = method.direction(problem, point, memory, fresh)
            return memory, direction

        memory, direction = cond(over, renew, lambda: (state.memory, state.line.direction))
        best = state.best
        if best is not None:
            best = select_tree(first | (accepted & (point.value < best.value)), point, best)
        helped = point.value < state.restarted - share * jnp.abs(state.restarted)
        restarts = jnp.where(helped, 0, state.restarts) + 1
        search = select_tree(over, _new_search(direction), outcome.line.search)
        after = state._replace(
            point=point,
            memory=memory,
            line=SearchLine(direction, search, outcome.line.trial),
            best=best,
            typical=typical,
            fresh=fresh,
            restarts=jnp.where(over & ~accepted, restarts, state.restarts),
            restarted=jnp.where(fresh & over, point.value, state.restarted),
            steps=safe_increment(state.steps),
            nfev=state.nfev + method.evaluations(state.memory),
        )
        return _watched(state, _judged(problem, method, tolerances, state, after, outcome), watch)

    def unfinished(state: MinimizeState) -> jax.Array:
        return (state.status == Status.RUNNING.value) & (state.steps < max_steps)

    return while_loop(unfinished, advance, state)


class SearchOutcome(NamedTuple):
    """The outcome of the line search after an evaluation."""

    line: SearchLine
    over: jax.Array
    accepted: jax.Array
    finite: jax.Array  # whether the value at the upper end of the bracket is finite
    unbounded: jax.Array  # whether values fall up to the longest step of the search


def _search(
    method: MinimizeMethod, state: MinimizeState, rate: jax.Array, there: Evaluation
) -> SearchOutcome:
    """Advance the line search by an evaluation.

    The line search uses differences from the value at the iterate, divided by the first-order
    predicted decrease. These ratios are of order 1 for any scale of the function.
    """
    finite = there.is_finite()
    unbounded = there.value == -jnp.inf
    if method.wolfe is None:
        over = jnp.ones((), bool)
        return SearchOutcome(state.line._replace(trial=there), over, finite, finite, unbounded)
    point, line = state.point, state.line
    step = line.direction.step
    slope = dot(point.gradient, step)
    downhill = slope < 0
    scale = jnp.where(downhill, -slope, jnp.ones_like(slope))
    offset = (method.reference(state.memory, point) - point.value) / scale
    noise = rounding_of(point.value) / scale
    narrow = jnp.maximum(line.search.low.rate, line.search.high.rate) * _NARROW
    criteria = _criteria(method.wolfe, offset, noise, line.direction.longest, narrow)
    value = jnp.where(finite, (there.value - point.value) / scale, jnp.nan)
    place = LinePoint(rate, value, dot(there.gradient, step) / scale)
    search, taken = advance_search(line.search, criteria, place)
    trial = select_tree(taken, there, line.trial)
    # A step below the rounding error of the params doesn't count.
    moves = (search.safe.rate > 0) & jnp.any(trial.x != point.x)
    # A search shorter than the size of the params doesn't show that the function is unbounded.
    far = jnp.max(jnp.abs(there.x - point.x), initial=0) > jnp.max(jnp.abs(point.x), initial=0)
    endless = ~search.bracketed & (search.count >= _EVALUATIONS) & far
    return SearchOutcome(
        line=SearchLine(line.direction, search, trial),
        over=search.done | ~downhill,
        accepted=search.done & downhill & moves,
        finite=jnp.isfinite(search.high.value),
        unbounded=unbounded | (endless & downhill),
    )


def _criteria(
    wolfe: WolfeConditions,
    reference: jax.Array,
    noise: jax.Array,
    longest: jax.Array,
    narrow: jax.Array,
) -> LineSearchCriteria:
    def number(x: float) -> jax.Array:
        return jnp.asarray(x, reference.dtype)

    return LineSearchCriteria(
        value=reference,
        slope=number(-1),
        tol=number(0),
        c1=number(wolfe.decrease),
        c2=number(wolfe.curvature),
        rise=noise,
        factor=number(_GROWTH),
        longest=longest,
        narrow=narrow,
        most=number(_EVALUATIONS),
        clips=True,
    )


def _new_search(direction: Direction) -> LineSearch:
    zero = jnp.zeros_like(direction.rate)
    return start_search(zero, zero - 1, direction.rate)


def _next_rate(line: SearchLine) -> jax.Array:
    inf = jnp.asarray(jnp.inf, line.direction.rate.dtype)
    criteria = _criteria(WolfeConditions(), inf, inf, line.direction.longest, inf)
    return next_rate(line.search, criteria)


def _trial_point(problem: SmoothObjective, state: MinimizeState, rate: jax.Array) -> jax.Array:
    """Return the next trial point of the line search; bounds are reached exactly."""
    x = state.point.x + rate * state.line.direction.step
    if problem.box is None:
        return x
    eps = jnp.asarray(jnp.finfo(x.dtype).eps, x.dtype)
    for bound in problem.box:
        on = jnp.isfinite(bound) & (jnp.abs(x - bound) <= eps * jnp.abs(bound))
        x = jnp.where(on, bound, x)
    return problem.box.nearest(x)


def _judged(
    problem: SmoothObjective,
    method: MinimizeMethod,
    tolerances: MinimizeTolerances,
    before: MinimizeState,
    after: MinimizeState,
    outcome: SearchOutcome,
) -> MinimizeState:
    """Set the status of the state; after a failed optimality check, discard the method's state."""
    point, direction = after.point, after.line.direction
    first = before.steps < 0
    moved = ~first & outcome.accepted
    failed = ~first & outcome.over & ~outcome.accepted
    pull = problem.projected_gradient(point)
    stationary = method.is_stationary(problem, point, after.memory)
    if tolerances.gtol is not None:
        stationary |= jnp.max(jnp.abs(pull), initial=0) <= tolerances.gtol
    # The change of the value by rounding errors of the params.
    noise = rounding_of(jnp.sum(jnp.abs(pull * point.x)))
    vanished = (jnp.abs(point.value) <= noise) & jnp.isfinite(noise)
    scale = jnp.maximum(jnp.abs(point.value), tolerances.ftol * after.typical)
    small = jnp.where(vanished, noise, tolerances.ftol * scale)
    flat = value_converged(before.point.value - point.value, direction.predicted, small)
    known = jnp.isfinite(direction.predicted)
    short = known & step_converged(
        point.x - before.point.x, direction.rate * direction.step, point.x, tolerances.xtol
    )
    # The largest decrease that a failed line search can have missed, by its initial slope.
    line = outcome.line
    room = -dot(point.gradient, line.direction.step) * line.search.high.rate
    lost = failed & (jnp.minimum(room, line.direction.predicted) <= small)
    optimal = relative_gradient(point, pull, after.typical) <= jnp.asarray(OPTIMALITY, pull.dtype)
    optimal |= vanished
    refuted = moved & flat & ~optimal
    last = after.restarts >= ROUNDS - 1
    ends = (failed & (before.fresh | last)) | (refuted & last)
    # If no step decreases a value that is zero to rounding error, the search has converged.
    zero = vanished | (rounding_of(after.typical) >= jnp.abs(point.value))
    status = first_of(
        (first & ~point.is_finite(), Status.NONFINITE_START),
        (~first & outcome.unbounded, Status.UNBOUNDED),
        ((first | moved) & stationary, Status.CONVERGED_GRADIENT),
        ((((moved & flat) | lost) & optimal) | (ends & zero), Status.CONVERGED_COST),
        (moved & short & optimal, Status.CONVERGED_STEP),
        (ends & ~outcome.finite, Status.NONFINITE_STEP),
        (ends, Status.STALLED),
    )
    # A zero step fails at the next evaluation, which resets the state of the method.
    step = jnp.where(refuted, jnp.zeros_like(direction.step), direction.step)
    line = after.line._replace(direction=direction._replace(step=step))
    return after._replace(line=line, status=status)


def _watched(before: MinimizeState, state: MinimizeState, watch: Watch | None) -> MinimizeState:
    """Write the history and call the callback."""
    if watch is None and state.history is None:
        return state

    def note() -> MinimizeState:
        accepted = jnp.any(state.point.x != before.point.x)
        length = norm(state.point.x - before.point.x)
        slope = norm(state.point.gradient)
        entry = StepHistory(state.point.value, slope, length, accepted)
        status = state.status if watch is None else watch(state, entry)
        return state._replace(status=status, history=noted(state.history, state.steps, entry))

    return cond(state.steps > 0, note, lambda: state)


def final_point(state: MinimizeState) -> Evaluation:
    """Return the last iterate if it converged, otherwise the iterate with the lowest value."""
    if state.best is None:
        return state.point
    last = is_converged(state.status) & (state.point.value <= state.best.value)
    return select_tree(last, state.point, state.best)
