"""Convergence tests of `minimize`, and the statuses that follow from them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.solvers._stopping import first_of
from fnopt.solvers.smooth._flatness import flatness_of, largest
from fnopt.solvers.smooth._method import BLIND, FAILED, MOVED, Evaluation, StepPlan
from fnopt.solvers.smooth._progress import SearchProgress, sizes_of
from fnopt.solvers.smooth._tolerances import StoppingTolerances

_FLAT_STEPS = 3  # in a row, where the gradient is small only beside something else


class Judgement(NamedTuple):
    """The status after an evaluation, and whether it is put off until the method began anew."""

    status: jax.Array
    progress: SearchProgress
    doubtful: jax.Array


def judged(
    verdict: jax.Array,
    before: Evaluation,
    after: Evaluation,
    plan: StepPlan,
    pull: jax.Array,
    progress: SearchProgress,
    tol: StoppingTolerances,
) -> Judgement:
    r"""Whether an evaluation ends the iteration, and why.

    A small gradient is no claim while the next step promises :math:`\epsilon_g` of the value, or of
    what was gained lately. However little is predicted and gained, with a large gradient nothing is
    claimed: it may be a flat place of a valley. Not large is one that is small to the user. One
    that is only a tiny part of the largest on the way may be all that is left of a gentle direction
    beside steep ones, and one that is small beside the value may be all that a large offset of the
    value lets through: then three steps in a row must gain so little, beside the value no more than
    its rounding, and a method that forgot what it had learned must not gain more. Three steps it
    takes as well where what they gain is much of what is left. And as long as steps gain anything
    nothing is claimed where :math:`\max_i |g_i x_i|` is more than a hundredth of the value; where a
    search fails, more than a tenth.
    """
    moved, failed = verdict == MOVED, verdict == FAILED
    over = failed | (verdict == BLIND)
    sizes = sizes_of(after, progress, tol, over)
    value, fine = sizes.value, sizes.fine
    # Infinite where it isn't known, zero where there is no step at all.
    promising = (plan.predicted <= 0) | ((plan.predicted > fine) & (plan.predicted < jnp.inf))
    slope = flatness_of(after, pull, largest(progress.steepest), promising, sizes, tol)
    more = jnp.maximum(plan.predicted, jnp.abs(before.value - after.value))
    is_flat = (slope.tiny & (more <= fine)) | (
        slope.beside_the_value & (more <= tol.unseen * value)
    )
    count = jnp.where(is_flat, progress.flat_steps + 1, jnp.zeros_like(progress.flat_steps))
    flat_steps = jnp.where(moved, count, progress.flat_steps)
    # A part of nearly nothing may be much of what is left.
    plainly = sizes.vanished | (more <= tol.gtol * value)
    sure = (slope.small & plainly) | (flat_steps >= _FLAT_STEPS)
    low = slope.tiny | slope.beside_the_value
    short = jnp.all(jnp.abs(plan.step) <= tol.xtol * jnp.abs(after.x)) & low
    stationary, gentle, lost = slope.stationary, slope.gentle, over & slope.steep
    if tol.given:
        gentle, lost = jnp.ones_like(gentle), jnp.zeros_like(lost)
    else:
        promise = jnp.maximum(tol.gtol * jnp.maximum(value, sizes.lately), tol.least * sizes.one)
        stationary &= over | (plan.predicted <= promise) | (plan.predicted == jnp.inf)
    better = progress.tested - after.value > _FLAT_STEPS * fine
    ends = moved & gentle
    doubtful = ends & sure & ~slope.small & ~stationary & better
    status = first_of(
        (lost, Status.STALLED),
        ((ends | over) & stationary, Status.CONVERGED_GRADIENT),
        (doubtful, Status.RUNNING),
        (
            (ends & is_flat & sure) | (failed & (plan.predicted <= fine) & low),
            Status.CONVERGED_COST,
        ),
        (((ends & sure) | failed) & short, Status.CONVERGED_STEP),
        (over, Status.STALLED),
    )
    progress = progress._replace(
        flat_steps=jnp.where(doubtful, jnp.zeros_like(flat_steps), flat_steps),
        tested=jnp.where(doubtful, after.value, progress.tested),
    )
    return Judgement(status, progress, doubtful)


def has_no_bottom(start: Evaluation, end: Evaluation, span: float = 0.0) -> jax.Array:
    """Whether the value fell by ten orders more than the start suggests, and is as steep as there.

    Args:
        start: The first point, in units of which it knows.
        end: The last one.
        span: How many times as far away as the start the end must be.
    """
    size, slope = jnp.maximum(largest(start.x), 1), largest(start.gradient)
    fall = start.value - end.value
    steep = largest(end.gradient) >= slope
    fallen = fall > 1e10 * (jnp.abs(start.value) + slope * size)
    return fallen & steep & (largest(end.x) >= span * size)
