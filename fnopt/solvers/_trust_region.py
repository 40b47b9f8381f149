"""The radius of a step: gain ratio, acceptance, and the rules by which the radius adapts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import DampedStep, divide, length
from fnopt.sharding import psum_rows
from fnopt.solvers.linear_model._linearization import Linearization

LEAST_GAIN = 1e-4  # Moré (1978), p0: less than this fraction of the prediction is no progress
_POOR, _GOOD = 0.25, 0.75  # Moré (1978), section 7: gain ratios that shrink and grow the radius
# Of the cost. A relative decrease d is a change of the params by sqrt(d (m - n)) standard errors,
# for the variance is estimated as 2 f / (m - n): by 1e-2 sqrt(m - n) of one. Where a single
# parameter could gain more than that, no search has converged, whatever stopped the step.
SHARE = 1e-4


class Trial(NamedTuple):
    """A proposed step, and its properties by the linear model."""

    step: jax.Array  # [n]
    length: jax.Array  # ||D p||
    slope: jax.Array  # g^T p
    predicted: jax.Array  # reduction of the cost
    lam: jax.Array  # damping
    solution_length: jax.Array  # ||D p|| before the step was cut to the radius
    hebden: jax.Array  # Hebden's increase of the damping for a solution half as long


def linear_step(point: Linearization, scale: jax.Array, step: DampedStep) -> Trial:
    """The step of the linear model without a second-order correction."""
    p = step.p / scale
    size = length(step.p)
    return Trial(
        step=p,
        length=size,
        slope=jnp.sum(point.gradient * p, axis=0),
        predicted=step.predicted,
        lam=step.lam,
        solution_length=size if step.full is None else step.full,
        hebden=jnp.zeros_like(size) if step.rise is None else step.rise,
    )


def next_damping(trial: Trial, radius: jax.Array) -> jax.Array:
    """The damping for a radius by Hebden's formula, from the solution for another one.

    Where a factorisation failed there is no solution, and the damping grows by Marquardt's factor.
    """
    lam = trial.lam + (divide(trial.solution_length, radius) - 1) * trial.hebden
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


class StepEvaluation(NamedTuple):
    """A trial step and the cost at its end."""

    trial: Trial
    actual: jax.Array  # reduction of the cost; minus infinity where the end isn't finite
    noise: jax.Array  # bound on the rounding error of the reduction
    gain: jax.Array  # actual over predicted reduction
    accepted: jax.Array
    radius: jax.Array  # before the step
    rejections: jax.Array  # int32, refused steps in a row before it

    @property
    def flat(self) -> jax.Array:
        """Whether neither the actual nor the predicted reduction is above rounding."""
        return (self.trial.predicted <= self.noise) & (jnp.abs(self.actual) <= self.noise)

    @property
    def interior(self) -> jax.Array:
        """Whether the step is the undamped one, within the radius."""
        return (self.trial.lam <= 0) & (self.trial.solution_length <= self.radius)


def evaluate_step(
    state: Any, trial: Trial, actual: jax.Array, noise: jax.Array, decreased: jax.Array
) -> StepEvaluation:
    """Compares a step with its prediction.

    Args:
        state: What has the radius and the number of rejections before the step.
        trial: The step.
        actual: The reduction of the cost; minus infinity where the end isn't finite.
        noise: Bound on its rounding error.
        decreased: Whether to accept a step whose cost is flat to rounding.
    """
    gain = gain_ratio(actual, trial.predicted)
    enough = (actual >= 0) & (gain > jnp.asarray(LEAST_GAIN, gain.dtype))
    step = StepEvaluation(trial, actual, noise, gain, enough, state.radius, state.rejections)
    accepted = jnp.isfinite(actual) & jnp.where(step.flat, decreased, enough)
    return step._replace(accepted=_once(accepted) if accepted.ndim else accepted)


def _once(condition: jax.Array) -> jax.Array:
    """A condition of many problems that the compiler computes once, and not anew for each user.

    XLA merges cheap arithmetic into everything that uses it. It never does that to a square root.
    """
    return jnp.sqrt(condition.astype(jnp.float32)) > 0


class RadiusRule(NamedTuple):
    """Rule for the radius: that of a trust region, an inverse damping, or a fraction of a step.

    A refused step at least halves the radius, so every rule ends. Only a step that is flat to
    rounding, and refused for that, grows the radius of a region.
    """

    next: Callable[[StepEvaluation], jax.Array]
    is_region: bool = False
    """Whether the radius bounds the length of the step."""

    def radius_after(self, step: StepEvaluation) -> jax.Array:
        """The radius of the next step."""
        radius = self.next(step)
        # Where a factorisation failed the step is NaN: like one that was too long.
        radius = jnp.where(jnp.isnan(radius), step.radius / 2, radius)
        return jnp.maximum(radius, jnp.asarray(jnp.finfo(radius.dtype).tiny, radius.dtype))


def initial_radius(factor: Any, scale: jax.Array, x: jax.Array, cost: jax.Array) -> jax.Array:
    r"""The first radius, in the units of the residuals (Moré 1978, section 7).

    .. math:: \Delta = c \max(\|D x\|, 10^{-4} \|r\|), \quad
        \text{or } c \|r\| \text{ if } D x = 0

    Without a least radius, from tiny params, no step could lower the cost by more than a negligible
    share of it.
    """
    size = length(scale * x)
    residual = jnp.sqrt(2 * cost)
    least = jnp.asarray(SHARE, residual.dtype) * residual
    size = jnp.where(size > 0, jnp.maximum(size, least), residual)
    return jnp.asarray(factor, size.dtype) * jnp.where(size > 0, size, jnp.ones_like(size))


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


def _trust_region(step: StepEvaluation) -> jax.Array:
    r"""Shrinks after a poor step, grows after a good one.

    .. math:: \Delta \leftarrow \begin{cases}
        \mu \min(\Delta, 10 \|D p\|) & \rho < 0.25 \\
        \max(\Delta, 2 \|D p\|) & \rho > 0.75 \text{ or } \lambda = 0 \\
        \Delta & \text{otherwise, and right after a refused step} \end{cases}

    A radius far beyond the step didn't limit it: shrinking that alone would repeat the same step.
    And after a refused step it doesn't grow back at once, or every second step of a crawl in a
    valley is refused. The gain ratio of a step that is flat to rounding says nothing: where such a
    step ends at the edge, the region is too small, and grows as fast as it may shrink.

    Reference:
        Moré (1978), section 7, and MINPACK's `lmder`.
    """
    radius, reached = step.radius, step.trial.length
    dtype = radius.dtype
    shrink = _shrink_factor(step.actual, step.trial.slope)
    ten = jnp.asarray(10, dtype)  # the inverse of the least shrink factor
    smaller = shrink * jnp.minimum(radius, ten * reached)
    good = (step.gain > jnp.asarray(_GOOD, dtype)) | (step.trial.lam <= 0)
    good &= step.rejections == 0
    larger = jnp.maximum(radius, jnp.asarray(2, dtype) * reached)
    kept = jnp.where(good, larger, radius)
    kept = jnp.where(step.gain < jnp.asarray(_POOR, dtype), smaller, kept)
    return jnp.where(step.flat, jnp.where(step.interior, radius, ten * radius), kept)


def _marquardt(step: StepEvaluation) -> jax.Array:
    r"""Ten times less damping after a step that is accepted, ten times more after a refused one.

    Reference:
        Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters.
    """
    ten = jnp.asarray(10, step.radius.dtype)
    return _bounded(jnp.where(step.accepted, step.radius * ten, step.radius / ten))


def _nielsen(step: StepEvaluation) -> jax.Array:
    r"""Damping by how well the model predicted, without a jump between good and poor.

    .. math:: \lambda \leftarrow \lambda \max(\tfrac13, 1 - (2 \rho - 1)^3)
        \text{ if accepted, else } \lambda \leftarrow \nu \lambda \text{ with }
        \nu = 2, 4, 8, \ldots

    Reference:
        Nielsen (1999), Damping parameter in Marquardt's method; Madsen, Nielsen and Tingleff
        (2004), Methods for non-linear least squares problems, section 3.2.
    """
    dtype = step.radius.dtype
    t = 2 * jnp.clip(step.gain, 0, 1) - 1
    good = jnp.maximum(jnp.asarray(1 / 3, dtype), 1 - t * t * t)
    nu = jnp.asarray(2, dtype) ** (1 + step.rejections).astype(dtype)
    return _bounded(step.radius / jnp.where(step.accepted, good, nu))


def _bounded(radius: jax.Array) -> jax.Array:
    """Damping within what rounding can tell from none, and what can be inverted."""
    limits = jnp.finfo(radius.dtype)
    least = jnp.asarray(8 * limits.tiny, radius.dtype)
    return jnp.clip(radius, least, jnp.asarray(1 / limits.eps, radius.dtype))


def _fraction(step: StepEvaluation) -> jax.Array:
    """The whole step again after one that is accepted, a part of it after a refused one."""
    shrink = _shrink_factor(step.actual, step.trial.slope)
    one = jnp.ones_like(step.radius)
    return jnp.where(step.accepted, one, shrink * step.radius)


TRUST_REGION = RadiusRule(_trust_region, is_region=True)
MARQUARDT = RadiusRule(_marquardt)
NIELSEN = RadiusRule(_nielsen)
FRACTION = RadiusRule(_fraction)
