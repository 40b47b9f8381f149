"""The least-squares loop: linearize, propose a step, accept or reject it, adapt the radius."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, select_tree
from fnopt.linear import divide
from fnopt.numerics import safe_increment
from fnopt.residuals import Box
from fnopt.sharding import cond, row_axes, while_loop
from fnopt.solvers._bounded import bounded_step, free_point
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._stopping import (
    Tolerances,
    cost_rounding,
    first_of,
    is_nearer,
    is_stationary,
    stopping_status,
)
from fnopt.solvers._trust_region import Trial, evaluate_step, next_damping
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._linearization import Linearization, is_finite
from fnopt.solvers.linear_model._scaling import grown_scale, initial_scale, with_relative_bound
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.result._solution import StepHistory


class SearchState(NamedTuple):
    """The state of the loop."""

    point: Linearization  # linearization at the current iterate
    residuals: jax.Array | None  # [m], unweighted, if a loss weights those of the linear model
    scale: jax.Array  # [n], maximum norms of the Jacobian's columns, with exponential decay
    max_columns: jax.Array  # [n], maximum of column norm over residual norm, so far
    radius: jax.Array  # trust-region radius; 0 before the first evaluation
    lam: jax.Array  # damping of the next step
    rejections: jax.Array  # int32, consecutive rejected steps
    status: jax.Array
    steps: jax.Array  # int32, number of trial steps
    history: StepHistory | None


Watch = Callable[[Problem, SearchState, jax.Array, jax.Array], SearchState]
"""Write the history and call the callback, given the problem, the state, whether the step was
accepted, and whether this is the first evaluation of a loop."""


def zeros_of(fn: Callable[..., Any], *args: Any) -> Any:
    """Return zeros of the shapes and dtypes that a function returns."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(fn, *args))


def initial_state(
    point: Linearization, residuals: Any, history: StepHistory | None = None
) -> SearchState:
    """Return the initial state of one problem, or of many problems along the last axis."""
    zero, zeros = jnp.zeros_like(point.cost), jnp.zeros_like(point.x)
    count = zero.astype(jnp.int32)
    return SearchState(
        point=point,
        residuals=residuals,
        scale=zeros,
        max_columns=zeros,
        radius=zero,
        lam=zero,
        rejections=count,
        status=count + Status.RUNNING.array,
        steps=count - 1,
        history=history,
    )


def blank_state(
    problem: Problem, model: LinearModel, x: jax.Array, history: StepHistory | None
) -> SearchState:
    """Return the state before the first evaluation, which is the loop's first iteration.

    Therefore the program evaluates the residuals in one place only. On a mesh, the types of
    arrays are unknown before an evaluation, so the initial guess is evaluated here as well.
    """
    evaluate = functools.partial(problem.evaluate, model)
    on_mesh = row_axes() or not jax.sharding.get_abstract_mesh().empty
    point, r = evaluate(x) if on_mesh else zeros_of(evaluate, x)
    return initial_state(point._replace(x=x), None if problem.losses is None else r, history)


def relative_columns(point: Linearization) -> jax.Array:
    """Return the norms of the Jacobian's columns over the residual norm; 0 without residuals."""
    return divide(point.columns, jnp.sqrt(2 * point.cost))


def iterate(
    problem: Problem,
    method: LeastSquaresMethod,
    tolerances: Tolerances,
    state: SearchState,
    radius: jax.Array,
    max_steps: jax.Array,
    watch: Watch,
) -> SearchState:
    """Take steps until a stopping test holds, or `max_steps` steps are taken.

    Args:
        problem: The problem.
        method: The method.
        tolerances: The tolerances of the method.
        state: The initial state; only its params and number of steps are used.
        radius: The initial trust-region radius; 0 selects the default of the method.
        max_steps: The maximum number of steps in total.
        watch: Records a step and calls the callback.
    """
    model = method.model(problem.model)
    box, relative = problem.box, model.has_triangle and method.rule.is_region

    def propose(state: SearchState, scale: jax.Array) -> tuple[Trial, jax.Array]:
        def step_from(point: Linearization, lam: jax.Array) -> Trial:
            return method.propose(model, point, scale, state.radius, lam)

        if box is None:
            trial = step_from(state.point, state.lam)
            return trial, state.point.x + trial.step
        products = None if model.has_matrix else model.products(state.point)
        return bounded_step(state.point, box, scale, state.radius, state.lam, step_from, products)

    def advance(state: SearchState) -> SearchState:
        # A radius of zero marks the evaluation of the initial point.
        point, first = state.point, state.radius <= 0
        scale = metric(state, relative and box is None)
        trial, x = propose(state, scale)
        end, r = problem.evaluate(model, lax.select(first, point.x, x))
        before = point.r if state.residuals is None else state.residuals
        actual = problem.reduction(point, before, r, trial.step)
        state, accepted = after_step(
            method, tolerances, box, state, scale, trial, end, r, actual, radius
        )
        return watch(problem, state, accepted, first)

    def unfinished(state: SearchState) -> jax.Array:
        return (state.status == Status.RUNNING.value) & (state.steps < max_steps)

    return while_loop(unfinished, advance, restarted(state))


