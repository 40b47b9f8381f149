"""One iteration of a method: its start and a step. A point is evaluated only once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, any_row, cond, matmul, row_axes, row_total
from fnopt.programs import products_ahead
from fnopt.solvers._bounded import bounded_trial, faced
from fnopt.solvers._fit_loop import Evaluate, FitLoop
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.convergence._claim import Doubt
from fnopt.solvers.convergence._evidence import (
    fell_away,
    nears_singular_root,
    vanished,
    went_far,
)
from fnopt.solvers.convergence._level import LevelCost
from fnopt.solvers.convergence._noise import is_full, is_steadier, leans, rounding
from fnopt.solvers.convergence._options import Options
from fnopt.solvers.convergence._tests import first_of, is_stationary
from fnopt.solvers.model._curvature import learned
from fnopt.solvers.model._linearization import (
    Linearization,
    is_finite,
    scaled_gradient,
    scaled_gradients,
)
from fnopt.solvers.model._own_curvature import own_learned
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.problem._units import in_unit
from fnopt.solvers.trust_region._judge import Comparison, compared, judge
from fnopt.solvers.trust_region._step import (
    Trial,
    TrustRegionState,
    arrive,
    choose,
    restart,
)


def started(
    problem: Problem,
    solver: LeastSquaresMethod,
    options: Options,
    evaluate: Evaluate,
    x: jax.Array,
    r: jax.Array,
    unit: jax.Array,
) -> FitLoop:
    feasible = jnp.ones((), bool) if problem.box is None else problem.box.has_room()
    point = evaluate(x, r, unit)
    memory = solver.memory(problem.model) if problem.is_plain else 0
    learns_own = problem.is_plain and solver.learns_own(problem.model)
    search = solver.begin(point, options, memory, learns_own)
    facing = faced(point, problem.box)
    steep = scaled_gradient(facing)
    status = first_of(
        (~feasible, Status.INFEASIBLE),
        (~is_finite(point), Status.NONFINITE_START),
        (_vanishes(r, point.cost), Status.ILL_POSED),
        (is_stationary(point.cost, steep, options.gtol), Status.CONVERGED_GRADIENT),
    )
    one, none = jnp.ones((), jnp.int32), jnp.zeros((), jnp.int32)
    return FitLoop(
        point=point,
        r=None if problem.losses is None else r,
        unit=unit,
        closer=jnp.zeros((), bool),
        factors=_no_factors(problem, solver, facing, search),
        search=search,
        scaled_gradient=steep,
        peak=point.columns,
        start=x,
        since=x,
        known=is_full(point) if problem.is_examined(point) else None,
        rooted=jnp.zeros((), bool),
        status=status,
        claimed=Status.RUNNING.array,
        tried=r,
        gained=jnp.zeros_like(point.cost),
        accepted=jnp.ones((), bool),
        again=jnp.zeros((), bool),
        visits=none,
        stirred=jnp.zeros((), bool),
        level_cost=LevelCost(point.cost, none),
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
    if loop.factors is None:
        return make()
    # At another point, or with another scaling.
    return cond(loop.accepted | loop.again, make, lambda: loop.factors)


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
    one = jax.ShapeDtypeStruct((), x.dtype)
    return products_ahead(functools.partial(_evaluate, problem, solver), x, r, one, largest=most)


def _evaluate(
    problem: Problem, solver: LeastSquaresMethod, x: jax.Array, r: jax.Array, unit: jax.Array
) -> Linearization:
    problem = in_unit(problem, unit)
    known = r if problem.losses is None else None
    return solver.evaluate(problem.model_at(r), x, known)._replace(cost=problem.felt_cost(r))


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
    doubt: Doubt,
    anew: jax.Array,
) -> tuple[FitLoop, jax.Array]:
    """One evaluation: a step, or the test of a claim; says whether the point was accepted.

    What a test leaves of the search and of its status, `settled` says afterwards. With `anew` it
    is the point as it is in another unit.
    """
    point, tests = faced(loop.point, problem.box), loop.claimed != Status.RUNNING.value
    search = cond(
        loop.again,
        lambda: restart(loop.point, loop.search, options, solver.rule),
        lambda: arrive(loop.search, loop.point, options),
    )
    factors = _factors(problem, solver, loop, point, search)
    trial, x = _propose(problem, solver, options, loop._replace(factors=factors, search=search))
    x = lax.select(tests, doubt.aside, x)
    noise = rounding(point, options)
    tried = problem.flat.r(x)
    actual = problem.reduction(loop.point, loop.residuals, tried, x - loop.point.x)
    found = compared(trial, actual, noise)
    promising = lax.select(tests, anew | (actual > doubt.least(noise)), found.improves)
    level = ~tests & ~found.improves & _is_level(problem, point, trial, found)
    here, r, pulled, accepted = _moved(loop, evaluate, x, tried, promising, level)
    actual = lax.select(promising & ~accepted, jnp.asarray(-jnp.inf, actual.dtype), actual)
    found = compared(trial, actual, noise)
    found = found._replace(negligible=found.negligible | level)
    steep, tested = loop.scaled_gradient, problem.is_tested(point)
    status, judged, again = judge(
        point, steep, trial, found, accepted, search, options, solver.rule, tested
    )
    judged = _with_secant_update(judged, loop.point, here, pulled, trial, accepted)
    judged, again = choose(tests, search, judged), again & ~tests
    peak = jnp.maximum(loop.peak, here.columns)
    lost = vanished(here, peak, loop.start)
    slopes = scaled_gradients(faced(here, problem.box))
    stationary = accepted & is_stationary(here.cost, jnp.max(slopes), options.gtol)
    status = lax.select(stationary, Status.CONVERGED_GRADIENT.array, status)
    nears = nears_singular_root(trial.step, loop.since, search.scale, point.cost, here.cost)
    # A step that leaves out a param whose column has vanished says nothing of that.
    parts = jnp.all((point.columns > 0) | (peak <= 0))
    rooted = nears & accepted & (trial.lam == 0) & parts & ~loop.closer
    status = lax.select(rooted, Status.CONVERGED_STEP.array, status)
    level_cost = loop.level_cost.after(here.cost, anew)
    endless = level_cost.lasts & went_far(here, loop.since) & (status == Status.RUNNING.value)
    status = lax.select(endless, Status.NO_EFFECT.array, status)
    fell = accepted & ~anew & fell_away(point.cost, here.cost)
    return loop._replace(
        point=here,
        r=r,
        factors=None if loop.factors is None else factors,
        search=judged,
        # Of the params that have an effect.
        scaled_gradient=jnp.max(lax.select(lost, jnp.zeros_like(slopes), slopes)),
        peak=peak,
        since=lax.select(fell, here.x, loop.since),
        known=None if loop.known is None else loop.known | is_full(here),
        rooted=rooted,
        status=lax.select(tests, loop.claimed, status),
        claimed=Status.RUNNING.array,
        tried=tried,
        gained=actual,
        accepted=accepted,
        again=again,
        level_cost=level_cost,
        steps=loop.steps + jnp.ones((), jnp.int32),
        njev=loop.njev + (promising | level).astype(jnp.int32),
        nhev=loop.nhev + trial.seconds,
    ), accepted


def _is_level(problem: Problem, point: Linearization, trial: Trial, found: Comparison) -> jax.Array:
    """Whether the cost can't judge a step, so that the slope at its end has to.

    Near a minimum the slope has twice as many digits as the cost.

    Reference:
        Hager and Zhang (2005), A new conjugate gradient method with guaranteed descent and an
        efficient line search, section 2.
    """
    if not problem.is_tested(point):
        return jnp.zeros((), bool)
    most = found.noise.change
    drowns = (trial.predicted <= most) & (jnp.abs(found.actual) <= most)
    return drowns & leans(point, found.noise)


def _moved(
    loop: FitLoop,
    evaluate: Evaluate,
    x: jax.Array,
    r: jax.Array,
    promising: jax.Array,
    level: jax.Array,
) -> tuple[Linearization, Any, jax.Array, jax.Array]:
    r"""The point `x`, where it is promising and its Jacobian finite; else the old one stays.

    Where the cost is level its slope decides instead.

    Also :math:`J^T r_+` by the old Jacobian, where curvature is learned from that, and whether the
    point is another: where the old Jacobian is needed no longer, no copy of it is made.
    """
    old, learns = loop.point, bool(loop.search.rows.size)

    def stayed() -> tuple[Linearization, Any, jax.Array, jax.Array]:
        return old, loop.r, jnp.zeros_like(old.gradient), jnp.zeros((), bool)

    def arrived() -> tuple[Linearization, Any, jax.Array, jax.Array]:
        there = evaluate(x, r, loop.unit)
        kept = None if loop.r is None else r
        pulled = row_total(matmul(r, old.J)) if learns else jnp.zeros_like(old.gradient)
        moved = there, kept, pulled, jnp.ones((), bool)
        good = is_finite(there)
        if old.triangle is not None:
            good &= promising | is_steadier(there, old)
        return cond(good, lambda: moved, stayed)

    return cond(promising | level, arrived, stayed)


def _with_secant_update(
    search: TrustRegionState,
    before: Linearization,
    after: Linearization,
    pulled: jax.Array,
    trial: Trial,
    accepted: jax.Array,
) -> TrustRegionState:
    """The search with what an accepted step shows of the curvature."""
    if search.own.size:
        own = own_learned(search.own, before, after, trial.step)
        search = search._replace(own=jnp.where(accepted, own, search.own))
    if not search.rows.size:
        return search
    assert before.triangle is not None
    rows = learned(
        search.rows, before.triangle.L, after.gradient - pulled, trial.step, trial.excess
    )
    rows = jnp.where(accepted, rows, search.rows)
    if search.own.size:  # it is in there already
        rows = jnp.where(jnp.any(search.own[1] > 0), jnp.zeros_like(rows), rows)
    return search._replace(rows=rows)
