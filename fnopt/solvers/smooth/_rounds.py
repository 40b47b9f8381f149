"""Rounds of `minimize`: once more from its end, in the units that the way showed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, is_converged, while_loop
from fnopt.solvers._stopping import first_of
from fnopt.solvers.result._solution import empty_history
from fnopt.solvers.smooth._flatness import is_steep, largest, starts_stationary
from fnopt.solvers.smooth._iteration import Counts, RoundEnd, Watch, run_round
from fnopt.solvers.smooth._method import Evaluation, MinimizeMethod, SmoothObjective
from fnopt.solvers.smooth._progress import VANISHED, SearchProgress
from fnopt.solvers.smooth._tolerances import StoppingTolerances, tolerances
from fnopt.solvers.smooth._units import Units, units_of, units_of_the_way

# What the largest slope on the way would have gained, and the one of the end would still: at a
# minimum at most this part of the value.
_LEFT = 1e-2
_ROUNDS = 3
_FAR = 1e17  # times the value, or the user's 1: a fall that is no scale
_NOTHING = 1e-6  # of all that was gained, or of the value: a round that gained no more


class Rounds(NamedTuple):
    """What is known after some rounds, in the user's units."""

    point: Evaluation
    gnorm: jax.Array  # the largest entry of the gradient, without what bounds hold
    steepest: jax.Array  # [n], the largest of each entry of the gradient so far
    units: Units  # of the next round
    first: jax.Array  # the value that falls are counted from
    afar: jax.Array  # whether the round before came from so far that its claim is none
    status: jax.Array
    counts: Counts
    done: jax.Array  # int32, rounds
    again: jax.Array  # whether there is another one


def iterated(
    problem: SmoothObjective,
    method: MinimizeMethod,
    x: jax.Array,
    eps: float,
    limits: tuple[Any, Any, Any],
    max_steps: int,
    history: bool,
    watch: Watch | None,
) -> tuple[Rounds, Evaluation]:
    r"""Runs a method to its end; the point comes back in the user's units.

    Where the end leaves an entry of the gradient that is no small part of its largest, params may
    have units that the start didn't show. The way shows them: by :math:`d_i = \Delta / \max_k
    |g_i^{(k)}|` a param would have to change for all that was gained, :math:`\Delta`. In these
    units the method begins anew; a claim stands if that gains nothing. So it begins anew where a
    search failed on a steep slope, by what it had learned far away, and, as if its end were the
    start, where the value fell so far that the fall is no scale.
    """
    feasible = jnp.ones((), bool) if problem.box is None else problem.box.is_feasible()
    x = jnp.where(feasible, problem.inside(x), x)
    start = problem.at(x)
    units = units_of(method, problem, x, start)

    def tolerated(units: Units) -> StoppingTolerances:
        unit = units.gradient if limits[2] is None else units.value / units.x
        return tolerances(x.dtype, eps, *limits, unit, units.value, units.reach)

    def next_round(rounds: Rounds) -> Rounds:
        units, tol = rounds.units, tolerated(rounds.units)
        inside = units.scaled(problem) if method.scale_free else problem
        steepest = units.of_gradient(rounds.steepest)
        none = jnp.zeros_like(start.value)
        far, flat = jnp.full_like(none, jnp.inf), jnp.zeros((), jnp.int32)
        progress = SearchProgress(rounds.first / units.value, steepest, none, flat, far)
        point = units.of(rounds.point)
        pull = tol.felt(inside.projected_gradient(point), point.x)
        done = starts_stationary(point, pull, tol) & (rounds.done == 0)
        status = first_of((done, Status.CONVERGED_GRADIENT))
        status = jnp.where(rounds.again, status, rounds.status)
        end = run_round(
            inside, method, point, status, progress, rounds.counts, tol, units, max_steps, watch
        )
        point = units.back(end.point)
        fresh = units_of(method, problem, point.x, point)
        return _judged(rounds, end, point, fresh, 10 * tol.gtol, max_steps)

    status = first_of((~feasible, Status.INFEASIBLE), (~start.is_finite(), Status.NONFINITE_START))
    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32)
    counts = Counts(zero, one, empty_history(max_steps, x.dtype) if history else None)
    slope = start.gradient
    again, no = status == Status.RUNNING.value, jnp.zeros((), bool)
    rounds = Rounds(
        start, largest(slope), jnp.abs(slope), units, start.value, no, status, counts, zero, again
    )
    if limits[2] is None and method.scale_free and problem.projection is None:
        rounds = while_loop(lambda rounds: rounds.again, next_round, rounds)
    else:
        rounds = next_round(rounds)
    return rounds, rounds.point._replace(gradient=rounds.gnorm)


def _judged(
    before: Rounds,
    end: RoundEnd,
    point: Evaluation,
    fresh: Units,
    least: jax.Array,
    max_steps: int,
) -> Rounds:
    """What a round has shown, and what the next one begins with.

    Args:
        before: What was known.
        end: The end of the round, in its units.
        point: The same in the user's units.
        fresh: The units of a search that starts there.
        least: The smallest part of a gradient that is one.
        max_steps: The most steps of all rounds.
    """
    pull = before.units.gradient_back(end.pull)
    steepest = before.units.gradient_back(end.progress.steepest)
    value = jnp.abs(point.value)
    worth = jnp.maximum(before.first - point.value, value)
    # A fall that says nothing of what is small there: the search begins anew as from a start.
    far = before.first - point.value > _FAR * jnp.maximum(value, 1)
    part = jnp.clip(_LEFT * value / jnp.where(worth > 0, worth, 1), least, _LEFT)
    uneven = jnp.any(jnp.abs(pull) > part * steepest) & (end.counts.steps > 0)
    lost = (end.status == Status.STALLED.value) & is_steep(pull, point)
    in_vain = (before.done > 0) & (before.point.value - point.value <= _NOTHING * worth)
    # Of what grew below zero it is none of the fall that says how much it gained.
    in_vain &= (value <= jnp.abs(before.point.value)) | (value <= VANISHED)
    claims = is_converged(end.status)
    stopped = (end.status == Status.STOPPED.value) | (end.status == Status.UNBOUNDED.value)
    stands = (in_vain | (value <= VANISHED)) & (before.done > 0) & ~before.afar & ~stopped
    status = jnp.where(stands & ~claims, before.status, end.status)
    doubtful = (claims | (status == Status.STALLED.value)) & ~in_vain & (uneven | lost | far)
    done = before.done + jnp.ones((), jnp.int32)
    more = (done < _ROUNDS) & (end.counts.steps < max_steps)
    ours = units_of_the_way(steepest, worth, before.units)
    return Rounds(
        point=point,
        gnorm=largest(pull),
        steepest=jnp.where(far, jnp.abs(point.gradient), steepest),
        units=jax.tree.map(lambda a, b: jnp.where(far, a, b), fresh, ours),
        first=jnp.where(far, point.value, before.first),
        # What is nothing to the user may be a root: unless more can be gained, the claim stands.
        afar=far & (value > VANISHED),
        status=jnp.where(doubtful & ~more, Status.STALLED.array, status),
        counts=end.counts,
        done=done,
        again=doubtful & more,
    )
