"""The judgement of a step: its gain, the next radius, and whether the search ends or restarts."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status
from fnopt.linear import norm
from fnopt.solvers.convergence._noise import Noise, is_idle, leans
from fnopt.solvers.convergence._options import Options
from fnopt.solvers.convergence._tests import cost_converged, first_of, step_converged
from fnopt.solvers.model._linearization import Linearization
from fnopt.solvers.trust_region._gain import gain_ratio, is_accepted, is_negligible
from fnopt.solvers.trust_region._restart import MOST_RESTARTS, is_hopeful, is_sloping
from fnopt.solvers.trust_region._rules import Outcome, RadiusRule
from fnopt.solvers.trust_region._step import Trial, TrustRegionState

_WIDER = 10.0  # times the radius, where a step at its edge gains no more than rounding
_MUCH = 0.01  # of the cost, that one parameter alone could gain
_MOST_REJECTIONS = 80  # the radius shrinks at least by half each time


class Comparison(NamedTuple):
    """The actual and the predicted reduction of a step, and the rounding noise."""

    actual: jax.Array  # reduction of the cost; minus infinity if the end isn't finite
    noise: Noise
    gain: jax.Array  # actual over predicted
    negligible: jax.Array  # whether both are rounding
    improves: jax.Array  # whether the end is good enough to go there


def compared(trial: Trial, actual: jax.Array, noise: Noise) -> Comparison:
    """Compares a trial with its prediction."""
    negligible = is_negligible(actual, trial.predicted, noise.cost, noise.change)
    improves = is_accepted(actual, trial.predicted, negligible)
    gain = gain_ratio(actual, trial.predicted)
    return Comparison(actual, noise, gain, negligible, improves)


def judge(
    point: Linearization,
    scaled_gradient: jax.Array,
    trial: Trial,
    found: Comparison,
    accepted: jax.Array,
    search: TrustRegionState,
    options: Options,
    rule: RadiusRule,
    tested: bool = False,
) -> tuple[jax.Array, TrustRegionState, jax.Array]:
    """Adapts the state to how a trial went, and says whether to stop, or to begin again.

    Args:
        point: Where the step starts.
        scaled_gradient: The scaled gradient there.
        trial: The step.
        found: What it gained.
        accepted: Whether it is taken.
        search: The search before it.
        options: The numbers.
        rule: How the radius of a step adapts.
        tested: Whether claims of convergence will be tested along the full step.

    Returns:
        The status, as far as the step tells, the next search, and whether that begins again.
    """
    negligible, noise = found.negligible, found.noise
    radius = rule.next(_outcome(trial, found, search, accepted))
    # A region in which nothing can be gained is too small, if it is what limits the step.
    wide = jnp.asarray(_WIDER, found.gain.dtype)
    # One along which residuals are straight holds no surprise, where there is much to be gained.
    straight = _is_straight(point, trial, search) & (
        _gain_of_one(scaled_gradient) > jnp.asarray(_MUCH, wide.dtype) * point.cost
    )
    wide = lax.select(straight, 1 / options.eps, wide)
    wider = lax.select((accepted | straight) & (trial.lam > 0), wide, jnp.ones_like(wide))
    radius = lax.select(negligible, wider * search.radius, radius)
    rejections = lax.select(accepted, jnp.zeros_like(search.rejections), search.rejections + 1)
    idle = lax.select(negligible, search.idle + 1, jnp.zeros_like(search.idle))
    idle = lax.select(accepted, idle, search.idle)
    search = search._replace(radius=radius, rejections=rejections, lam=trial.lam, idle=idle)
    # A step that was refused where gains are noise would only be proposed again.
    again = negligible & ~straight & ((rejections > 0) | is_idle(idle, point, noise.cost))
    status, restarts = _outlook(
        point, scaled_gradient, trial, found, again, search, options, tested
    )
    return status, search, restarts


def _is_straight(point: Linearization, trial: Trial, search: TrustRegionState) -> jax.Array:
    """Whether residuals are straight along a damped step, too long for `r''` to underflow."""
    size = norm(search.scale * point.x)
    least = jnp.asarray(float(jnp.finfo(size.dtype).eps) ** 0.5, size.dtype) * size
    bends = (trial.seconds <= 0) | (trial.excess != 0)
    return ~bends & (trial.lam > 0) & (trial.length > least)


def _gain_of_one(scaled_gradient: jax.Array) -> jax.Array:
    """What the best of the params could take off the cost by itself, to the linear model."""
    return jnp.asarray(0.5, scaled_gradient.dtype) * jnp.square(scaled_gradient)


def _outcome(
    trial: Trial, found: Comparison, search: TrustRegionState, accepted: jax.Array
) -> Outcome:
    return Outcome(
        radius=search.radius,
        edge=trial.edge,
        rejections=search.rejections,
        length=trial.length,
        slope=trial.slope,
        actual=found.actual,
        gain=found.gain,
        full=trial.lam == 0,
        accepted=accepted,
    )


def _outlook(
    point: Linearization,
    scaled_gradient: jax.Array,
    trial: Trial,
    found: Comparison,
    again: jax.Array,
    search: TrustRegionState,
    options: Options,
    tested: bool,
) -> tuple[jax.Array, jax.Array]:
    """The status that follows from a step, and whether the search begins again."""
    actual, noise = found.actual, found.noise
    size = norm(search.scale * point.x)
    # What one parameter alone could gain, where the radius doesn't let it, isn't nothing.
    alone = _gain_of_one(scaled_gradient)
    attainable = jnp.maximum(trial.attainable, alone)
    # Noise alone is no proof: a slope may hide behind a Jacobian that is wrong, or in a column
    # that the step leaves out.
    sloping = is_sloping(point, scaled_gradient, noise.residual)
    flat = again & ~(sloping & (alone > noise.cost))
    ftol = options.ftol
    if tested:
        ftol = lax.select(leans(point, noise), options.sharp, ftol)
    flat |= cost_converged(actual, attainable, point.cost, ftol, options.noise)
    tiny = step_converged(trial.length, size, options.xtol)
    stuck = search.rejections > _MOST_REJECTIONS
    collapsed = ~flat & (tiny | stuck | again) & sloping
    if not tested:
        # A step that is tiny because its radius is shows nothing where a longer one may gain much.
        collapsed |= ~flat & tiny & (trial.lam > 0) & is_hopeful(point, noise.residual)
    restarted = collapsed & (search.restarts < MOST_RESTARTS)
    status = first_of(
        (flat, Status.CONVERGED_COST),
        (restarted, Status.RUNNING),
        (collapsed & ~jnp.isfinite(actual), Status.NONFINITE_STEP),
        (collapsed, Status.STALLED),
        (tiny, Status.CONVERGED_STEP),
        (stuck, Status.STALLED),
    )
    return status, restarted
