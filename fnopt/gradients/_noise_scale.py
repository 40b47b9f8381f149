"""The gradient noise scale from batches of two sizes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, default_float
from fnopt.sharding import psum


def noise_scale(
    small_norm: Any, big_norm: Any, small_size: int, big_size: int, *, axis_name: Any = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    r"""The gradient noise scale from the norms of gradients on batches of two sizes.

    .. math:: \lvert G \rvert^2 \approx \frac{B \lvert g_B \rvert^2 - b \lvert g_b \rvert^2}
              {B - b}, \qquad
              \mathrm{tr}\,\Sigma \approx \frac{\lvert g_b \rvert^2 - \lvert g_B \rvert^2}
              {1/b - 1/B}, \qquad B_\mathrm{simple} = \frac{\mathrm{tr}\,\Sigma}{\lvert G \rvert^2}

    In data-parallel training both come for free: the gradient of one device, and their mean. The
    two estimates are noisy but unbiased, their ratio is not: average the estimates over steps and
    divide the averages.

    Args:
        small_norm: The norm of a mean gradient over `small_size` examples; or several of them,
            `[k]`, whose squares are averaged.
        big_norm: The norm of a mean gradient over `big_size` examples.
        small_size: `b`.
        big_size: `B > b`.
        axis_name: Inside `jax.shard_map` (or `jax.vmap` with a name), the named axis of the
            devices, or several, whose squares of `small_norm` are averaged: it is then the norm of
            this device's mean gradient, and `big_norm` that of the mean of all.

    Returns:
        `(noise_scale, grad_sq, trace)`: the ratio, and the estimates of `|G|^2` and of the trace.

    Raises:
        ValueError: If the sizes are not `0 < small_size < big_size`.

    Example:
        >>> from fnopt.gradients import noise_scale
        >>> scale, grad_sq, trace = noise_scale(3.0, 2.0, small_size=1, big_size=6)
        >>> float(grad_sq), float(trace), float(scale)
        (3.0, 6.0, 2.0)

    Reference:
        McCandlish et al., 2018, "An Empirical Model of Large-Batch Training", arXiv:1812.06162,
        appendix A.1.
    """
    if not 0 < small_size < big_size:
        raise ValueError(
            f"noise_scale: small_size is {small_size}, big_size is {big_size}, expected "
            "0 < small_size < big_size."
        )
    small, big = (_mean_square(norm) for norm in (small_norm, big_norm))
    small = psum(small, axis_name) / psum(1, axis_name)
    grad_sq = (big_size * big - small_size * small) / (big_size - small_size)
    trace = (small - big) / (1 / small_size - 1 / big_size)
    return trace / grad_sq, grad_sq, trace


def _mean_square(norm: Any) -> jax.Array:
    norm = jnp.asarray(norm)
    dtype = compute_dtype(norm.dtype) if norm.dtype.kind == "f" else default_float()
    return jnp.mean(jnp.square(norm.astype(dtype)))
