"""Norms of the gradients of examples, right wherever they can be represented."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import (
    compute_dtype,
    joint_norm,
    out_of_range,
    range_divisor,
    safe_sqrt,
    sum_of_squares,
)
from fnopt.gradients._sums import only_where, weighted_total
from fnopt.sharding import replicate

Lengths = Sequence[jax.Array]
"""By leaf of the params: something of the gradients of all examples, `[n]` each."""


def squares_of(x: jax.Array) -> jax.Array:
    """The squared norms of formed gradients, `[n]`, at least float32."""
    return jax.vmap(sum_of_squares)(x)


def unit_of(x: jax.Array) -> jax.Array:
    """A divisor that brings an array into range."""
    return range_divisor(jnp.max(jnp.abs(x), initial=0))


def lengths_of(x: jax.Array) -> jax.Array:
    """The norms of formed gradients, `[n]`, by a scale for each of them: one more pass."""

    def norm_of_example(x: jax.Array) -> jax.Array:
        unit = unit_of(x)
        squares = sum_of_squares(x / unit.astype(x.dtype))
        return safe_sqrt(squares) * unit.astype(squares.dtype)

    return jax.vmap(norm_of_example)(x)


def spread_around(x: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean of the formed gradients that count, and the sum of squared distances from it."""
    x = x.astype(compute_dtype(x.dtype))
    # From one of them first: zero if all are the same, and small numbers have an exact mean.
    first = replicate(x, 0)[jnp.argmax(replicate(counts))]
    x = x - first
    mean = weighted_total(counts, x) / number(counts, x.dtype)
    return first + mean, jnp.sum(only_where(counts > 0, squares_of(x - mean)))


def number(counts: jax.Array, dtype: Any) -> jax.Array:
    """The number of examples that count, at least 1: a divisor."""
    return jnp.maximum(jnp.sum(counts), 1).astype(dtype)


def block_norms(
    squares: Lengths, careful: Callable[[], Lengths], blocks: Sequence[int], count: int
) -> jax.Array:
    """The norms of blocks of params, `[blocks, n]`.

    Args:
        squares: Squared norms by leaf; out of range if the norms are below 1e-19 or above 1e19.
        careful: Gives the norms by leaf in another way; only run where sums are out of range.
        blocks: By leaf, the number of its block.
        count: How many blocks there are; one without a leaf has norm 0.
    """
    members = [[i for i, b in enumerate(blocks) if b == block] for block in range(count)]
    plain = jnp.stack([_sum([squares[i] for i in own], squares[0]) for own in members])
    bad = out_of_range(plain)

    def again() -> jax.Array:
        norms = careful()
        found = jnp.stack([_joint([norms[i] for i in own], plain[0]) for own in members])
        return jnp.where(bad, found, safe_sqrt(plain))

    return jax.lax.cond(jnp.any(bad), again, lambda: safe_sqrt(plain))


def _sum(parts: Lengths, like: jax.Array) -> jax.Array:
    total = parts[0] if parts else jnp.zeros_like(like)
    for part in parts[1:]:
        total = total + part
    return total


def _joint(norms: Lengths, like: jax.Array) -> jax.Array:
    return joint_norm([x.astype(like.dtype) for x in norms]) if norms else jnp.zeros_like(like)
