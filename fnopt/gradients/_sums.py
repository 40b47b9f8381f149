"""Sums and norms of per-example gradients, without overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.numerics import (
    HIGHEST,
    compute_dtype,
    joint_norm,
    matmul,
    out_of_range,
    per_row,
    range_divisor,
    safe_sqrt,
    sum_of_squares,
    widen,
)
from fnopt.sharding import product_sharding, replicate, reshape, reshard_like

Lengths = Sequence[jax.Array]
"""A quantity of every example's gradient, `[n]`, for each leaf of the params."""


def squares_of(x: jax.Array) -> jax.Array:
    """Squared norms of formed gradients, `[n]`, at least float32."""
    return jax.vmap(sum_of_squares)(x)


def unit_of(x: jax.Array) -> jax.Array:
    """Return a divisor that prevents overflow and underflow of an array's squares."""
    return range_divisor(jnp.max(jnp.abs(x), initial=0))


def lengths_of(x: jax.Array) -> jax.Array:
    """Norms of formed gradients, `[n]`, by a second pass with a scale factor per example."""

    def norm_of_example(x: jax.Array) -> jax.Array:
        unit = unit_of(x)
        squares = sum_of_squares(x / unit.astype(x.dtype))
        return safe_sqrt(squares) * unit.astype(squares.dtype)

    return jax.vmap(norm_of_example)(x)


def squared_deviations(x: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean of the selected gradients, and the sum of squared deviations from the mean."""
    x = widen(x)
    # The mean is taken of differences from one gradient. They are zero if all gradients are equal,
    # and the mean of small differences is accurate.
    first = replicate(x, 0)[jnp.argmax(replicate(counts))]
    x = x - first  # exact for gradients near each other (Sterbenz)
    mean = weighted_total(counts, x) / number(counts, x.dtype)
    return first + mean, jnp.sum(only_where(counts > 0, squares_of(x - mean)))


def number(counts: jax.Array, dtype: Any) -> jax.Array:
    """Number of selected examples, at least 1, as a divisor."""
    return jnp.maximum(jnp.sum(counts), 1).astype(dtype)


def block_norms(
    squares: Lengths, careful: Callable[[], Lengths], blocks: Sequence[int], count: int
) -> jax.Array:
    """The norms of blocks of params, `[blocks, n]`.

    Args:
        squares: Squared norms per leaf; in float32 they underflow or overflow for norms below 1e-19
            or above 1e19.
        careful: Function that computes the norms per leaf without overflow, called only if squares
            overflow or underflow.
        blocks: The block index of every leaf.
        count: Number of blocks; a block without leaves has norm 0.
    """
    members = [[i for i, b in enumerate(blocks) if b == block] for block in range(count)]
    plain = jnp.stack([_sum([squares[i] for i in own], squares[0]) for own in members])
    bad = out_of_range(plain)

    def again() -> jax.Array:
        norms = careful()
        none = jnp.zeros_like(plain[0])  # norm of a block without leaves
        found = jnp.stack(
            [joint_norm([norms[i].astype(none.dtype) for i in own] or [none]) for own in members]
        )
        return jnp.where(bad, found, safe_sqrt(plain))

    # `cond` replaces a select, because the second pass costs as much as the first, and is rare.
    return jax.lax.cond(jnp.any(bad), again, lambda: safe_sqrt(plain))


def _sum(parts: Lengths, like: jax.Array) -> jax.Array:
    total = parts[0] if parts else jnp.zeros_like(like)
    for part in parts[1:]:
        total = total + part
    return total


REDUCTIONS = ("sum", "mean")


def zero_sums(params: Any) -> Any:
    """Zeros like the params, at least float32, because long sums lose digits in bfloat16."""
    wide = jax.tree.map(lambda p: compute_dtype(jnp.result_type(p)), params)
    return jax.tree.map(lambda p, d: reshard_like(jnp.zeros(jnp.shape(p), d), p), params, wide)


def like_params(sums: Any, params: Any) -> Any:
    """Cast sums to the dtypes and shardings of the params, like the results of `jax.grad`."""
    return jax.tree.map(lambda s, p: reshard_like(s.astype(jnp.result_type(p)), p), sums, params)


def weighted_total(weights: jax.Array, x: jax.Array) -> jax.Array:
    """`sum_i weights[i] * x[i]` over the leading axis, at least float32."""
    # The sum is a matrix product, because XLA's reduction over a leading axis is 60x slower on a
    # CPU. Its precision is the highest, because an accelerator would otherwise round the weights to
    # fewer digits.
    dtype = compute_dtype(x.dtype)
    weights, x = weights.astype(dtype), x.astype(dtype)
    sharding = product_sharding(weights, x, (0, 0))
    out: Any = {} if sharding is None else {"out_sharding": sharding}
    return jnp.tensordot(weights, x, axes=1, precision=HIGHEST, **out)


def only_where(wanted: jax.Array, x: jax.Array) -> jax.Array:
    """Set excluded examples to zero; multiplication by a weight of zero would keep NaN."""
    return jnp.where(per_row(wanted, x), x, jnp.zeros((), x.dtype))


def scaled_rows(factors: jax.Array, x: jax.Array) -> jax.Array:
    """`factors[i] * x[i]`, at least float32."""
    wide = widen(x)
    return wide * per_row(factors.astype(wide.dtype), x)


def inner_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Real inner products of all `x[i]` with all `y[j]`, `[n, m]`, at least float32."""
    dtype = compute_dtype(x.dtype, y.dtype)
    a, b = (reshape(z.astype(dtype), z.shape[0], -1) for z in (x, y))
    # Re<x, y> is the inner product of the real and imaginary parts side by side.
    if jnp.issubdtype(dtype, jnp.complexfloating):
        a, b = (jnp.concatenate([jnp.real(z), jnp.imag(z)], axis=1) for z in (a, b))
    return matmul(a, b.T)
