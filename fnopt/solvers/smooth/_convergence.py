"""Convergence tests of `minimize`, and the statuses that follow from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.solvers.convergence._tests import first_of
from fnopt.solvers.smooth._method import BLIND, FAILED, MOVED, Evaluation, StepPlan

# How much of the user's 1 a value has, or loses, if that 1 means something; and which part of what
# was lost stands for it if it doesn't.
_ORDINARY = 1e-6, 1e17
_OF_FALL = 1e-10, 1e-4
_VANISHED = 2e-7  # of that 1: a value that is nothing itself
_FLAT_STEPS = 3  # in a row, where the gradient is small only beside something else


class StoppingTolerances(NamedTuple):
    """Numbers to stop at, and the units that the iteration works in."""

    ftol: jax.Array  # of the value
    least: jax.Array  # of a value of 1, where the value itself is smaller
    unseen: jax.Array  # the part of a value that rounding hides
    xtol: jax.Array
    gtol: jax.Array
    given: bool  # whether gtol is the user's own number, and the last word
    strict: jax.Array  # the part of the largest gradient that may be rounding
    unit: jax.Array  # what a gradient of 1 is to the user; by entry, if gtol was given
    worth: jax.Array  # what a value of 1 is to the user
    reach: Any = 1  # how many of its own units are the common one, of every param

    def felt(self, pull: jax.Array, x: jax.Array) -> jax.Array:
        """The gradient by the size of every param, where that has grown beyond its unit."""
        return pull if self.given else pull * jnp.clip(jnp.abs(x), 1, self.reach)


def tolerances(
    dtype: Any,
    eps: float,
    ftol: Any,
    xtol: Any,
    gtol: Any,
    unit: jax.Array,
    worth: jax.Array,
    reach: Any = 1,
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
        gtol is not None,
        jnp.minimum(0.1 * number(gtol, 1), jnp.asarray(max(1e-12, 80 * eps), dtype)),
        unit,
        worth,
        reach,
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


def is_stationary(
    pull: jax.Array, scale: jax.Array, one: jax.Array, tol: StoppingTolerances
) -> jax.Array:
    r"""Whether the gradient is small: to the user, if he said what that is, else for this problem.

    .. math:: \|g\|_\infty \le \epsilon_g\, o, \qquad\text{by default also}\quad
              \|g\|_\infty \le \epsilon_g\, G

    with the unit of the value, :math:`o`, and the size of a gradient that matters, :math:`G`. A
    gradient that is small only because the params have large units passes the first test, not the
    second.
    """
    gnorm, small = largest(pull), largest(pull * tol.unit) <= tol.gtol * one
    if not tol.given:
        small &= gnorm <= tol.gtol * scale
    return small | (gnorm <= 0)


def starts_stationary(point: Evaluation, pull: jax.Array, tol: StoppingTolerances) -> jax.Array:
    """Whether nothing is to be done: a gradient that is tiny beside the value over the params.

    Smaller than it has to be on the way: nothing else is known yet of the problem's units.
    """
    tiny = jnp.asarray(max(1e-8, 10 * float(jnp.finfo(pull.dtype).eps)), pull.dtype)
    scale = reference(point, jnp.zeros_like(point.value)) * (tiny / tol.gtol)
    return is_stationary(pull, scale, jnp.ones_like(scale), tol)


class SearchProgress(NamedTuple):
    """What convergence is judged by, besides the last two points."""

    first: jax.Array  # the value at the start
    steepest: jax.Array  # the largest entry of a gradient so far
    recent: jax.Array  # the largest fall of the value, halved with every step since
    flat_steps: jax.Array  # int32, steps in a row that gained and promised nothing
    tested: jax.Array  # the value where the method last began anew; infinite before

    def after(self, moved: jax.Array, fall: jax.Array, here: Evaluation) -> SearchProgress:
        """The progress with a step more."""
        recent = jnp.maximum(fall, self.recent / 2)
        steepest = jnp.maximum(self.steepest, largest(here.gradient))
        return self._replace(
            steepest=jnp.where(moved, steepest, self.steepest),
            recent=jnp.where(moved, recent, self.recent),
        )

    def one(self, value: jax.Array, worth: jax.Array, over: Any = False) -> jax.Array:
        """What is called 1 of the value: the user's 1, where that has to do with this problem.

        Else the value itself, or what the last steps gained, within parts of the whole fall; and
        all of these where nothing more can be gained.
        """
        fall, size = self.first - value, jnp.abs(value)
        most = jnp.maximum(fall, size) * worth
        own = (most > _ORDINARY[0]) & (most < _ORDINARY[1])
        lately = jnp.maximum(size, self.recent)
        part = jnp.clip(lately, _OF_FALL[0] * fall, _OF_FALL[1] * fall)
        return jnp.where(own, 1 / worth, jnp.where(over, jnp.maximum(size, fall), part))

    def share(self, value: jax.Array, tol: StoppingTolerances, over: Any = False) -> jax.Array:
        """What is called 1, in the user's unit: 1, if `gtol` was given."""
        return jnp.ones_like(value) if tol.given else self.one(value, tol.worth, over) * tol.worth


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

    Small, of a value, is :math:`\epsilon_f \max(|f|, \min(o, \delta))`, with 2.2e-9 for
    :math:`\epsilon_f` of the second if nothing was given; :math:`o` is the user's 1 or what stands
    for it, :math:`\delta` what the last steps gained (at least a thousandth of :math:`o`; all that
    was gained, where the value itself has become nothing). A small gradient is no claim while the
    next step promises :math:`\epsilon_g` of the same. However little is predicted and gained, with
    a large gradient nothing is claimed: it may be a flat place of a valley. Not large is one that
    is small to the user. One that is only a tiny part of the largest on the way may be all that is
    left of a gentle direction beside steep ones, and one that is small beside the value may be all
    that a large offset of the value lets through: then three steps in a row must gain so little,
    beside the value no more than its rounding, and a method that forgot what it had learned must
    not gain more. Three steps it takes as well where what they gain is much of what is left.
    """
    moved, failed = verdict == MOVED, verdict == FAILED
    over = failed | (verdict == BLIND)
    value = jnp.abs(after.value)
    one = progress.one(after.value, tol.worth)
    lately, in_all = (jnp.minimum(one, a) for a in (progress.recent, progress.first - after.value))
    vanished = value <= _VANISHED * one
    matters = jnp.where(vanished, in_all, jnp.maximum(lately, 1e-3 * one))
    fine = jnp.maximum(tol.ftol * value, tol.least * matters)
    gnorm, absolute = largest(pull), largest(pull * tol.unit)
    mine = progress.share(after.value, tol, over)
    # Infinite where it isn't known, zero where there is no step at all.
    promising = (plan.predicted <= 0) | ((plan.predicted > fine) & (plan.predicted < jnp.inf))
    scale = reference(after, progress.steepest, promising)
    loose = jnp.clip(jnp.asarray(1e-3, gnorm.dtype), tol.gtol, 100 * tol.gtol)
    gentle = gnorm <= loose * scale
    small = gentle & (absolute <= loose * mine)
    tiny = gentle & (small | (gnorm <= tol.strict * progress.steepest))
    beside_the_value = gentle & (absolute <= loose * value * tol.worth)
    gained = before.value - after.value

    def nothing(above: jax.Array) -> jax.Array:
        return (plan.predicted <= above) & (jnp.abs(gained) <= above)

    is_flat = (tiny & nothing(fine)) | (beside_the_value & nothing(tol.unseen * value))
    count = jnp.where(is_flat, progress.flat_steps + 1, jnp.zeros_like(progress.flat_steps))
    flat_steps = jnp.where(moved, count, progress.flat_steps)
    # A part of nearly nothing may be much of what is left.
    plainly = vanished | nothing(tol.gtol * value)
    sure = (small & plainly) | (flat_steps >= _FLAT_STEPS)
    unpromising = (plan.predicted <= fine) & (tiny | beside_the_value)
    short = jnp.all(jnp.abs(plan.step) <= tol.xtol * jnp.abs(after.x)) & (tiny | beside_the_value)
    stationary = is_stationary(pull, scale, mine, tol)
    if not tol.given:
        promise = jnp.maximum(tol.gtol * jnp.maximum(value, lately), tol.least * one)
        stationary &= over | (plan.predicted <= promise) | (plan.predicted == jnp.inf)
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
