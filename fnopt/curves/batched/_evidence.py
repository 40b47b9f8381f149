"""What shows that a fit of a batch ended where a parameter has lost its effect."""

from __future__ import annotations

import jax
import jax.numpy as jnp

SLOPING = 1e-5  # of the residual's length; a slope below it counts as a stationary point
NOISE = 30  # how far above its estimate rounding was seen to reach
HARDLY = 0.01  # of the residuals, that a param without effect may have moved
_FAR = 100  # times its start; so far goes no param that ends at a minimum
_VANISHED = 0.45  # power of the rounding unit: what is left of a column that counts no more


def lost_effect(
    columns: jax.Array, peak: jax.Array, reach: jax.Array, residual: jax.Array
) -> jax.Array:
    """Which params have lost their effect, of one problem or of many.

    Nearly nothing is left of their columns, nor would the residuals know it if they went back, or
    changed by their own size: the column of a centre shrinks with the height of its peak, and means
    as much as before.

    Args:
        columns: The norms of the Jacobian's columns.
        peak: The largest of them that were seen.
        reach: How far the params have come, or how large they are if that is more.
        residual: The length of the residuals.
    """
    dtype = peak.dtype
    rest = columns <= jnp.asarray(float(jnp.finfo(dtype).eps) ** _VANISHED, dtype) * peak
    hardly = jnp.asarray(HARDLY, dtype) * residual
    return (peak > 0) & rest & (columns * reach <= hardly)


def goes_far(x: jax.Array, start: jax.Array) -> jax.Array:
    """Which params are a hundred times their start; one that began at zero never is."""
    return (start != 0) & (jnp.abs(x) > jnp.asarray(_FAR, x.dtype) * jnp.abs(start))
