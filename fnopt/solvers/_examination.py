"""The examination of a claim: what there is to doubt of a point that is called a minimum."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import cond, matmul, row_total
from fnopt.residuals import linearise
from fnopt.solvers._fit_loop import FitLoop
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.convergence._claim import CurvatureProducts, Doubt, doubt
from fnopt.solvers.convergence._evidence import drift, has_moved, held_up, near, outward, vanished
from fnopt.solvers.convergence._noise import rounding
from fnopt.solvers.convergence._options import Options
from fnopt.solvers.convergence._places import place, without_effect
from fnopt.solvers.convergence._probe import Steps
from fnopt.solvers.model._base import LinearModel
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.model._scaling import memoryless_scale
from fnopt.solvers.problem._problem import Problem


def examined(
    problem: Problem, solver: LeastSquaresMethod, options: Options, loop: FitLoop
) -> Doubt:
    """The doubt of a claim."""
    point, noise = loop.point, rounding(loop.point, options)
    model = solver.model(problem.model)
    seen = model.examined(point) if problem.is_plain else point
    lost = vanished(seen, loop.peak, loop.start)
    several = jnp.sum(lost & (point.x != loop.start)) > 1
    if point.x.size > 1:
        loose = cond(several, lambda: _loose(problem, model, loop, lost), lambda: lost)
        # Where the cost holds up every one, by slopes, it has to rise with all of them together.
        lost = lax.select(jnp.any(loose), loose, lost)
    beyond, away = has_moved(lost, point.x, loop.start), _away(problem, loop, lost)
    dead = without_effect(point, loop.peak, loop.start)
    there, is_place = place(point, dead, loop.visits, noise)
    away = lax.select(is_place, _inside(problem, there), away)
    left = _left_out(problem, model, point)
    products = CurvatureProducts(left, options.eps, problem.is_plain)
    tests = products if problem.is_examined(seen) else None
    steps = _full_steps(model, point) if problem.is_plain and model.cuts_short else None
    rho = noise.residual
    valley = None if loop.known is None else drift(seen, loop.since, loop.known, rho)
    found = doubt(seen, valley, beyond, is_place, away, tests, steps, noise)
    anew = jnp.asarray(seen is not point, jnp.int32)
    return found._replace(products=found.products + 2 * several.astype(jnp.int32) + anew)


def _left_out(
    problem: Problem, model: LinearModel, point: Linearization
) -> Callable[[jax.Array], jax.Array]:
    r"""The gradient less what the linear model makes of it, whose slope is what that leaves out.

    .. math:: y \mapsto J(y)^T r, \qquad\text{with losses}\quad
        y \mapsto \nabla f(y) - \hat J^T \hat J\, (y - x)
    """
    if problem.losses is None:
        return lambda y: model.rmv(y, point.r)

    def left_out(y: jax.Array) -> jax.Array:
        r, J = linearise(problem.model, y, model.mode, model.chunk_size)
        return row_total(matmul(r, J) - matmul(matmul(point.J, y - point.x), point.J))

    return left_out


def is_tested_fully(problem: Problem, solver: LeastSquaresMethod) -> bool:
    """Whether claims are tested along directions of the linear model."""
    model = solver.model(problem.model)
    return problem.is_plain and (model.exact.takes_rows or model.cuts_short)


def _away(problem: Problem, loop: FitLoop, lost: jax.Array) -> jax.Array:
    """The point with the params that lost their effect further out."""
    return _inside(problem, outward(loop.point, lost, loop.start))


def _inside(problem: Problem, x: jax.Array) -> jax.Array:
    """The point within bounds that is nearest to another."""
    return x if problem.box is None else problem.box.nearest(x)


def _loose(problem: Problem, model: LinearModel, loop: FitLoop, lost: jax.Array) -> jax.Array:
    """Which of the params that lost their effect the cost doesn't hold up, as a mask of `[n]`."""
    point = loop.point

    def held(away: jax.Array) -> jax.Array:
        return held_up(point, away, model.rmv(away, point.r))

    away = _away(problem, loop, lost)
    # One copy of the Jacobian's program for both.
    return lost & ~jnp.any(lax.map(held, jnp.stack([away, near(point, away)])), axis=0)


def _full_steps(model: LinearModel, point: Linearization) -> Steps:
    """The steps of the linear model to all digits."""
    scale = memoryless_scale(point.columns)
    whole = model.system(point, (), scale, jnp.zeros_like(point.cost))
    system = model.finished(whole, jnp.ones((), bool))

    def damped(lam: jax.Array) -> tuple[jax.Array, jax.Array]:
        step = system.damped(lam)
        return step.p, jnp.sqrt(step.model_norm)

    return Steps(damped, scale, model.products(point)[0])
