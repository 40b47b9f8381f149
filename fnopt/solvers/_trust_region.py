"""Step control: gain ratio, acceptance of steps, and update rules for radius or damping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import DampedStep, divide, length
from fnopt.sharding import psum_rows
from fnopt.solvers.linear_model._linearization import Linearization

LEAST_GAIN = 1e-4  # Moré (1978), p0: a step with a smaller gain ratio is rejected
# Moré (1978), section 7: the radius shrinks below the first gain ratio and grows above the second.
POOR, GOOD = 0.25, 0.75
# Largest decrease, relative to the cost, that is negligible at convergence. The variance of the
# data is estimated as 2 f / (m - n). A relative decrease d therefore changes the params by
# sqrt(d (m - n)) standard errors: 1e-2 sqrt(m - n) for 1e-4.
SHARE = 1e-4


class Trial(NamedTuple):
    """A proposed step, and its properties under the linear model."""

    step: jax.Array  # [n]
    length: jax.Array  # ||D p||
    slope: jax.Array  # g^T p
    predicted: jax.Array  # predicted reduction of the cost
    lam: jax.Array  # damping
    solution_length: jax.Array  # ||D p|| before the step was shortened to the radius
    hebden: jax.Array  # increase of the damping that halves ||D p||, by Hebden's formula


def linear_step(point: Linearization, scale: jax.Array, step: DampedStep) -> Trial:
    """Convert a step in scaled variables to a trial step, without a second-order correction."""
    p = step.p / scale
    size = length(step.p)
    return Trial(
        step=p,
        length=size,
        slope=jnp.sum(point.gradient * p, axis=0),
        predicted=step.predicted,
        lam=step.lam,
        solution_length=size if step.solution_length is None else step.solution_length,
        hebden=jnp.zeros_like(size) if step.hebden is None else step.hebden,
    )


def next_damping(trial: Trial, radius: jax.Array) -> jax.Array:
    """Estimate the damping for a radius by Hebden's formula, from the last damped step.

    After a failed factorization there is no step, and the damping increases by Marquardt's factor
    of 10.
    """
    lam = trial.lam + (divide(trial.solution_length, radius) - 1) * trial.hebden
    return jnp.where(jnp.isfinite(lam), jnp.maximum(lam, jnp.zeros_like(lam)), 10 * trial.lam)


def actual_reduction(before: jax.Array, after: jax.Array) -> jax.Array:
    r"""Return the actual reduction of the cost between two residual vectors.

    .. math:: \tfrac12 \|r\|^2 - \tfrac12 \|r_+\|^2 = \tfrac12 (r - r_+)^T (r + r_+)

    Near a solution, both costs agree in nearly all digits, so their difference is mostly rounding
    error. The product has the relative accuracy of the change of the residuals. In float32, this
    makes at least one more digit of the params correct.

    Args:
        before: The residuals `r` before the step, of shape `[m]`.
        after: The residuals after the step, of shape `[m]`.

    Returns:
        The reduction, a scalar; minus infinity if a residual after the step isn't finite.
    """
    half = jnp.asarray(0.5, before.dtype)
    reduction = half * psum_rows(jnp.sum((before - after) * (before + after)))
    return jnp.where(jnp.isfinite(reduction), reduction, jnp.asarray(-jnp.inf, before.dtype))


def gain_ratio(actual: jax.Array, predicted: jax.Array) -> jax.Array:
    """Return the ratio of actual to predicted reduction; -1 if no reduction is predicted."""
    safe = jnp.where(predicted > 0, predicted, jnp.ones_like(predicted))
    return jnp.where(predicted > 0, actual / safe, -jnp.ones_like(actual))


class StepEvaluation(NamedTuple):
    """A trial step and the cost at its end."""

    trial: Trial
    actual: jax.Array  # reduction of the cost; minus infinity if the new cost isn't finite
    noise: jax.Array  # bound on the rounding error of the reduction
    gain: jax.Array  # ratio of actual to predicted reduction
    accepted: jax.Array
    radius: jax.Array  # the radius before the step
    rejections: jax.Array  # int32, consecutive rejected steps before this step

    @property
    def within_noise(self) -> jax.Array:
        """Whether the actual and the predicted reduction are within rounding error."""
        return (self.trial.predicted <= self.noise) & (jnp.abs(self.actual) <= self.noise)

    @property
    def interior(self) -> jax.Array:
        """Whether the step is undamped and within the radius."""
        return (self.trial.lam <= 0) & (self.trial.solution_length <= self.radius)


def evaluate_step(
    state: Any, trial: Trial, actual: jax.Array, noise: jax.Array, decreased: jax.Array
) -> StepEvaluation:
    """Compare the actual reduction of a step with the predicted reduction.

    Args:
        state: A state with the radius and the number of rejections before the step.
        trial: The step.
        actual: The reduction of the cost; minus infinity if it isn't finite at the end.
        noise: Bound on the rounding error of the reduction.
        decreased: Whether to accept a step that changes the cost only within rounding error.
    """
    gain = gain_ratio(actual, trial.predicted)
    enough = (actual >= 0) & (gain > jnp.asarray(LEAST_GAIN, gain.dtype))
    step = StepEvaluation(trial, actual, noise, gain, enough, state.radius, state.rejections)
    accepted = jnp.isfinite(actual) & jnp.where(step.within_noise, decreased, enough)
    return step._replace(accepted=_computed_once(accepted) if accepted.ndim else accepted)


def _computed_once(condition: jax.Array) -> jax.Array:
    """Return the condition in a form that XLA doesn't recompute in each fusion that uses it.

    XLA copies cheap arithmetic into every fusion, but not a square root. Without the square root,
    `python -m benchmarks batched_fits` takes 13 % (float64) to 29 % (float32) longer.
    """
    return jnp.sqrt(condition.astype(jnp.float32)) > 0


class RadiusRule(NamedTuple):
    """Update rule for the radius: a trust-region radius, an inverse damping or a step size.

    With every rule, a rejected step at least halves the radius, so the search ends. Exception: a
    rejected step that changes the cost only within rounding error may grow a trust region.
    """

    next: Callable[[StepEvaluation], jax.Array]
    """Return the radius after a step."""
    is_region: bool = False
    """Whether the radius bounds the length of the step."""

    def radius_after(self, step: StepEvaluation) -> jax.Array:
        """Return the radius of the next step, a positive number."""
        radius = self.next(step)
        # After a failed factorization the step is NaN, and is treated like a rejected step.
        radius = jnp.where(jnp.isnan(radius), step.radius / 2, radius)
        # A radius of 0 would mark the evaluation of an initial point.
        return jnp.maximum(radius, jnp.asarray(jnp.finfo(radius.dtype).tiny, radius.dtype))


def initial_radius(factor: Any, scale: jax.Array, x: jax.Array, cost: jax.Array) -> jax.Array:
    r"""Return the initial trust-region radius (Moré 1978, section 7).

    .. math:: \Delta = c \max(\|D x\|, 10^{-4} \|r\|), \quad
        \text{or } c \|r\| \text{ if } D x = 0

    Without the lower bound, steps from tiny params would decrease the cost only by a negligible
    share.

    Args:
        factor: The factor `c`.
        scale: The scaling `D`, of shape `[n]`.
        x: The params, of shape `[n]`.
        cost: The cost, half the sum of squares.
    """
    size = length(scale * x)
    residual_norm = jnp.sqrt(2 * cost)
    lower = jnp.asarray(SHARE, residual_norm.dtype) * residual_norm
    size = jnp.where(size > 0, jnp.maximum(size, lower), residual_norm)
    return jnp.asarray(factor, size.dtype) * jnp.where(size > 0, size, jnp.ones_like(size))


def _shrink_factor(actual: jax.Array, slope: jax.Array) -> jax.Array:
    r"""Return the factor for a shorter step, the minimizer of a parabola clipped to [0.1, 0.5].

    The parabola along the step has the slope :math:`g^T p` at the start and the reduction
    :math:`\delta f` of the cost at the end. It is minimized by

    .. math:: \mu = \frac{\tfrac12 g^T p}{g^T p + \delta f}.

    Reference:
        Moré (1978), section 7; Dennis and Schnabel (1983), section 6.3.2.
    """
    dtype = actual.dtype
    half, low = jnp.asarray(0.5, dtype), jnp.asarray(0.1, dtype)
    tiny = jnp.asarray(jnp.finfo(dtype).tiny, dtype)
    # If the cost increased, the denominator is negative. Otherwise the denominator may be zero.
    mu = half * slope / jnp.minimum(slope + actual, -tiny)
    mu = jnp.where(jnp.isfinite(mu), jnp.clip(mu, low, half), low)
    return jnp.where(actual >= 0, half, mu)


def _trust_region(step: StepEvaluation) -> jax.Array:
    r"""Shrink the trust region after a poor step, and grow the region after a good step.

    .. math:: \Delta \leftarrow \begin{cases}
        \mu \min(\Delta, 10 \|D p\|) & \rho < 0.25 \\
        \max(\Delta, 2 \|D p\|) & \rho > 0.75 \text{ or } \lambda = 0 \\
        \Delta & \text{otherwise, and right after a rejected step} \end{cases}

    A radius far larger than the step doesn't limit the step, so shrinking only the radius would
    repeat the same step. The radius doesn't grow directly after a rejected step; otherwise every
    second step along a narrow valley is rejected. The gain ratio of a step that changes the cost
    only within rounding error has no meaning. If such a step is damped, the region is too small
    and grows by a factor of 10, the inverse of the smallest shrink factor.

    Reference:
        Moré (1978), section 7, and MINPACK's `lmder`.
    """
    radius, step_length = step.radius, step.trial.length
    dtype = radius.dtype
    shrink = _shrink_factor(step.actual, step.trial.slope)
    ten = jnp.asarray(10, dtype)
    smaller = shrink * jnp.minimum(radius, ten * step_length)
    good = (step.gain > jnp.asarray(GOOD, dtype)) | (step.trial.lam <= 0)
    good &= step.rejections == 0
    larger = jnp.maximum(radius, jnp.asarray(2, dtype) * step_length)
    new_radius = jnp.where(good, larger, radius)
    new_radius = jnp.where(step.gain < jnp.asarray(POOR, dtype), smaller, new_radius)
    noise_radius = jnp.where(step.interior, radius, ten * radius)
    return jnp.where(step.within_noise, noise_radius, new_radius)


def _marquardt(step: StepEvaluation) -> jax.Array:
    r"""Divide the damping by ten after an accepted step; multiply by ten after a rejected step.

    Reference:
        Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters.
    """
    ten = jnp.asarray(10, step.radius.dtype)
    return _clip_inverse_damping(jnp.where(step.accepted, step.radius * ten, step.radius / ten))


def _nielsen(step: StepEvaluation) -> jax.Array:
    r"""Update the damping as a continuous function of the gain ratio.

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
    return _clip_inverse_damping(step.radius / jnp.where(step.accepted, good, nu))


def _clip_inverse_damping(radius: jax.Array) -> jax.Array:
    """Clip the inverse damping, so that its inverse doesn't overflow and is at least epsilon."""
    # Scaled columns have a norm of about 1, so a smaller damping would be lost in rounding.
    info = jnp.finfo(radius.dtype)
    return jnp.clip(radius, info.tiny, 1 / info.eps)


def _backtracking(step: StepEvaluation) -> jax.Array:
    """Reset the step size to 1 after an accepted step; reduce it after a rejected step."""
    shrink = _shrink_factor(step.actual, step.trial.slope)
    one = jnp.ones_like(step.radius)
    return jnp.where(step.accepted, one, shrink * step.radius)


TRUST_REGION = RadiusRule(_trust_region, is_region=True)
MARQUARDT = RadiusRule(_marquardt)
NIELSEN = RadiusRule(_nielsen)
BACKTRACKING = RadiusRule(_backtracking)
