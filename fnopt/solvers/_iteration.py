"""One iteration of a method: its start, a step, its end. A point is evaluated only once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, any_row, is_converged, row_axes
from fnopt.linear import norm
from fnopt.programs import products_ahead
from fnopt.solvers._bounded import bounded_trial, faced
from fnopt.solvers._claim import Claim, no_claim
from fnopt.solvers._convergence import checked_status, first_of, is_stationary
from fnopt.solvers._curvature import learned
from fnopt.solvers._evidence import ran_away, rounding, vanished, went_far
from fnopt.solvers._linearization import (
    Linearization,
    is_finite,
    scaled_gradient,
    scaled_gradients,
    stacked,
)
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._options import Options
from fnopt.solvers._problem import Problem
from fnopt.solvers._scaling import fresh_scale, grown_scale
from fnopt.solvers._solution import Solution, StepHistory
from fnopt.solvers._step import Trial, TrustRegionState, arrive, compared, judge


class FitLoop(NamedTuple):
    """The state of the loop: a point is evaluated once, and factorised once, if that is dear."""

    point: Linearization  # of the model: its J^T r is the gradient of the cost
    r: jax.Array | None  # [m], the residuals, where the model has others
    factors: Any  # of an earlier step from the point, or None
    stale: jax.Array  # whether there was none, or with another scaling
    search: TrustRegionState
    scaled_gradient: jax.Array  # of the params that may and do move the residuals
    peak: jax.Array  # [n], the largest norms of the Jacobian's columns
    lost: jax.Array  # bool[n], whose columns have vanished since
    start: jax.Array  # [n]
    status: jax.Array
    claim: Claim
    steps: jax.Array
    njev: jax.Array
    nhev: jax.Array
    history: StepHistory | None

    @property
    def residuals(self) -> jax.Array:
        """The residuals."""
        return self.point.r if self.r is None else self.r


Evaluate = Callable[[jax.Array, jax.Array], Linearization]
"""What is known at a point, whose residuals are."""


def started(
    problem: Problem,
    solver: LeastSquaresMethod,
    options: Options,
    evaluate: Evaluate,
    x: jax.Array,
    r: jax.Array,
) -> FitLoop:
    feasible = jnp.ones((), bool) if problem.box is None else problem.box.has_room()
    point = evaluate(x, r)
    learns = problem.box is None and problem.losses is None
    search = solver.begin(point, options, solver.memory(problem.model) if learns else 0)
    facing = faced(point, problem.box)
    steep = scaled_gradient(facing)
    status = first_of(
        (~feasible, Status.INFEASIBLE),
        (~is_finite(point), Status.NONFINITE_START),
        (_vanishes(r, point.cost), Status.ILL_POSED),
        (is_stationary(point.cost, steep, options.gtol), Status.CONVERGED_GRADIENT),
    )
    claim = no_claim(point.cost).raised(status, point.cost > 0)
    status = lax.select(claim.is_raised, Status.RUNNING.array, status)
    one = jnp.ones((), jnp.int32)
    factors = _no_factors(problem, solver, facing, search)
    stale, none = jnp.ones((), bool), jnp.zeros((), jnp.int32)
    kept = None if problem.losses is None else r
    return FitLoop(
        point=point,
        r=kept,
        factors=factors,
        stale=stale,
        search=search,
        scaled_gradient=steep,
        peak=point.columns,
        lost=jnp.zeros(x.shape, bool),
        start=x,
        status=status,
        claim=claim,
        steps=none,
        njev=one,
        nhev=none,
        history=None,
    )


def inside(problem: Problem, x: jax.Array) -> jax.Array:
    """The point nearest to a start that is within bounds."""
    box = problem.box
    return x if box is None else jnp.where(box.has_room(), box.nearest(x), x)


def _no_factors(
    problem: Problem, solver: LeastSquaresMethod, point: Linearization, search: TrustRegionState
) -> Any:
    """Placeholders of factors, where they are worth keeping."""
    if solver.model(problem.model).takes_rows:
        return None
    shapes = jax.eval_shape(functools.partial(solver.factorise, problem.model), point, search)
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


def _factors(
    problem: Problem,
    solver: LeastSquaresMethod,
    loop: FitLoop,
    point: Linearization,
    search: TrustRegionState,
) -> Any:
    """The factors at a point: those of the last step, if it was refused and they were kept."""
    make = functools.partial(solver.factorise, problem.model, point, search)
    return make() if loop.factors is None else lax.cond(loop.stale, make, lambda: loop.factors)


def _vanishes(r: jax.Array, cost: jax.Array) -> jax.Array:
    """Whether residuals are so small that their squares are zero."""
    return (cost <= 0) & any_row(r != 0)


def evaluation(problem: Problem, solver: LeastSquaresMethod, x: jax.Array) -> Evaluate:
    """The function that evaluates points; no more is kept for it than the size of a Jacobian."""
    m, n = problem.flat.m, problem.flat.n
    if row_axes():  # its type isn't known ahead
        return functools.partial(_evaluate, problem, solver)
    r = jax.ShapeDtypeStruct((m,), x.dtype)
    most = m * n if problem.flat.gram is None else m * m
    return products_ahead(functools.partial(_evaluate, problem, solver), x, r, largest=most)


def _evaluate(
    problem: Problem, solver: LeastSquaresMethod, x: jax.Array, r: jax.Array
) -> Linearization:
    known = r if problem.losses is None else None
    return solver.evaluate(problem.model_at(r), x, known)._replace(cost=problem.cost(r))


def _propose(
    problem: Problem, solver: LeastSquaresMethod, options: Options, loop: FitLoop
) -> tuple[Trial, jax.Array]:
    """A step, and where it ends."""
    flat, point, search = problem.model, loop.point, loop.search
    trial = solver.propose(flat, faced(point, problem.box), loop.factors, search, options)
    if problem.box is None:
        return trial, point.x + trial.step

    def again(point: Linearization) -> Trial:
        return solver.propose(flat, point, solver.factorise(flat, point, search), search, options)

    model = solver.model(flat)
    products = None if model.has_matrix else model.products(point)
    return bounded_trial(point, problem.box, trial, again, products)


def advance(
    problem: Problem,
    solver: LeastSquaresMethod,
    options: Options,
    evaluate: Evaluate,
    loop: FitLoop,
) -> tuple[FitLoop, jax.Array]:
    """One step; says whether it was accepted."""
    point = faced(loop.point, problem.box)
    search = arrive(loop.search, loop.point)
    factors = _factors(problem, solver, loop, point, search)
    trial, x = _propose(problem, solver, options, loop._replace(factors=factors, search=search))
    noise = rounding(point, options)
    tried = problem.flat.r(x)
    actual = problem.reduction(loop.residuals, tried)
    found = compared(trial, actual, noise)
    promising = found.improves
    here, r, accepted = moved(loop, evaluate, x, tried, promising)
    actual = lax.select(promising & ~accepted, jnp.asarray(-jnp.inf, actual.dtype), actual)
    found = compared(trial, actual, noise)
    status, judged = judge(
        point, loop.scaled_gradient, trial, found, accepted, search, options, solver.rule
    )
    judged = _with_secant_update(judged, loop.point, here, trial, accepted)
    each, peak, lost = slopes(problem, loop, here)
    stationary = accepted & is_stationary(here.cost, jnp.max(each), options.gtol)
    status = lax.select(stationary, Status.CONVERGED_GRADIENT.array, status)
    claim = loop.claim.raised(status, here.cost > 0)
    status = lax.select(claim.is_raised, Status.RUNNING.array, status)
    return loop._replace(
        point=here,
        r=r,
        factors=None if loop.factors is None else factors,
        stale=accepted | (judged.restarts > search.restarts),
        search=judged,
        scaled_gradient=steepest(each, lost),
        peak=peak,
        lost=lost,
        claim=claim,
        status=status,
        steps=loop.steps + jnp.ones((), jnp.int32),
        njev=loop.njev + promising.astype(jnp.int32),
        nhev=loop.nhev + trial.seconds,
    ), accepted


def moved(
    loop: FitLoop, evaluate: Evaluate, x: jax.Array, r: jax.Array, promising: jax.Array
) -> tuple[Linearization, Any, jax.Array]:
    """The point `x`, where it is promising and its Jacobian finite; else the old one stays."""

    def arrived() -> tuple[Linearization, Any, jax.Array]:
        there = evaluate(x, r)
        usable, kept = is_finite(there), None if loop.r is None else r
        here, kept = lax.cond(usable, lambda: (there, kept), lambda: (loop.point, loop.r))
        return here, kept, usable

    return lax.cond(promising, arrived, lambda: (loop.point, loop.r, jnp.zeros((), bool)))


def slopes(
    problem: Problem, loop: FitLoop, here: Linearization
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """At a next point: the scaled gradients, the largest columns so far, which have vanished."""
    peak = jnp.maximum(loop.peak, here.columns)
    return scaled_gradients(faced(here, problem.box)), peak, vanished(here, peak, loop.start)


def steepest(scaled_gradients: jax.Array, lost: jax.Array) -> jax.Array:
    """The scaled gradient of the params that have an effect."""
    return jnp.max(lax.select(lost, jnp.zeros_like(scaled_gradients), scaled_gradients))


def _with_secant_update(
    search: TrustRegionState,
    before: Linearization,
    after: Linearization,
    trial: Trial,
    accepted: jax.Array,
) -> TrustRegionState:
    """The search with what an accepted step shows of the curvature."""
    if not search.rows.size:
        return search
    rows = learned(search.rows, before, after, trial.step, trial.excess)
    return search._replace(rows=jnp.where(accepted, rows, search.rows))


def ended(problem: Problem, solver: LeastSquaresMethod, loop: FitLoop) -> Solution:
    """The solution, as vectors."""
    point, model = loop.point, solver.model(problem.model)
    finished = loop.status != Status.RUNNING.value
    status = jnp.where(finished, loop.status, Status.MAX_STEPS.array)
    claimed = loop.claim.status
    status = jnp.where(~finished & is_converged(claimed), claimed, status)
    # The rank is that of the Jacobian, by its own columns.
    plain = loop.search._replace(scale=fresh_scale(point.columns), rows=loop.search.rows[:0])
    rank, _ = model.rank(solver.factorise(problem.model, point, plain))
    # What ran away was steep once; few fits have gone so far that it has to be looked for.
    scale = grown_scale(loop.search.steepest, point.columns)
    still = is_converged(status) | (status == Status.STALLED.value)
    far = still & (point.cost > 0) & went_far(point, loop.start)
    away = lax.cond(
        far, lambda: _ran_away(problem, solver, loop, plain, scale), lambda: jnp.zeros((), bool)
    )
    status = jnp.where(away, Status.NO_EFFECT.array, status)
    return Solution(
        params=point.x,
        cost=point.cost,
        residuals=loop.residuals,
        jacobian=stacked(problem.curved(model.jacobian(point), loop.residuals)),
        gradient_norm=norm(faced(point, problem.box).gradient),
        rank=rank,
        steps=loop.steps,
        nfev=loop.steps + jnp.ones((), jnp.int32),  # one a step, and the start
        njev=loop.njev,
        nhev=loop.nhev,
        status=checked_status(status, jnp.any(loop.peak > 0), point.cost),
        history=loop.history,
    )


def _ran_away(
    problem: Problem,
    solver: LeastSquaresMethod,
    loop: FitLoop,
    plain: TrustRegionState,
    scale: jax.Array,
) -> jax.Array:
    """Whether params went to infinity, as far as the factors tell."""
    factors = solver.factorise(problem.model, loop.point, plain._replace(scale=scale))
    _, unseen = solver.model(problem.model).rank(factors)
    no = jnp.zeros((), bool)
    return no if unseen is None else ran_away(loop.point, loop.start, scale, unseen)
