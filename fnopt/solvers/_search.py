"""The search: steps until one claims convergence, the test of the claim, and so on to the end.

What examines a claim costs factorisations and Jacobians, which a batch would pay in every step if
it stood in the loop of steps. The test is an evaluation like that of a step, and is made there:
the program then holds one copy of the residuals and of their Jacobian for both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, cond, is_converged, while_loop
from fnopt.solvers._bounded import faced
from fnopt.solvers._examination import examined, is_tested_fully
from fnopt.solvers._fit_loop import Evaluate, FitLoop
from fnopt.solvers._iteration import advance
from fnopt.solvers._method import LeastSquaresMethod
from fnopt.solvers.convergence._claim import Doubt, no_doubt
from fnopt.solvers.convergence._noise import rounding
from fnopt.solvers.convergence._options import Options
from fnopt.solvers.convergence._places import is_other, without_effect
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.problem._units import in_unit, next_unit
from fnopt.solvers.trust_region._restart import MOST_RESTARTS


def searched(
    problem: Problem,
    solver: LeastSquaresMethod,
    options: Options,
    evaluate: Evaluate,
    loop: FitLoop,
    max_steps: int,
    watched: Callable[[Problem, FitLoop, jax.Array], FitLoop],
) -> FitLoop:
    """The loop at its end.

    Args:
        problem: The problem, in the user's unit.
        solver: The method.
        options: Its numbers.
        evaluate: Evaluates points.
        loop: The loop at its start.
        max_steps: The most steps, tests of claims included.
        watched: Notes a step, from the problem in the loop's unit, the loop after it and whether
            it was accepted.
    """

    def in_time(loop: FitLoop) -> jax.Array:
        return loop.steps < max_steps

    def running(loop: FitLoop) -> jax.Array:
        return in_time(loop) & (loop.status == Status.RUNNING.value)

    def claims(loop: FitLoop) -> jax.Array:
        return (is_converged(loop.status) & (loop.point.cost > 0) & ~loop.rooted) | strays(loop)

    def strays(loop: FitLoop) -> jax.Array:
        # No step leads from where a param all but underflows, but other places may.
        dead = without_effect(loop.point, loop.peak, loop.start)
        return (loop.status == Status.STALLED.value) & jnp.any(dead)

    def unfinished(at: tuple[FitLoop, jax.Array]) -> jax.Array:
        loop, settled = at
        # A claim of the last step is examined, too, though none is left to test it.
        doubtful = claims(loop) | _in_next_unit(problem, loop, in_time(loop))[1]
        return running(loop) | (doubtful & ~settled)

    def search(at: tuple[FitLoop, jax.Array]) -> tuple[FitLoop, jax.Array]:
        loop, anew = _in_next_unit(problem, at[0], in_time(at[0]))
        here = in_unit(problem, loop.unit)
        claimed, fully = claims(loop) & ~anew, is_tested_fully(here, solver)
        found = _if_any(
            claimed,
            lambda: examined(here, solver, options, loop),
            no_doubt(loop.point, fully),
        )
        found = found._replace(
            exists=(found.exists & (found.is_place | is_converged(loop.status))) | anew
        )
        none = Status.RUNNING.array
        left = lax.select(found.drifts & ~anew, Status.NO_EFFECT.array, loop.status)
        loop = loop._replace(
            status=lax.select(found.exists, none, left),
            claimed=lax.select(found.exists, loop.status, none),
            njev=loop.njev + found.products,
        )

        def step(loop: FitLoop) -> FitLoop:
            return watched(here, *advance(here, solver, options, evaluate, loop, found, anew))

        after = while_loop(running, step, loop)
        tested = found.exists & (after.steps > loop.steps)
        strict = solver.model(here.model).cuts_short
        settled = _settled(here, options, found, loop.claimed, tested, after, strict)
        # The point stays as it was where it can't be evaluated in the other unit.
        kept = anew & ~after.accepted
        unit = lax.select(kept, at[0].unit, after.unit)
        settled = settled._replace(unit=unit, peak=lax.select(kept, at[0].peak, after.peak))
        return settled, (tested & ~found.is_place) | (claimed & ~found.exists)

    return while_loop(unfinished, search, (loop, jnp.zeros((), bool)))[0]


def _in_next_unit(problem: Problem, loop: FitLoop, in_time: jax.Array) -> tuple[FitLoop, jax.Array]:
    """The loop whose point is evaluated in another unit next, and whether there is need for it."""
    ends = (is_converged(loop.status) | (loop.status == Status.STALLED.value)) & ~loop.rooted
    point = loop.point
    unit, finer = next_unit(in_unit(problem, loop.unit), point.cost, loop.residuals, loop.unit)
    needed = ends & finer & in_time
    unit = lax.select(needed, unit, loop.unit)
    peak = loop.peak * (unit / loop.unit)
    restarts = lax.select(needed, jnp.zeros_like(loop.search.restarts), loop.search.restarts)
    search = loop.search._replace(restarts=restarts)
    closer = loop.closer | needed
    return loop._replace(unit=unit, closer=closer, peak=peak, search=search), needed


def _if_any(needed: jax.Array, make: Callable[[], Any], otherwise: Any) -> Any:
    """What `make` returns where it is needed: a `lax.cond` that a batch skips if none needs it."""
    first = (needed, otherwise)
    return while_loop(lambda at: at[0], lambda _: (jnp.zeros_like(needed), make()), first)[1]


def _settled(
    problem: Problem,
    options: Options,
    doubt: Doubt,
    claimed: jax.Array,
    tested: jax.Array,
    loop: FitLoop,
    strict: bool,
) -> FitLoop:
    """The loop after the test of a claim: the end, or more steps, or a new beginning.

    Args:
        problem: The problem.
        options: The numbers of the method.
        doubt: What was to be tested.
        claimed: The status that was claimed.
        tested: Whether that was done.
        loop: The loop.
        strict: Whether steps were cut short: see :func:`is_refuted`.
    """

    def settled() -> tuple[jax.Array, jax.Array]:
        # Where the test was accepted, and the point is another, the rest is of no account.
        point, accepted = loop.point, loop.accepted
        noise = rounding(faced(point, problem.box), options)
        refuted = doubt.is_refuted(point, loop.tried, noise, strict)
        again = ~doubt.is_beyond & (accepted | refuted) & (loop.search.restarts < MOST_RESTARTS)
        status = doubt.verdict(claimed, refuted, loop.gained, point.cost)
        status = lax.select(again | accepted, Status.RUNNING.array, status)
        stopped = loop.status != claimed  # by the callback
        return lax.select(stopped, loop.status, status), again

    status, again = cond(tested, settled, lambda: (loop.status, loop.again))
    came = tested & doubt.is_place
    # Places come to an end, and from each of them steps begin as from a start.
    restarts = lax.select(came, jnp.zeros_like(loop.search.restarts), loop.search.restarts)
    return loop._replace(
        status=status,
        again=again,
        search=loop.search._replace(restarts=restarts),
        visits=loop.visits + came.astype(jnp.int32),
        stirred=loop.stirred | (came & is_other(loop.gained, loop.point.cost)),
    )
