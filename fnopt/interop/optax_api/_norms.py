"""Norms with a lower bound and derivative zero at zero; saturating counts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt import core


def global_norm(updates: Any) -> jax.Array:
    """Norm of all leaves together."""
    return core.global_norm(updates)


def safe_increment(count: Any) -> jax.Array:
    """Add one to a count of any real dtype; the largest number of the dtype stays."""
    count = jnp.asarray(count)
    if not jnp.issubdtype(count.dtype, jnp.floating):
        return core.safe_increment(count)
    return jnp.minimum(count + jnp.ones_like(count), jnp.finfo(count.dtype).max)


def safe_norm(
    x: jax.Array, min_norm: Any, ord: Any = None, axis: Any = None, keepdims: bool = False
) -> jax.Array:
    """Norm of an array, at least `min_norm`, and constant below."""
    norm = jnp.linalg.norm(x, ord, axis, True)
    small = norm <= min_norm
    norm = jnp.linalg.norm(jnp.where(small, jnp.ones_like(x), x), ord, axis, keepdims)
    small = small if keepdims else jnp.squeeze(small, axis)
    return jnp.where(small, jnp.asarray(min_norm, norm.dtype), norm)


def safe_root_mean_squares(x: jax.Array, min_rms: Any) -> jax.Array:
    """Root mean square of an array, at least `min_rms`, and constant below."""
    mean = jnp.mean(jnp.square(jnp.abs(x)))
    small = mean <= jnp.square(jnp.asarray(min_rms, mean.dtype))
    rms = jnp.sqrt(jnp.where(small, jnp.ones_like(mean), mean))
    return jnp.where(small, jnp.asarray(min_rms, rms.dtype), rms)
