"""The search of `least_squares`: loops until the final point passes the optimality tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, is_converged
from fnopt.linear import norm
from fnopt.sharding import cond, while_loop
from fnopt.solvers._bounded import free_point
from fnopt.solvers._certify import Certified, certify, uncertified
from fnopt.solvers._loop import SearchState, blank_state, iterate
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._stopping import checked_status
from fnopt.solvers.linear_model._linearization import jacobian_or_factor
from fnopt.solvers.problem._callback import status_after
from fnopt.solvers.problem._problem import Problem, Setting
from fnopt.solvers.problem._residual_scale import scale_residuals, undo_scaling
from fnopt.solvers.result._solution import (
    Solution,
    StepHistory,
    StepInfo,
    empty_history,
    record_step,
)

# Maximum number of loops. Of the 1,173 fits that converge from the initial guesses of NIST and of
# Moré, Garbow and Hillstrom, 81 fail without restarts. After three failed checks a further loop
# doesn't help.
ROUNDS = 3


class _Round(NamedTuple):
    """The final state of a loop, and its certificate."""

    state: SearchState
    certified: Certified
    residual_scale: jax.Array  # scale of the residuals in this loop
    loops: jax.Array  # int32, number of loops so far
    number: jax.Array  # int32, number of loops without repetitions at another scale
    decreased: jax.Array  # whether the last restart lowered the cost by more than SHARE


class SearchOptions(NamedTuple):
    """The options of `least_squares` that are known when it is traced."""

    starts: int = 1
    certify: str = "first-order"
    history: int | None = None  # the number of steps to keep
    callback: Callable[[StepInfo], Any] | None = None
    check_jac: bool = True


def search(
    setting: Setting, solver: LeastSquaresMethod, max_steps: jax.Array, options: SearchOptions
) -> Solution:
    """Run at most three loops until the optimality tests pass; return the solution as vectors."""
    problem, x, full = setting.problem, setting.x, options.certify == "full"
    tolerances = solver.tolerances(setting.parametrization.free, x.dtype)

    def again(last: _Round) -> _Round:
        residual_scale, radius = last.certified.residual_scale, last.certified.radius
        start = last.state._replace(point=last.state.point._replace(x=last.certified.x))
        scaled = scale_residuals(problem, residual_scale)
        rescaled = residual_scale != last.residual_scale
        watch = functools.partial(_watch, setting, solver, options.callback, residual_scale)
        end = iterate(scaled, solver, tolerances, start, radius, max_steps, watch)
        certified = certify(
            scaled, solver.model(scaled.model), end, tolerances, residual_scale, full
        )
        # The restart takes the Gauss-Newton step of the failed check. If that doesn't lower the
        # cost, the linear model was wrong, and the search ends at this point.
        decreased = end.point.cost < (1 - tolerances.share) * start.point.cost
        decreased |= rescaled | (last.number == 0)
        number = last.number + (~rescaled).astype(jnp.int32)
        return _Round(end, certified, residual_scale, last.loops + 1, number, decreased)

    def unfinished(last: _Round) -> jax.Array:
        # An evaluation of the same point at another scale doesn't count as a step.
        rescaled = last.certified.residual_scale != last.residual_scale
        in_time = (last.state.steps < max_steps) | rescaled
        return last.certified.failed & last.decreased & (last.number < ROUNDS) & in_time

    history = None if options.history is None else empty_history(options.history, x.dtype)
    first = uncertified(x, full)
    scaled = scale_residuals(problem, first.residual_scale)
    start = blank_state(scaled, solver.model(scaled.model), x, history)
    zero = jnp.zeros((), jnp.int32)
    begin = _Round(start, first, first.residual_scale, zero, zero, jnp.ones((), bool))
    return _solution(problem, solver, while_loop(unfinished, again, begin))


def _solution(problem: Problem, solver: LeastSquaresMethod, last: _Round) -> Solution:
    state, certified, point = last.state, last.certified, last.state.point
    scaled = scale_residuals(problem, last.residual_scale)
    model = solver.model(scaled.model)
    residuals = point.r if state.residuals is None else state.residuals
    status = final_status(state.status, certified, last.decreased, last.number)
    if problem.box is not None:
        status = jnp.where(problem.box.is_feasible(), status, Status.INFEASIBLE.array)
    evaluations = state.steps + last.loops  # a loop evaluates its initial point as well
    solution = Solution(
        params=point.x,
        cost=scaled.cost(residuals),
        residuals=residuals,
        jacobian=jacobian_or_factor(
            scaled.without_curvature_floor(model.jacobian(point), residuals)
        ),
        gradient_norm=norm(free_point(point, scaled.box).gradient),
        rank=certified.rank,
        steps=state.steps,
        nfev=evaluations,
        njev=evaluations,
        nhev=state.steps if solver.geodesic else jnp.zeros_like(state.steps),
        status=checked_status(status, jnp.any(state.max_columns > 0), point.cost),
        history=state.history,
        certificate=certified.certificate,
    )
    powers = {"cost": 2, "gradient_norm": 2, "residuals": 1, "jacobian": 1}
    return undo_scaling(solution, last.residual_scale, powers)


def final_status(
    status: jax.Array, certified: Certified, decreased: jax.Array, number: jax.Array
) -> jax.Array:
    """Combine the status of the last loop with the result of the optimality checks."""
    running = status == Status.RUNNING.value
    status = jnp.where(running, Status.MAX_STEPS.array, certified.status)
    # Each restart lowered the cost, but the limit of restarts or of steps is reached.
    exhausted = certified.failed & decreased & is_converged(status)
    limit = jnp.where(number < ROUNDS, Status.MAX_STEPS.array, Status.STALLED.array)
    return jnp.where(exhausted, limit, status)


def _watch(
    setting: Setting,
    solver: LeastSquaresMethod,
    callback: Callable[[StepInfo], Any] | None,
    residual_scale: jax.Array,
    problem: Problem,
    state: SearchState,
    accepted: jax.Array,
    first: jax.Array,
) -> SearchState:
    """Write the history and call the callback after each step, except after a first evaluation."""
    if state.history is None and callback is None:
        return state

    def watched() -> SearchState:
        point, new = state.point, state
        cost = problem.cost(point.r if state.residuals is None else state.residuals)
        gradient = free_point(point, problem.box).gradient
        entry = StepHistory(cost, norm(gradient), state.radius, accepted)
        # A trust-region radius scales with the residuals; a damping relative to D^2 doesn't.
        powers = {"cost": 2, "gradient_norm": 2, "radius": int(solver.rule.is_region)}
        entry = undo_scaling(entry, residual_scale, powers)
        if callback is not None:
            info = StepInfo(state.steps, setting.params(point.x), *entry)
            # Report RUNNING until the certificate is computed.
            converged = is_converged(state.status)
            running = jnp.where(converged, Status.RUNNING.array, state.status)
            status = status_after(callback, info, running)
            goes_on = converged & (status == Status.RUNNING.value)
            new = state._replace(status=jnp.where(goes_on, state.status, status))
        return new._replace(history=record_step(state.history, state.steps, entry))

    return cond(first, lambda: state, watched)
