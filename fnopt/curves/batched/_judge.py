"""The judgement of trial steps: acceptance and status."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.curves.batched._bounds import LaneBox, faced, predicted_reduction
from fnopt.curves.batched._evidence import NOISE, SLOPING
from fnopt.curves.batched._lanes import Lanes, LaneTolerances, Params
from fnopt.curves.batched._metric import metric
from fnopt.linear import NormalEquations, jacobi_scale
from fnopt.solvers import (
    LEAST_GAIN,
    cost_converged,
    first_of,
    is_lost_in_rounding,
    step_converged,
)

_MOST_DAMPING = 1e16  # steps are far below rounding then


class LaneTrial(NamedTuple):
    """A trial, as the linear model predicted it and as it turned out."""

    slope: jax.Array  # of the sum of squares along the step, 2 g^T p
    predicted: jax.Array  # reduction of the sum of squares
    actual: jax.Array  # the same, measured; minus infinity where the trial isn't finite
    length: jax.Array  # squared, ||D p||^2 with D the norms of the Jacobian's columns
    size: jax.Array  # squared, ||D x||^2
    finite: jax.Array  # bool
    known: jax.Array  # bool, the sum of squares is a number, be it that it overflows
    negligible: jax.Array  # bool, both reductions drown in rounding: their ratio says nothing


def examine(
    lanes: Lanes, new: NormalEquations, tol: LaneTolerances, box: LaneBox | None = None
) -> LaneTrial:
    r"""Compares the trial with its prediction.

    .. math:: \|r\|^2 - \|r + J p\|^2 = -p^T g + \lambda \|D p\|^2
        \quad\text{because}\quad (J^T J + \lambda D^2)\, p = -g

    The right side has no cancellation. The step is taken as it was rounded when it was added. One
    that was cut back at a bound doesn't solve that equation.
    """
    zero = jnp.zeros_like(lanes.lam)
    slope, length, size = zero, zero, zero
    scale = metric(lanes.x, lanes.sums, lanes.peak, tol.size_floor)
    for x, trial, s, g in zip(lanes.x, lanes.trial, scale, lanes.sums.g, strict=True):
        p = trial - x
        slope += p * g
        length += jnp.square(p / s)
        size += jnp.square(x / s)
    predicted = lanes.lam * length - slope
    if box is not None:
        step = tuple(trial - x for x, trial in zip(lanes.x, lanes.trial, strict=True))
        predicted = predicted_reduction(lanes.sums, step)
    finite = _is_finite(lanes.trial, new)
    actual = jnp.where(finite, lanes.sums.square - new.square, jnp.full_like(zero, -jnp.inf))
    negligible = is_lost_in_rounding(actual, predicted, tol.noise * lanes.sums.square)
    known = ~jnp.isnan(new.square)
    return LaneTrial(2 * slope, predicted, actual, length, size, finite, known, negligible)


def _is_finite(x: Params, sums: NormalEquations) -> jax.Array:
    # The other sums are bounded by these: Cauchy-Schwarz.
    finite = jnp.isfinite(sums.square)
    for x_i, row in zip(x, sums.A, strict=True):
        finite &= jnp.isfinite(x_i) & jnp.isfinite(row[-1])
    return finite


def improves(trial: LaneTrial) -> jax.Array:
    """Whether to go there.

    Where gains are rounding the gradient, which is much more exact, is trusted: such steps give
    the params digits that the cost can't show any more.
    """
    enough = jnp.asarray(LEAST_GAIN, trial.actual.dtype) * trial.predicted
    gains = (trial.actual >= enough) & (trial.predicted > 0)
    return trial.finite & (gains | trial.negligible)


def gradient_cosine(sums: NormalEquations) -> jax.Array:
    r"""The squared largest cosine between the residual and a column of the Jacobian.

    .. math:: \max_j \frac{(J_j^T r)^2}{\|J_j\|^2 \|r\|^2}
    """
    steepest = jnp.zeros_like(sums.square)
    for s, g in zip(jacobi_scale(sums.A), sums.g, strict=True):
        steepest = jnp.maximum(steepest, jnp.square(s * g))
    return jnp.where(sums.felt > 0, steepest / sums.felt, steepest)


def status_after(
    lanes: Lanes,
    after: Lanes,
    trial: LaneTrial,
    short: jax.Array,
    tol: LaneTolerances,
    box: LaneBox | None = None,
) -> jax.Array:
    """The status of every lane after a trial.

    Args:
        lanes: Before it.
        after: After it: at the trial where that was accepted.
        trial: The trial.
        short: Whether the step was only short because its damping was: it shows nothing then.
        tol: The tolerances.
        box: The bounds.

    Returns:
        An int32 array, `RUNNING` where there is work left.
    """
    f = lanes.sums.felt
    # Beside a length whose square overflows every step would be tiny.
    tried = ~(lanes.fresh | short) & jnp.isfinite(trial.size)
    sums, lam = after.sums, after.lam
    cosine = gradient_cosine(faced(sums, after.x, box))
    stationary = (sums.square <= 0) | (cosine <= jnp.square(tol.gtol))
    square = lanes.sums.square
    noise = tol.noise * square
    flat = cost_converged(trial.actual, trial.predicted, square, tol.ftol, noise)
    flat &= trial.predicted <= tol.ftol * f
    # What one param alone could gain, where the damping doesn't let it, isn't nothing.
    rough = rounding(after)
    flat &= ~_is_sloping(cosine, f, tol.ftol, rough)
    tiny = step_converged(trial.length, trial.size, jnp.square(tol.xtol))
    stuck = lam > jnp.asarray(_MOST_DAMPING, f.dtype)
    sloping = _is_sloping(cosine, f, jnp.asarray(SLOPING**2, f.dtype), rough)
    collapsed = tried & (stuck | (tiny & (~trial.finite | sloping)))
    return first_of(
        (lanes.fresh & ~trial.known, Status.NONFINITE_START),
        # The squares may overflow, and the residuals not: others can fit that.
        (lanes.fresh & ~trial.finite, Status.NONFINITE_STEP),
        (stationary, Status.CONVERGED_GRADIENT),
        (tried & flat, Status.CONVERGED_COST),
        (collapsed & ~trial.finite, Status.NONFINITE_STEP),
        (collapsed, Status.STALLED),
        (tried & tiny, Status.CONVERGED_STEP),
    )


def _is_sloping(cosine: jax.Array, f: jax.Array, least: jax.Array, rough: jax.Array) -> jax.Array:
    """Whether the scaled gradient is above a fraction of the residuals, and above rounding.

    All are squares here.
    """
    return cosine * f > jnp.maximum(least * f, jnp.asarray(NOISE**2, f.dtype) * rough)


def rounding(lanes: Lanes) -> jax.Array:
    r"""The square of the rounding of the residuals, :math:`\epsilon^2 \sum \|J_j x_j\|^2`."""
    total = jnp.zeros_like(lanes.sums.square)
    for x, row in zip(lanes.x, lanes.sums.A, strict=True):
        total += row[-1] * jnp.square(x)
    return jnp.square(jnp.finfo(total.dtype).eps).astype(total.dtype) * total


def least_gain(lanes: Lanes) -> jax.Array:
    """What a change of the sum of squares has to exceed to be more than rounding."""
    rough = rounding(lanes)
    return jnp.asarray(NOISE**2, rough.dtype) * rough
