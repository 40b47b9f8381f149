"""The judgement of a step: whether to take it, the next radius and damping; when to stop."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Status
from fnopt.linear import length
from fnopt.solvers._stopping import (
    Tolerances,
    cost_converged,
    cost_rounding,
    first_of,
    is_flat,
    is_lost_in_rounding,
    is_nearer,
    is_stationary,
    step_converged,
)
from fnopt.solvers._trust_region import (
    LEAST_GAIN,
    Outcome,
    RadiusRule,
    Trial,
    gain_ratio,
    next_damping,
)
from fnopt.solvers.linear_model._linearization import Linearization

# Times the radius, where a step at its edge gains no more than rounding: the region is too small.
_WIDER = 10.0


class StepOutcome(NamedTuple):
    """What follows from a step."""

    accepted: jax.Array
    radius: jax.Array
    lam: jax.Array  # damping of the next step
    rejections: jax.Array  # refused steps in a row
    noise: jax.Array  # bound on what rounding does to the reduction
    lost: jax.Array  # whether actual and predicted reduction are below it
    inside: jax.Array  # whether the step is undamped and within the radius


def judge(
    rule: RadiusRule,
    before: Linearization,
    after: Linearization | None,
    trial: Trial,
    actual: jax.Array,
    radius: jax.Array,
    rejections: jax.Array,
    tolerances: Tolerances,
) -> StepOutcome:
    """Compare a step with its prediction.

    Args:
        rule: How the radius adapts.
        before: Where the step starts.
        after: Where it ends; None if that isn't linearized.
        trial: The step.
        actual: The reduction of the cost; minus infinity where the end isn't finite.
        radius: The radius.
        rejections: How many steps in a row were refused.
        tolerances: The numbers of the method.
    """
    noise = cost_rounding(before, tolerances.eps)
    gain = gain_ratio(actual, trial.predicted)
    enough = (actual >= 0) & (gain > jnp.asarray(LEAST_GAIN, gain.dtype))
    lost = is_lost_in_rounding(actual, trial.predicted, noise)
    nearer = actual >= 0 if after is None else is_nearer(after, before)
    accepted = jnp.isfinite(actual) & jnp.where(lost, nearer, enough)
    if accepted.ndim:
        accepted = _once(accepted)
    refused = jnp.where(accepted, jnp.zeros_like(rejections), rejections + 1)

    undamped = trial.lam <= 0
    outcome = Outcome(
        radius, rejections, trial.length, trial.slope, actual, gain, undamped, accepted
    )
    inside = undamped & (trial.full <= radius)
    wide = jnp.where(inside, radius, jnp.asarray(_WIDER, radius.dtype) * radius)
    following = rule.next(outcome)
    if rule.is_region:
        following = jnp.where(lost, wide, following)
    # Where a factorisation failed the step is NaN, and says no more than that it was too long.
    following = jnp.where(jnp.isnan(following), radius / 2, following)
    following = jnp.maximum(following, jnp.asarray(jnp.finfo(radius.dtype).tiny, radius.dtype))
    lam = next_damping(trial, following)
    return StepOutcome(accepted, following, lam, refused, noise, lost, inside)


def stopping_status(
    reached: Linearization,
    before: Linearization,
    trial: Trial,
    actual: jax.Array,
    outcome: StepOutcome,
    scale: jax.Array,
    tolerances: Tolerances,
) -> jax.Array:
    """The status after a step, `RUNNING` where no stopping test holds.

    Args:
        reached: Where the search is after the step.
        before: Where the step started.
        trial: The step.
        actual: The reduction of the cost.
        outcome: What followed from it.
        scale: The scaling, of shape `[n]`.
        tolerances: The numbers of the method.
    """
    flat = is_flat(reached, tolerances)
    ends = outcome.lost & ~outcome.accepted
    small = ends | cost_converged(
        actual, trial.predicted, before.cost, tolerances.ftol, outcome.noise
    )
    tiny = step_converged(trial.length, length(scale * before.x), tolerances.xtol)
    newton = (trial.lam <= 0) & outcome.accepted
    # The radius shrinks at least by half with every refusal: so often, until steps that were longer
    # than the params by 1 / eps are as short as rounding.
    most = 2 * int(-np.log2(float(jnp.finfo(actual.dtype).eps)))
    stuck = tiny | (outcome.rejections > most) | (ends & outcome.inside)
    return first_of(
        (is_stationary(reached, tolerances.gtol), Status.CONVERGED_GRADIENT),
        (small & flat, Status.CONVERGED_COST),
        (tiny & (flat | newton), Status.CONVERGED_STEP),
        (stuck & ~jnp.isfinite(actual), Status.NONFINITE_STEP),
        (stuck, Status.STALLED),
    )


def _once(condition: jax.Array) -> jax.Array:
    """A condition of many problems that the compiler computes once, and not anew for each user.

    XLA merges cheap arithmetic into everything that uses it. It never does that to a square root.
    """
    return jnp.sqrt(condition.astype(jnp.float32)) > 0
