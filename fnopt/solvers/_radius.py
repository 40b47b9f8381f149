"""The rule for the trust radius."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def shrink_factor(actual: jax.Array, slope: jax.Array) -> jax.Array:
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


def next_radius(
    radius: jax.Array,
    length: jax.Array,
    gain: jax.Array,
    shrink: jax.Array,
    newton: jax.Array,
    refused: jax.Array,
) -> jax.Array:
    r"""Shrinks after a poor step, grows after a good one.

    .. math:: \Delta \leftarrow \begin{cases}
        \mu \min(\Delta, 10 \|D p\|) & \rho < 0.25 \\
        \max(\Delta, 2 \|D p\|) & \rho > 0.75 \text{ or } \lambda = 0 \\
        \Delta & \text{otherwise, and right after a refused step} \end{cases}

    Args:
        radius: The radius now.
        length: The length of the step, :math:`\|D p\|`.
        gain: The gain ratio.
        shrink: The factor :math:`\mu`.
        newton: Whether the step was undamped.
        refused: Whether the step before it was refused. The radius was too large then, so it
            doesn't grow back at once: else every second step of a crawl in a valley is refused.

    Returns:
        The next radius.
    """
    dtype = radius.dtype
    smaller = shrink * jnp.minimum(radius, jnp.asarray(10, dtype) * length)
    larger = jnp.maximum(radius, jnp.asarray(2, dtype) * length)
    good = ((gain > jnp.asarray(0.75, dtype)) | newton) & ~refused
    kept = jnp.where(good, larger, radius)
    return jnp.where(gain < jnp.asarray(0.25, dtype), smaller, kept)