def restarted(state: SearchState) -> SearchState:
    """Return the initial state of the next loop, with the same params and number of steps."""
    return state._replace(
        radius=jnp.zeros_like(state.radius),
        scale=jnp.zeros_like(state.scale),
        rejections=jnp.zeros_like(state.rejections),
        status=jnp.full_like(state.status, Status.RUNNING.value),
        # The evaluation of the initial point doesn't count as a step.
        steps=state.steps - (state.steps >= 0).astype(jnp.int32),
    )


def metric(state: SearchState, relative: bool) -> jax.Array:
    """Return the scaling of the next step, with or without the relative step bound."""
    scale = initial_scale(state.scale)
    return with_relative_bound(scale, state.point) if relative else scale


def after_step(
    method: LeastSquaresMethod,
    tolerances: Tolerances,
    box: Box | None,
    state: SearchState,
    scale: jax.Array,
    trial: Trial,
    end: Linearization,
    r: jax.Array | None,
    actual: jax.Array,
    radius: jax.Array,
) -> tuple[SearchState, jax.Array]:
    """Return the state after a step or a first evaluation, and whether it was accepted.

    The arrays belong to one problem, or to many problems along the last axis of each array.

    Args:
        method: The method.
        tolerances: The tolerances of the method.
        box: The bounds.
        state: The state before the step; a radius of 0 marks a point that wasn't evaluated.
        scale: The scaling of the step.
        trial: The step.
        end: The linearization at the end of the step.
        r: The residuals at the end, not weighted by a loss.
        actual: The reduction of the cost.
        radius: The first radius of a trust region; 0 for the default of the method.
    """
    point, first, finite = state.point, state.radius <= 0, is_finite(end)
    before, after = _free_slopes(point, box), _free_slopes(end, box)
    # A step to a non-finite point counts as an infinite increase, which rejects it.
    actual = jnp.where(finite, actual, -jnp.inf)
    noise = cost_rounding(before, tolerances.eps)
    step = evaluate_step(state, trial, actual, noise, is_nearer(after, before))
    accepted = first | step.accepted
    columns = grown_scale(state.scale, end.columns)
    first_radius = method.first_radius(initial_scale(columns), end.x, end.cost)
    if method.rule.is_region:
        first_radius = lax.select(radius > 0, radius, first_radius)
    next_radius = method.rule.radius_after(step)
    new = end, None if state.residuals is None else r, columns
    old = point, state.residuals, state.scale
    reached, residuals, columns = _select(accepted, new, old)
    free = free_point(reached, box)
    start = first_of(
        (~finite, Status.NONFINITE_START),
        (is_stationary(free, tolerances.gtol), Status.CONVERGED_GRADIENT),
    )
    zero = jnp.zeros_like(state.rejections)
    state = state._replace(
        point=reached,
        residuals=residuals,
        scale=columns,
        max_columns=jnp.maximum(state.max_columns, relative_columns(reached)),
        radius=lax.select(first, first_radius, next_radius),
        lam=jnp.where(first, 0, next_damping(trial, next_radius)),
        rejections=jnp.where(accepted, zero, state.rejections + 1),
        status=lax.select(first, start, stopping_status(free, point, step, scale, tolerances)),
        steps=safe_increment(state.steps),
    )
    return state, accepted


def _select(accepted: jax.Array, new: Any, old: Any) -> Any:
    """Select the new tree where a step is accepted, for one problem or along the last axis."""
    if accepted.ndim:
        return select_tree(accepted, new, old)
    # For one problem, `cond` saves a select over the Jacobian.
    return cond(accepted, lambda: new, lambda: old)


def _free_slopes(point: Linearization, box: Box | None) -> Linearization:
    """Return the point of the free params for stopping tests, without the triangular factor."""
    return point if box is None else free_point(point, box)._replace(triangle=None)
