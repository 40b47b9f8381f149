"""Criteria of the flags: dead, vanishing and exploding layers."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Scalar
from fnopt.monitor._health import Health


class Thresholds(Protocol):
    """The thresholds of `health_flags`, where they are explained."""

    dead: Scalar
    exploding: Scalar
    limit: Scalar
    release: Scalar
    decay: Scalar
    vanishing: Scalar
    zeros: Scalar


def is_dead(h: Thresholds, rms: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether each group looks dead, and whether it looks clearly alive.

    The median is taken of the finite groups that have elements. Where most of them are zero it is
    zero too, and they are still found, since zero is not above it.
    """
    counts = present & jnp.isfinite(rms)
    median = _median(rms, counts)
    return counts & (rms <= h.dead * median), rms > h.release * h.dead * median


def is_vanishing(h: Thresholds, rms: jax.Array, present: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether each group is negligible relative to the largest, and whether it clearly is not."""
    counts = present & jnp.isfinite(rms)
    largest = jnp.max(jnp.where(counts, rms, jnp.zeros_like(rms)), initial=0)
    bound = h.vanishing * largest
    return counts & (rms <= bound) & (largest > 0), rms > h.release * bound


def half_dead(h: Thresholds, health: Health, biases: tuple[int | None, ...]) -> jax.Array:
    """Whether half of each group is zero, and of its bias."""
    if health.zeros is None:
        return jnp.zeros(len(biases), bool)
    judged = np.asarray([bias is not None for bias in biases], bool)
    bias = np.asarray([i if b is None else b for i, b in enumerate(biases)], int)
    half = health.zeros >= h.zeros
    return half & half[bias] & judged


def _median(x: jax.Array, counts: jax.Array) -> jax.Array:
    """The (upper) median of the elements that count; zero if none does."""
    zero = jnp.zeros((), x.dtype)
    if not x.size:
        return zero
    # Infinity sorts the elements that do not count behind all others.
    ordered = jnp.sort(jnp.where(counts, x, jnp.asarray(jnp.inf, x.dtype)))
    how_many = jnp.sum(counts, dtype=jnp.int32)
    return jnp.where(how_many > 0, ordered[jnp.minimum(how_many // 2, x.size - 1)], zero)


def is_exploding(h: Thresholds, norm: jax.Array, usual: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Whether each norm is far too large, and whether it clearly is not."""
    # What was negligible in the first observations may become as large as the others.
    least = _median(usual, usual > 0) / 10
    bound = jnp.minimum(h.exploding * jnp.maximum(usual, least), h.limit)
    bound = jnp.where(usual > 0, bound, h.limit)
    return norm > bound, norm < bound / h.release


def next_usual(h: Thresholds, norm: jax.Array, usual: jax.Array, exploding: jax.Array) -> jax.Array:
    """Update the exponential geometric mean of the norms since the first positive one."""
    counts = (norm > 0) & jnp.isfinite(norm) & ~exploding
    one = jnp.ones((), norm.dtype)
    now = jnp.log(jnp.where(counts, norm, one))
    past = jnp.where(usual > 0, jnp.log(jnp.where(usual > 0, usual, one)), now)
    mean = jnp.exp(h.decay * past + (one - h.decay) * now)
    return jnp.where(counts, jnp.maximum(mean, usual), usual)
