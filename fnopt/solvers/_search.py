"""The search: steps until one claims convergence, the test of the claim, and so on to the end.

What examines and tests a claim costs factorisations and evaluations, which a batch would pay in
every step if they stood in the loop of steps.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status
from fnopt.solvers._bounded import faced
from fnopt.solvers._claim import Bends, Doubt, doubt
from fnopt.solvers._evidence import has_moved, outward, rounding
from fnopt.solvers._iteration import Evaluate, FitLoop, advance, moved, slopes, steepest
from fnopt.solvers._linearization import Linearization
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers._options import Options
from fnopt.solvers._problem import Problem
from fnopt.solvers._restart import MOST_RESTARTS
from fnopt.solvers._step import arrive, restart


def searched(
    problem: Problem,
    solver: LeastSquaresMethod,
    options: Options,
    evaluate: Evaluate,
    loop: FitLoop,
    max_steps: int,
    watched: Callable[[FitLoop, jax.Array], FitLoop],
) -> FitLoop:
    """The loop at its end.

    Args:
        problem: The problem.
        solver: The method.
        options: Its numbers.
        evaluate: Evaluates points.
        loop: The loop at its start.
        max_steps: The most steps, tests of claims included.
        watched: Notes a step, from the loop after it and whether it was accepted.
    """

    def step(loop: FitLoop) -> FitLoop:
        return watched(*advance(problem, solver, options, evaluate, loop))

    def test(loop: FitLoop, doubt: Doubt) -> FitLoop:
        return watched(*_tested(problem, solver, options, evaluate, loop, doubt))

    def unfinished(loop: FitLoop) -> jax.Array:
        return (loop.status == Status.RUNNING.value) & (loop.steps < max_steps)

    def unclaimed(loop: FitLoop) -> jax.Array:
        return unfinished(loop) & ~loop.claim.is_raised

    def search(loop: FitLoop) -> FitLoop:
        loop = lax.while_loop(unclaimed, step, loop)
        loop, doubt = _examined(problem, solver, options, loop)
        testing = doubt.exists & unfinished(loop)
        return lax.cond(testing, lambda: test(loop, doubt), lambda: loop)

    return lax.while_loop(unfinished, search, loop)


def _examined(
    problem: Problem, solver: LeastSquaresMethod, options: Options, loop: FitLoop
) -> tuple[FitLoop, Doubt]:
    """The loop that stands still because of a claim: it ends, unless there is a doubt."""
    point = loop.point
    away = outward(point, loop.lost, loop.start)
    if problem.box is not None:
        away = problem.box.nearest(away)
    beyond = has_moved(loop.lost, point.x, loop.start)
    model = solver.model(problem.model)
    bends = Bends(lambda y: model.pulled(y, point.r), options.eps)
    tests = bends if _tests_fully(problem, point) else None
    found = doubt(loop.claim, point, beyond, away, tests, rounding(point, options))
    ends = loop.claim.is_raised & ~found.exists
    status = lax.select(ends, loop.claim.status, loop.status)
    return loop._replace(status=status, njev=loop.njev + found.products), found


def _tested(
    problem: Problem,
    solver: LeastSquaresMethod,
    options: Options,
    evaluate: Evaluate,
    loop: FitLoop,
    doubt: Doubt,
) -> tuple[FitLoop, jax.Array]:
    """The step that tests a claim; a search that claimed too early goes on, or starts again."""
    point = faced(loop.point, problem.box)
    noise = rounding(point, options)
    tried = problem.flat.r(doubt.aside)
    actual = problem.reduction(loop.residuals, tried)
    promising = actual > doubt.least(noise)
    here, r, accepted = moved(loop, evaluate, doubt.aside, tried, promising)
    actual = lax.select(promising & ~accepted, jnp.asarray(-jnp.inf, actual.dtype), actual)
    refuted = doubt.is_refuted(loop.point, tried, noise)
    search = arrive(loop.search, loop.point)
    again = ~doubt.is_beyond & (accepted | refuted) & (search.restarts < MOST_RESTARTS)
    search = lax.cond(again, lambda: restart(here, search, options, solver.rule), lambda: search)
    status = doubt.verdict(loop.claim.status, refuted, actual, loop.point.cost)
    each, peak, lost = slopes(problem, loop, here)
    return loop._replace(
        point=here,
        r=r,
        stale=jnp.ones((), bool),
        search=search,
        scaled_gradient=steepest(each, lost),
        peak=peak,
        lost=lost,
        claim=loop.claim._replace(status=Status.RUNNING.array),
        status=lax.select(again | accepted, Status.RUNNING.array, status),
        steps=loop.steps + jnp.ones((), jnp.int32),
        njev=loop.njev + promising.astype(jnp.int32),
    ), accepted


def _tests_fully(problem: Problem, point: Linearization) -> bool:
    """Whether claims are tested along the model's directions: where it is that of the cost."""
    return problem.box is None and problem.losses is None and point.triangle is not None
