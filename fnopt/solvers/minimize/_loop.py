"""The search loop of `minimize`."""

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
    rounding_bound,
)
from fnopt.solvers.minimize._problem import Evaluation, SmoothObjective
from fnopt.solvers.minimize._stopping import (
    OPTIMALITY,
    MinimizeTolerances,
    relative_gradient,
    step_converged,
    value_converged,
)
from fnopt.solvers.result._solution import StepHistory, record_step
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
# Relative width at which an interval isn't narrowed further: L-BFGS-B's xtol (Byrd, Lu, Nocedal
# and Zhu, 1995).
_NARROW = 0.1


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
    # The iterate with the lowest value, for methods that aren't monotone.
    best: Evaluation | None
    typical: jax.Array  # typical magnitude of values: the magnitude at the initial guess, at most 1
    fresh: jax.Array  # whether the method took no step since its state was initialized
    restarts: jax.Array  # int32, consecutive restarts without a decrease
    restart_value: jax.Array  # the value at the last restart
    status: jax.Array
    steps: jax.Array  # int32, number of trial points
    nfev: jax.Array  # int32
    history: StepHistory | None


Watch = Callable[[MinimizeState, StepHistory], jax.Array]
"""Call the callback with the state and a history entry; return the new status."""


def blank_state(
    problem: SmoothObjective, method: MinimizeMethod, x: jax.Array, history: StepHistory | None
) -> MinimizeState:
    """Return the state before the first iteration, which evaluates the initial guess."""
    zero, count, no_step = jnp.zeros((), x.dtype), jnp.zeros((), jnp.int32), jnp.zeros_like(x)
    point = Evaluation(x, zero, no_step)
    direction = Direction(no_step, zero, zero, zero)
    # The initial guess is evaluated in the loop, so that the program contains the user's function
    # only once.
    return MinimizeState(
        point=point,
        memory=method.begin(problem, point),
        line=SearchLine(direction, start_search(zero, zero, zero), point),
        best=None if method.monotone else point,
        typical=zero,
        fresh=jnp.ones((), bool),
        restarts=count,
        restart_value=zero,
        status=Status.RUNNING.array,
        steps=count - 1,
        nfev=count,
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
    """Take steps until a stopping test holds or the limit of trial points is reached.

    An iteration evaluates one trial point, so that no problem under `jax.vmap` waits for longer
    line searches of other problems. If the trial point ends the line search, the iterate moves to
    the best trial point, or else the method restarts at the iterate. Both begin a new line search.
    """
    share = jnp.asarray(SHARE, state.point.x.dtype)

    def advance(state: MinimizeState) -> MinimizeState:
        first = state.steps < 0
        rate = _next_rate(state.line)
        trial = method.evaluate(problem, _trial_point(problem, state, rate), state.memory)
        outcome = _search(method, state, rate, trial)
        over, accepted = first | outcome.over, first | outcome.accepted
        point = select_tree(accepted, select_tree(first, trial, outcome.line.trial), state.point)
        typical = jnp.where(first, jnp.minimum(jnp.abs(point.value), 1), state.typical)
        fresh = jnp.where(over, first | ~accepted, state.fresh)

        def new_direction() -> tuple[Any, Direction]:
            updated = method.learn(state.memory, state.point, point, state.fresh)
            memory = select_tree(fresh, method.begin(problem, point), updated)
            direction, memory = method.direction(problem, point, memory, fresh)
            return memory, direction

        # `cond` skips the direction during a line search; `jax.vmap` computes both branches.
        memory, direction = cond(over, new_direction, lambda: (state.memory, state.line.direction))
        best = state.best
        if best is not None:
            best = select_tree(first | (accepted & (point.value < best.value)), point, best)
        decreased = point.value < state.restart_value - share * jnp.abs(state.restart_value)
        restarts = jnp.where(decreased, 0, state.restarts) + 1
        search = select_tree(over, _new_search(direction), outcome.line.search)
        after = state._replace(
            point=point,
            memory=memory,
            line=SearchLine(direction, search, outcome.line.trial),
            best=best,
            typical=typical,
            fresh=fresh,
            restarts=jnp.where(over & ~accepted, restarts, state.restarts),
            restart_value=jnp.where(fresh & over, point.value, state.restart_value),
            steps=safe_increment(state.steps),
            nfev=state.nfev + method.evaluations(state.memory),
        )
        after = _set_status(problem, method, tolerances, state, after, outcome)
        return _record(state, after, watch)

    def unfinished(state: MinimizeState) -> jax.Array:
        return (state.status == Status.RUNNING.value) & (state.steps < max_steps)

    return while_loop(unfinished, advance, state)


class SearchOutcome(NamedTuple):
    """The line search after an evaluation, with its result."""

    line: SearchLine
    over: jax.Array  # whether the line search ended
    accepted: jax.Array  # whether the line search ended with a step
    finite: jax.Array  # whether the value at the upper end of the bracket is finite
    unbounded: jax.Array  # whether the function has no lower bound, by this line search
    endless: jax.Array  # whether the value still decreases at the longest step of the search


def _search(
    method: MinimizeMethod, state: MinimizeState, rate: jax.Array, new: Evaluation
) -> SearchOutcome:
    """Update the line search with an evaluation.

    The line search uses differences from the value at the iterate, divided by the first-order
    predicted decrease. These ratios are of order 1 for any scale of the function.
    """
    finite = new.is_finite()
    unbounded = new.value == -jnp.inf
    if method.wolfe is None:
        over = jnp.ones((), bool)
        return SearchOutcome(state.line._replace(trial=new), over, finite, finite, unbounded, ~over)
    point, line = state.point, state.line
    step = line.direction.step
    slope = dot(point.gradient, step)
    downhill = slope < 0
    scale = jnp.where(downhill, -slope, jnp.ones_like(slope))
    offset = (method.reference(state.memory, point) - point.value) / scale
    noise = rounding_bound(point.value) / scale
    narrow = jnp.maximum(line.search.low.rate, line.search.high.rate) * _NARROW
    criteria = _criteria(method.wolfe, offset, noise, line.direction.longest, narrow)
    value = jnp.where(finite, (new.value - point.value) / scale, jnp.nan)
    line_point = LinePoint(rate, value, dot(new.gradient, step) / scale)
    search, is_best = advance_search(line.search, criteria, line_point)
    trial = select_tree(is_best, new, line.trial)
    # A step below the rounding error of the params leaves all params unchanged.
    moves = (search.safe.rate > 0) & jnp.any(trial.x != point.x)
    endless = ~search.bracketed & (search.count >= _EVALUATIONS) & downhill
    # A decrease over less than the size of the params, or by less than the value, proves nothing.
    far = jnp.max(jnp.abs(new.x - point.x), initial=0) > jnp.max(jnp.abs(point.x), initial=0)
    unbounded |= endless & far & (point.value - new.value > jnp.abs(point.value))
    return SearchOutcome(
        line=SearchLine(line.direction, search, trial),
        over=search.done | ~downhill,
        accepted=search.done & downhill & moves,
        finite=jnp.isfinite(search.high.value),
        unbounded=unbounded,
        endless=endless,
    )


def _criteria(
    wolfe: WolfeConditions,
    reference: jax.Array,
    noise: jax.Array,
    longest: jax.Array,
    narrow: jax.Array,
) -> LineSearchCriteria:
    def scalar(x: float) -> jax.Array:
        return jnp.asarray(x, reference.dtype)

    return LineSearchCriteria(
        value=reference,
        slope=scalar(-1),  # values are divided by the magnitude of the initial slope
        tol=scalar(0),
        c1=scalar(wolfe.decrease),
        c2=scalar(wolfe.curvature),
        rise=noise,
        factor=scalar(_GROWTH),
        longest=longest,
        narrow=narrow,
        most=scalar(_EVALUATIONS),
        clips=True,
    )


def _new_search(direction: Direction) -> LineSearch:
    zero = jnp.zeros_like(direction.rate)
    return start_search(zero, zero - 1, direction.rate)


def _next_rate(line: SearchLine) -> jax.Array:
    # Of the criteria, `next_rate` reads only the growth factor and the longest step size.
    inf = jnp.asarray(jnp.inf, line.direction.rate.dtype)
    criteria = _criteria(WolfeConditions(), inf, inf, line.direction.longest, inf)
    return next_rate(line.search, criteria)


def _trial_point(problem: SmoothObjective, state: MinimizeState, rate: jax.Array) -> jax.Array:
    """Return the next trial point of the line search, rounded to bounds within machine epsilon."""
    x = state.point.x + rate * state.line.direction.step
    if problem.box is None:
        return x
    # A param off its bound by a rounding error would count as free.
    eps = jnp.asarray(jnp.finfo(x.dtype).eps, x.dtype)
    for bound in problem.box:
        is_near = jnp.isfinite(bound) & (jnp.abs(x - bound) <= eps * jnp.abs(bound))
        x = jnp.where(is_near, bound, x)
    return problem.box.nearest(x)


def _set_status(
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
    gradient = problem.projected_gradient(point)
    stationary = method.is_stationary(problem, point, after.memory)
    if tolerances.gtol is not None:
        stationary |= jnp.max(jnp.abs(gradient), initial=0) <= tolerances.gtol
    # The change of the value that rounding errors of the params cause.
    noise = rounding_bound(jnp.sum(jnp.abs(gradient * point.x)))
    is_noise = (jnp.abs(point.value) <= noise) & jnp.isfinite(noise)
    scale = jnp.maximum(jnp.abs(point.value), tolerances.ftol * after.typical)
    small = jnp.where(is_noise, noise, tolerances.ftol * scale)
    value_ok = value_converged(before.point.value - point.value, direction.predicted, small)
    # Without a model, the length of the next step has no meaning.
    has_model = jnp.isfinite(direction.predicted)
    step_ok = has_model & step_converged(
        point.x - before.point.x, direction.rate * direction.step, point.x, tolerances.xtol
    )
    # A failed line search missed a decrease of at most the initial slope times the upper end of
    # its bracket.
    line = outcome.line
    missed = -dot(point.gradient, line.direction.step) * line.search.high.rate
    search_ok = failed & (jnp.minimum(missed, line.direction.predicted) <= small)
    tolerance = jnp.asarray(OPTIMALITY, gradient.dtype)
    optimal = is_noise | (relative_gradient(point, gradient, after.typical) <= tolerance)
    optimal &= ~outcome.endless  # a minimum is farther than the line search has looked
    check_failed = moved & value_ok & ~optimal
    is_last = after.restarts >= ROUNDS - 1
    # A search that fails directly after a restart would fail again.
    ends = (failed & (before.fresh | is_last)) | (check_failed & is_last)
    # If no step decreases a value that is zero to rounding error, the search has converged.
    is_zero = is_noise | (rounding_bound(after.typical) >= jnp.abs(point.value))
    status = first_of(
        (first & ~point.is_finite(), Status.NONFINITE_START),
        (~first & outcome.unbounded, Status.UNBOUNDED),
        ((first | moved) & stationary, Status.CONVERGED_GRADIENT),
        ((((moved & value_ok) | search_ok) & optimal) | (ends & is_zero), Status.CONVERGED_COST),
        (moved & step_ok & optimal, Status.CONVERGED_STEP),
        (ends & ~outcome.finite, Status.NONFINITE_STEP),
        (ends, Status.STALLED),
    )
    # A zero step fails at the next evaluation, which resets the state of the method.
    step = jnp.where(check_failed, jnp.zeros_like(direction.step), direction.step)
    line = after.line._replace(direction=direction._replace(step=step))
    return after._replace(line=line, status=status)


def _record(before: MinimizeState, state: MinimizeState, watch: Watch | None) -> MinimizeState:
    """Write the step to the history, and call the callback."""
    if watch is None and state.history is None:
        return state

    def record() -> MinimizeState:
        accepted = jnp.any(state.point.x != before.point.x)
        length = norm(state.point.x - before.point.x)
        gradient_norm = norm(state.point.gradient)
        entry = StepHistory(state.point.value, gradient_norm, length, accepted)
        status = state.status if watch is None else watch(state, entry)
        return state._replace(status=status, history=record_step(state.history, state.steps, entry))

    # The evaluation of the initial guess isn't a step.
    return cond(state.steps > 0, record, lambda: state)


def final_point(state: MinimizeState) -> Evaluation:
    """Return the last iterate if it converged, otherwise the iterate with the lowest value."""
    if state.best is None:
        return state.point
    use_last = is_converged(state.status) & (state.point.value <= state.best.value)
    return select_tree(use_last, state.point, state.best)
