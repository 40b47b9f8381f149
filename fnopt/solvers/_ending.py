"""The end of a search: what it says, and whether that can be true."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import Status, cond, is_converged
from fnopt.linear import norm
from fnopt.solvers._bounded import faced
from fnopt.solvers._iteration import FitLoop
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.convergence._evidence import drowned, ran_away, went_far
from fnopt.solvers.convergence._tests import checked_status
from fnopt.solvers.model._linearization import stacked
from fnopt.solvers.model._scaling import grown_scale, memoryless_scale
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.result._solution import Solution
from fnopt.solvers.trust_region._step import TrustRegionState


def ended(problem: Problem, solver: LeastSquaresMethod, loop: FitLoop) -> Solution:
    """The solution, as vectors."""
    point, model = loop.point, solver.model(problem.model)
    finished = loop.status != Status.RUNNING.value
    status = jnp.where(finished, loop.status, Status.MAX_STEPS.array)
    status = jnp.where(~finished & is_converged(loop.claimed), loop.claimed, status)
    drowns = drowned(point, loop.start, loop.search.scale)
    status = jnp.where(is_converged(status) & drowns, Status.STALLED.array, status)
    elsewhere = loop.stirred & jnp.any(loop.peak <= 0)
    status = jnp.where(is_converged(status) & elsewhere, Status.NO_EFFECT.array, status)
    # The rank is that of the Jacobian, by its own columns.
    plain = loop.search._replace(
        scale=memoryless_scale(point.columns),
        rows=loop.search.rows[:0],
        own=loop.search.own[:0],
    )
    rank, _ = model.rank(solver.factorise(problem.model, point, plain))
    # What ran away was steep once; few fits have gone so far that it has to be looked for.
    scale = grown_scale(loop.search.steepest, point.columns)
    still = is_converged(status) | (status == Status.STALLED.value)
    far = still & (point.cost > 0) & went_far(point, loop.start)
    away = cond(
        far, lambda: _ran_away(problem, solver, loop, plain, scale), lambda: jnp.zeros((), bool)
    )
    status = jnp.where(away, Status.NO_EFFECT.array, status)
    return Solution(
        params=point.x,
        cost=problem.whole_cost(point, loop.residuals),
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
    if unseen is None:
        return jnp.zeros((), bool)
    own = loop.search.own[1] if loop.search.own.size else None
    return ran_away(loop.point, loop.start, scale, unseen, own)
