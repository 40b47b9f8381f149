"""The radius of a step: gain ratio, acceptance, and the rules by which the radius adapts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import DampedStep, divide, length
from fnopt.sharding import psum_rows
from fnopt.solvers.linear_model._linearization import Linearization

LEAST_GAIN = 1e-4  # Moré (1978), p0: less than this fraction of the prediction is no progress
_POOR, _GOOD = 0.25, 0.75  # Moré (1978), section 7: gain ratios that shrink and grow the radius
# Of the residuals' length: the least first radius, so that a start at tiny params gets anywhere.
_LEAST_RADIUS = 1e-3


class Trial(NamedTuple):
    """A proposed step, and what the model says of it."""

    step: jax.Array  # [n]
    length: jax.Array  # ||D p||
    slope: jax.Array  # g^T p
    predicted: jax.Array  # reduction of the cost
    lam: jax.Array  # damping
    full: jax.Array  # ||D p|| before the step was cut to the radius
    rise: jax.Array  # Hebden's rise of the damping for a solution half as long


def straight(point: Linearization, scale: jax.Array, step: DampedStep) -> Trial:
    """The step of the linear model as it is."""
    p = step.p / scale
    size = length(step.p)
    return Trial(
        step=p,
        length=size,
        slope=jnp.sum(point.gradient * p, axis=0),
        predicted=step.predicted,
        lam=step.lam,
        full=size if step.full is None else step.full,
        rise=jnp.zeros_like(size) if step.rise is None else step.rise,
    )


def next_damping(trial: Trial, radius: jax.Array) -> jax.Array:
    """The damping for a radius by Hebden's formula, from the solution for another one."""
    lam = trial.lam + (divide(trial.full, radius) - 1) * trial.rise
    return jnp.where(jnp.isfinite(lam), jnp.maximum(lam, jnp.zeros_like(lam)), 10 * trial.lam)


def actual_reduction(before: jax.Array, after: jax.Array) -> jax.Array:
    r"""By how much the cost falls from one residual to another.

    .. math:: \tfrac12 \|r\|^2 - \tfrac12 \|r_+\|^2 = \tfrac12 (r - r_+)^T (r + r_+)

    Near a solution both costs agree in nearly all digits. Their difference is all rounding, while
    the product keeps the digits that the residuals themselves have: in float32 that is worth a
    digit or more in the params.

    Args:
        before: The residual `r` at the point, of shape `[m]`.
        after: The residual at the trial.

    Returns:
        The reduction, a scalar; minus infinity where the trial is not finite.
    """
    half = jnp.asarray(0.5, before.dtype)
    reduction = half * psum_rows(jnp.sum((before - after) * (before + after)))
    return jnp.where(jnp.isfinite(reduction), reduction, jnp.asarray(-jnp.inf, before.dtype))


def gain_ratio(actual: jax.Array, predicted: jax.Array) -> jax.Array:
    """The actual reduction of the cost over the predicted one; -1 where nothing is predicted."""
    safe = jnp.where(predicted > 0, predicted, jnp.ones_like(predicted))
    return jnp.where(predicted > 0, actual / safe, -jnp.ones_like(actual))


class Outcome(NamedTuple):
    """The outcome of a step, as a rule sees it."""

    radius: jax.Array  # before the step
    rejections: jax.Array  # int32, refused steps in a row before it
    length: jax.Array  # ||D p||
    slope: jax.Array  # g^T p
    actual: jax.Array  # reduction of the cost
    gain: jax.Array  # actual over predicted
    full: jax.Array  # whether the step was undamped
    accepted: jax.Array


class RadiusRule(NamedTuple):
    """Rule for the radius: that of a trust region, an inverse damping, or a fraction of a step.

    A refused step at least halves the radius, so every rule ends. Only a step that is lost in
    rounding, and refused for that, grows the radius of a region.
    """

    first: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]
    """At the start: (option, scale, x, cost)."""
    next: Callable[[Outcome], jax.Array]
    is_region: bool = False
    """Whether the radius bounds the length of the step."""


def _initial_radius(
    factor: jax.Array, scale: jax.Array, x: jax.Array, cost: jax.Array
) -> jax.Array:
    r"""The first radius, in the units of the residuals (Moré 1978, section 7).

    .. math:: \Delta = c \max(\|D x\|, 10^{-3} \|r\|), \quad
        \text{or } c \|r\| \text{ if } D x = 0
    """
    size = length(scale * x)
    residual = jnp.sqrt(2 * cost)
    least = jnp.asarray(_LEAST_RADIUS, residual.dtype) * residual
    size = jnp.where(size > 0, jnp.maximum(size, least), residual)
    return factor * jnp.where(size > 0, size, jnp.ones_like(size))


