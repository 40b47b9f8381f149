"""The search of `least_squares`: loops, each with a certificate of its end, to a solution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, is_converged
from fnopt.linear import norm
from fnopt.sharding import cond, while_loop
from fnopt.solvers._bounded import free_point
from fnopt.solvers._certify import Certified, certify, uncertified
from fnopt.solvers._loop import SearchState, Watch, blank_state, iterate
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._stopping import checked_status
from fnopt.solvers.linear_model._linearization import stacked
from fnopt.solvers.problem._callback import status_after
from fnopt.solvers.problem._problem import Problem, Setting
from fnopt.solvers.problem._units import in_unit, restored
from fnopt.solvers.result._solution import Solution, StepHistory, StepInfo, empty_history, noted

ROUNDS = 3  # loops at most: a test that fails thrice is not mended by another restart


class _Round(NamedTuple):
    """A loop and the certificate of its end."""

    state: SearchState
    certified: Certified
    unit: jax.Array  # what the residuals of that loop are multiplied by
    number: jax.Array  # int32, loops so far, without those in another unit
    helped: jax.Array  # whether the last restart lowered the cost by more than a negligible share


class SearchOptions(NamedTuple):
    """What `least_squares` is asked for besides the minimum; known when it is traced."""

    starts: int = 1
    certify: str = "first-order"
    history: int | None = None  # the steps to keep
    callback: Callable[[StepInfo], Any] | None = None
    check_jac: bool = True


def search(
    problem: Problem,
    solver: LeastSquaresMethod,
    params: Any,
    x: jax.Array,
    max_steps: jax.Array,
    options: SearchOptions,
    watch: Callable[[jax.Array], Watch],
) -> Solution:
    """Loops until a certificate holds, or three times; the solution as vectors."""
    tolerances = solver.tolerances(params, x.dtype)
    none, full = jnp.zeros((), jnp.int32), options.certify == "full"

    def again(at: _Round) -> _Round:
        radius, unit = at.certified.radius, at.certified.unit
        state = at.state._replace(point=at.state.point._replace(x=at.certified.x))
        rescaled = unit != at.unit
        here = in_unit(problem, unit)
        end = iterate(here, solver, tolerances, state, radius, max_steps, watch(unit))
        certified = certify(here, solver.model(here.model), end, tolerances, unit, full)
        # The restart takes the Gauss-Newton step that refuted the point. If that doesn't lower the
        # cost, the linear model was wrong, and the point stands.
        helped = end.point.cost < (1 - tolerances.share) * state.point.cost
        helped |= rescaled | (at.number == 0)
        return _Round(end, certified, unit, at.number + (~rescaled).astype(jnp.int32), helped)

    def refuted(at: _Round) -> jax.Array:
        # Evaluating the same point in another unit is no step.
        in_time = (at.state.steps < max_steps) | (at.certified.unit != at.unit)
        return at.certified.refuted & at.helped & (at.number < ROUNDS) & in_time

    entries = None if options.history is None else empty_history(options.history, x.dtype)
    first = uncertified(x, full)
    here = in_unit(problem, first.unit)
    start = blank_state(here, solver.model(here.model), x, entries)
    last = while_loop(refuted, again, _Round(start, first, first.unit, none, jnp.ones((), bool)))
    return _solution(problem, solver, last)


def _solution(problem: Problem, solver: LeastSquaresMethod, last: _Round) -> Solution:
    state, certified = last.state, last.certified
    here = in_unit(problem, last.unit)
    point = state.point
    model = solver.model(here.model)
    residuals = point.r if state.residuals is None else state.residuals
    status = final_status(state.status, certified, last.helped)
    if problem.box is not None:
        status = jnp.where(problem.box.is_feasible(), status, Status.INFEASIBLE.array)
    evaluations = state.steps + last.number
    solution = Solution(
        params=point.x,
        cost=here.whole_cost(point, residuals),
        residuals=residuals,
        jacobian=stacked(here.curved(model.jacobian(point), residuals)),
        gradient_norm=norm(free_point(point, here.box).gradient),
        rank=certified.rank,
        steps=state.steps,
        nfev=evaluations,
        njev=evaluations,
        nhev=state.steps if solver.takes_second_derivatives else jnp.zeros_like(state.steps),
        status=checked_status(status, jnp.any(state.steepest > 0), point.cost),
        history=state.history,
        certificate=certified.certificate,
    )
    return restored(solution, last.unit, _POWERS)


def final_status(status: jax.Array, certified: Certified, helped: jax.Array) -> jax.Array:
    """The status of a search whose last loop ended with a certificate."""
    running = status == Status.RUNNING.value
    status = jnp.where(running, Status.MAX_STEPS.array, certified.status)
    # Each restart lowered the cost, and no more are made.
    exhausted = certified.refuted & helped & is_converged(status)
    return jnp.where(exhausted, Status.STALLED.array, status)


_POWERS = {"cost": 2, "gradient_norm": 2, "residuals": 1, "jacobian": 1}  # of the unit


def watching(
    setting: Setting, solver: LeastSquaresMethod, callback: Callable[[StepInfo], Any] | None
) -> Callable[[jax.Array], Watch]:
    """What writes the history and calls the callback, in a unit."""

    def in_this(unit: jax.Array) -> Watch:
        def watch(
            problem: Problem, state: SearchState, accepted: jax.Array, first: jax.Array
        ) -> SearchState:
            if state.history is None and callback is None:
                return state
            return cond(
                first,
                lambda: state,
                lambda: _noted(setting, solver, problem, state, accepted, callback, unit),
            )

        return watch

    return in_this


def _noted(
    setting: Setting,
    solver: LeastSquaresMethod,
    problem: Problem,
    state: SearchState,
    accepted: jax.Array,
    callback: Callable[[StepInfo], Any] | None,
    unit: jax.Array,
) -> SearchState:
    point = state.point
    cost = problem.whole_cost(point, point.r if state.residuals is None else state.residuals)
    gradient = free_point(point, problem.box).gradient
    seen = StepHistory(cost, norm(gradient), state.radius, accepted)
    # A trust radius is a length of residuals; a damping in units of D^2 has no unit.
    powers = {"cost": 2, "gradient_norm": 2, "radius": int(solver.is_trust_region)}
    entry = restored(seen, unit, powers)
    if callback is not None:
        info = StepInfo(state.steps, setting.params(point.x), *entry)
        # Report RUNNING until the certificate is made.
        converged = is_converged(state.status)
        running = jnp.where(converged, Status.RUNNING.array, state.status)
        status = status_after(callback, info, running)
        goes_on = converged & (status == Status.RUNNING.value)
        state = state._replace(status=jnp.where(goes_on, state.status, status))
    return state._replace(history=noted(state.history, state.steps, entry))
