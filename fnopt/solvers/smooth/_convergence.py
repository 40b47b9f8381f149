"""Convergence tests of `minimize`, and the statuses that follow from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.solvers.convergence._tests import first_of
from fnopt.solvers.smooth._method import BLIND, FAILED, MOVED, Evaluation, StepPlan

_FLAT_STEPS = 3  # in a row, where the gradient is small only beside something else


class StoppingTolerances(NamedTuple):
    """Numbers to stop at, and the units that the iteration works in."""

    ftol: jax.Array  # of the value
    least: jax.Array  # of a value of 1, where the value itself is smaller
    unseen: jax.Array  # the part of a value that rounding hides
    xtol: jax.Array
    gtol: jax.Array
    strict: jax.Array  # the part of the largest gradient that may be rounding
    unit: jax.Array  # what a gradient of 1 is to the user
    worth: jax.Array  # what a value of 1 is to the user


def tolerances(
    dtype: Any, eps: float, ftol: Any, xtol: Any, gtol: Any, unit: jax.Array, worth: jax.Array
) -> StoppingTolerances:
    """The tolerances as arrays, with the defaults filled in."""

    def number(x: Any, default: float) -> jax.Array:
        return jnp.asarray(default if x is None else x, dtype)

    return StoppingTolerances(
        number(ftol, max(2.2e-9, 16 * eps)),
        number(ftol, 2.2e-9),
        number(ftol, 16 * eps),
        number(xtol, 4 * eps),
        number(gtol, max(1e-5, eps**0.5)),
        jnp.minimum(0.1 * number(gtol, 1), jnp.asarray(max(1e-12, 80 * eps), dtype)),
        unit,
        worth,
    )


def largest(v: jax.Array) -> jax.Array:
    """The largest magnitude of a vector; 0 for an empty one."""
    return jnp.max(jnp.abs(v), initial=0)


def reference(point: Evaluation, steepest: jax.Array, promising: Any = False) -> jax.Array:
    r"""The size of a gradient that matters: the largest so far, or :math:`|f| / \|x\|_\infty`.

    The latter not while the next step promises more than nothing: on a long way the params are
    no measure of what is to come.
    """
    size = jnp.where(promising, jnp.zeros_like(steepest), largest(point.x))
    typical = jnp.abs(point.value) / jnp.where(size > 0, size, jnp.ones_like(size))
    return jnp.maximum(steepest, jnp.where(size > 0, typical, jnp.zeros_like(typical)))


def is_stationary(gnorm: jax.Array, scale: jax.Array, tol: StoppingTolerances) -> jax.Array:
    r"""Whether the gradient is small, to the user and for this problem.

    .. math:: \|g\|_\infty \le \epsilon_g \quad\text{and}\quad \|g\|_\infty \le \epsilon_g\, G

    with the size of a gradient that matters, :math:`G`. A gradient that is small only because the
    params or the function have large units passes the first test, not the second.
    """
    return (gnorm <= 0) | ((gnorm * tol.unit <= tol.gtol) & (gnorm <= tol.gtol * scale))


class SearchProgress(NamedTuple):
    """What convergence is judged by, besides the last two points."""

    first: jax.Array  # the value at the start
    steepest: jax.Array  # the largest entry of a gradient so far
    flat_steps: jax.Array  # int32, steps in a row that gained and promised nothing
    tested: jax.Array  # the value where the method last began anew; infinite before


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
    gnorm: jax.Array,
    progress: SearchProgress,
    tol: StoppingTolerances,
) -> Judgement:
    r"""Whether an evaluation ends the iteration, and why.

    Small, of a value, is :math:`\epsilon_f \max(|f|, \min(1, f_0 - f))`, with 2.2e-9 for
    :math:`\epsilon_f` of the second if nothing was given. However little is predicted
    and gained, with a large gradient nothing is claimed: it may be a flat place of a valley. Not
    large is one that is small to the user. One that is only a tiny part of the largest on the way
    may be all that is left of a gentle direction beside steep ones, and one that is small beside
    the value may be all that a large offset of the value lets through: then three steps in a row
    must gain so little, beside the value no more than its rounding, and a method that forgot what
    it had learned must not gain more.
    """
    moved, failed = verdict == MOVED, verdict == FAILED
    over = failed | (verdict == BLIND)
    value = jnp.abs(after.value)
    unseen = jnp.minimum(1 / tol.worth, progress.first - after.value)
    fine = jnp.maximum(tol.ftol * value, tol.least * unseen)
    # Infinite where it isn't known, zero where there is no step at all.
    promising = (plan.predicted <= 0) | ((plan.predicted > fine) & (plan.predicted < jnp.inf))
    scale = reference(after, progress.steepest, promising)
    loose = jnp.clip(jnp.asarray(1e-3, gnorm.dtype), tol.gtol, 100 * tol.gtol)
    gentle = gnorm <= loose * scale
    small = gentle & (gnorm * tol.unit <= loose)
    tiny = gentle & (small | (gnorm <= tol.strict * progress.steepest))
    beside_the_value = gentle & (gnorm * tol.unit <= loose * value * tol.worth)
    gained = before.value - after.value

    def nothing(above: jax.Array) -> jax.Array:
        return (plan.predicted <= above) & (jnp.abs(gained) <= above)

    is_flat = (tiny & nothing(fine)) | (beside_the_value & nothing(tol.unseen * value))
    count = jnp.where(is_flat, progress.flat_steps + 1, jnp.zeros_like(progress.flat_steps))
    flat_steps = jnp.where(moved, count, progress.flat_steps)
    sure = small | (flat_steps >= _FLAT_STEPS)
    unpromising = (plan.predicted <= fine) & (tiny | beside_the_value)
    short = jnp.all(jnp.abs(plan.step) <= tol.xtol * jnp.abs(after.x)) & (tiny | beside_the_value)
    stationary = is_stationary(gnorm, scale, tol)
    better = progress.tested - after.value > _FLAT_STEPS * fine
    doubtful = moved & sure & ~small & ~stationary & better
    status = first_of(
        ((moved | over) & stationary, Status.CONVERGED_GRADIENT),
        (doubtful, Status.RUNNING),
        ((moved & is_flat & sure) | (failed & unpromising), Status.CONVERGED_COST),
        (((moved & sure) | failed) & short, Status.CONVERGED_STEP),
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
