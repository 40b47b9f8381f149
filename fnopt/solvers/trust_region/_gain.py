"""The gain ratio of a step: its actual over its predicted reduction."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import row_total

LEAST_GAIN = 1e-4  # Moré's p0: less than this fraction of the prediction is no progress


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
    reduction = half * row_total(jnp.sum((before - after) * (before + after)))
    return jnp.where(jnp.isfinite(reduction), reduction, jnp.asarray(-jnp.inf, before.dtype))


def gain_ratio(actual: jax.Array, predicted: jax.Array) -> jax.Array:
    """The actual reduction of the cost over the predicted one; -1 where nothing is predicted."""
    safe = jnp.where(predicted > 0, predicted, jnp.ones_like(predicted))
    return jnp.where(predicted > 0, actual / safe, -jnp.ones_like(actual))


def is_negligible(
    actual: jax.Array, predicted: jax.Array, noise: jax.Array, change: jax.Array | None = None
) -> jax.Array:
    """Whether both reductions drown in rounding, so their ratio says nothing.

    Args:
        actual: The actual reduction.
        predicted: The predicted one.
        noise: The rounding of the cost.
        change: That of its change from one point to another, if it is more.
    """
    return (predicted <= noise) & (jnp.abs(actual) <= (noise if change is None else change))


def is_accepted(actual: jax.Array, predicted: jax.Array, negligible: jax.Array) -> jax.Array:
    r"""Whether to take the step: it gains enough, or it costs nothing where gains are noise.

    The cost never rises. Where the ratio is noise, a step that doesn't raise the cost is taken
    nevertheless: near the solution of a problem with a large residual the params still gain
    digits that the cost can no longer show.
    """
    least = jnp.asarray(LEAST_GAIN, predicted.dtype) * predicted
    return (actual >= 0) & (((predicted > 0) & (actual > least)) | negligible)