def _shrink_factor(actual: jax.Array, slope: jax.Array) -> jax.Array:
    r"""The minimum of the parabola through the known values and slope, within [0.1, 0.5].

    Along the step, the cost starts with the slope :math:`g^T p` and ends :math:`-\delta f` lower;
    the parabola through these has its minimum at

    .. math:: \mu = \frac{\tfrac12 g^T p}{g^T p + \delta f}.

    Reference:
        Moré (1978), section 7; Dennis and Schnabel (1983), section 6.3.2.
    """
    dtype = actual.dtype
    half, low = jnp.asarray(0.5, dtype), jnp.asarray(0.1, dtype)
    tiny = jnp.asarray(jnp.finfo(dtype).tiny, dtype)
    mu = half * slope / jnp.minimum(slope + actual, -tiny)
    mu = jnp.where(jnp.isfinite(mu), jnp.clip(mu, low, half), low)
    return jnp.where(actual >= 0, half, mu)


def _trust_region(outcome: Outcome) -> jax.Array:
    r"""Shrinks after a poor step, grows after a good one.

    .. math:: \Delta \leftarrow \begin{cases}
        \mu \min(\Delta, 10 \|D p\|) & \rho < 0.25 \\
        \max(\Delta, 2 \|D p\|) & \rho > 0.75 \text{ or } \lambda = 0 \\
        \Delta & \text{otherwise, and right after a refused step} \end{cases}

    A radius far beyond the step didn't limit it: shrinking that alone would repeat the same step.
    And after a refused step it doesn't grow back at once, or every second step of a crawl in a
    valley is refused.

    Reference:
        Moré (1978), section 7, and MINPACK's `lmder`.
    """
    radius, reached = outcome.radius, outcome.length
    dtype = radius.dtype
    shrink = _shrink_factor(outcome.actual, outcome.slope)
    smaller = shrink * jnp.minimum(radius, jnp.asarray(10, dtype) * reached)
    good = (outcome.gain > jnp.asarray(_GOOD, dtype)) | outcome.full
    good &= outcome.rejections == 0
    larger = jnp.maximum(radius, jnp.asarray(2, dtype) * reached)
    kept = jnp.where(good, larger, radius)
    return jnp.where(outcome.gain < jnp.asarray(_POOR, dtype), smaller, kept)


def _marquardt(outcome: Outcome) -> jax.Array:
    r"""Ten times less damping after a step that is accepted, ten times more after a refused one.

    Reference:
        Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters.
    """
    ten = jnp.asarray(10, outcome.radius.dtype)
    return _bounded(jnp.where(outcome.accepted, outcome.radius * ten, outcome.radius / ten))


def _nielsen(outcome: Outcome) -> jax.Array:
    r"""Damping by how well the model predicted, without a jump between good and poor.

    .. math:: \lambda \leftarrow \lambda \max(\tfrac13, 1 - (2 \rho - 1)^3)
        \text{ if accepted, else } \lambda \leftarrow \nu \lambda \text{ with }
        \nu = 2, 4, 8, \ldots

    Reference:
        Nielsen (1999), Damping parameter in Marquardt's method; Madsen, Nielsen and Tingleff
        (2004), Methods for non-linear least squares problems, section 3.2.
    """
    dtype = outcome.radius.dtype
    good = nielsen_shrink(outcome.gain, 1 / 3)
    nu = jnp.asarray(2, dtype) ** (1 + outcome.rejections).astype(dtype)
    return _bounded(outcome.radius / jnp.where(outcome.accepted, good, nu))


def nielsen_shrink(gain: jax.Array, least: float) -> jax.Array:
    r"""What is left of a damping after an accepted step.

    .. math:: \max(\nu, 1 - (2 \rho - 1)^3)

    Args:
        gain: The gain ratio :math:`\rho`.
        least: :math:`\nu`.
    """
    t = 2 * jnp.clip(gain, 0, 1) - 1
    return jnp.maximum(jnp.asarray(least, gain.dtype), 1 - t * t * t)


def _bounded(radius: jax.Array) -> jax.Array:
    """Damping within what rounding can tell from none, and what can be inverted."""
    limits = jnp.finfo(radius.dtype)
    least = jnp.asarray(8 * limits.tiny, radius.dtype)
    return jnp.clip(radius, least, jnp.asarray(1 / limits.eps, radius.dtype))


def _fraction(outcome: Outcome) -> jax.Array:
    """The whole step again after one that is accepted, a part of it after a refused one."""
    shrink = _shrink_factor(outcome.actual, outcome.slope)
    one = jnp.ones_like(outcome.radius)
    return jnp.where(outcome.accepted, one, shrink * outcome.radius)


def _given(option: jax.Array, *_: jax.Array) -> jax.Array:
    return option


TRUST_REGION = RadiusRule(_initial_radius, _trust_region, is_region=True)
MARQUARDT = RadiusRule(_given, _marquardt)
NIELSEN = RadiusRule(_given, _nielsen)
FRACTION = RadiusRule(_given, _fraction)
