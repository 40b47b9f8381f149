"""The end of a search: what it says, and whether that can be true."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import Status, cond, is_converged
from fnopt.linear import norm
from fnopt.solvers._bounded import faced
from fnopt.solvers._fit_loop import FitLoop
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.convergence._evidence import drowned, fell_from_sight, ran_away, went_far
from fnopt.solvers.convergence._places import without_effect
from fnopt.solvers.convergence._tests import checked_status
from fnopt.solvers.model._base import LinearModel
from fnopt.solvers.model._linearization import Linearization, stacked
from fnopt.solvers.model._scaling import grown_scale, memoryless_scale
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.result._solution import Solution
from fnopt.solvers.trust_region._step import TrustRegionState


def ended(
    problem: Problem, solver: LeastSquaresMethod, loop: FitLoop, seen: Linearization
) -> Solution:
    """The solution, as vectors.

    Args:
        problem: The problem, in the loop's unit.
        solver: The method.
        loop: The loop at its end.
        seen: Its point, as claims are examined.
    """
    point, model = loop.point, solver.model(problem.model)
    # Nor is a claim that has to be tested one of convergence, where no step is left for that.
    finished = loop.status != Status.RUNNING.value
    status = jnp.where(finished, loop.status, Status.MAX_STEPS.array)
    exact = model.exact if problem.is_plain else model
    drowns = drowned(seen, loop.start, loop.search.scale)
    status = jnp.where(is_converged(status) & drowns, Status.STALLED.array, status)
    elsewhere = loop.stirred & jnp.any(without_effect(point, loop.peak, loop.start))
    status = jnp.where(is_converged(status) & elsewhere, Status.NO_EFFECT.array, status)
    # The rank is that of the Jacobian, by its own columns.
    plain = loop.search._replace(
        scale=memoryless_scale(point.columns),
        rows=loop.search.rows[:0],
        own=loop.search.own[:0],
    )
    rank, _ = model.rank(solver.factorise(problem.model, point, plain))
    fell = jnp.any(loop.since != loop.start)
    unseen = fell & fell_from_sight(point, loop.start, loop.peak, rank) & ~loop.rooted
    status = jnp.where(is_converged(status) & unseen, Status.STALLED.array, status)
    # What ran away was steep once; few fits have gone so far that it has to be looked for.
    scale = grown_scale(loop.search.steepest, point.columns)
    still = is_converged(status) | (status == Status.STALLED.value)
    far = still & (point.cost > 0) & went_far(point, loop.since)
    away = cond(
        far,
        lambda: _ran_away(exact, seen, loop, plain, scale),
        lambda: jnp.zeros((), bool),
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
    exact: LinearModel,
    point: Linearization,
    loop: FitLoop,
    plain: TrustRegionState,
    scale: jax.Array,
) -> jax.Array:
    """Whether params went to infinity, as far as the factors tell."""
    _, unseen = exact.rank(exact.factorise(point, scale, plain.rows))
    if unseen is None:
        return jnp.zeros((), bool)
    own = loop.search.own[1] if loop.search.own.size else None
    return ran_away(point, loop.since, scale, unseen, own)
