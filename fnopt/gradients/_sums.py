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
"""For each leaf of the params, one number per example, `[n]`, such as a norm."""


def formed_squared_norms(x: jax.Array) -> jax.Array:
    """Squared norms of formed gradients, `[n]`, at least float32."""
    return jax.vmap(sum_of_squares)(x)


def range_scale(x: jax.Array) -> jax.Array:
    """Divisor that prevents overflow and underflow of an array's squares."""
    return range_divisor(jnp.max(jnp.abs(x), initial=0))


def formed_norms(x: jax.Array) -> jax.Array:
    """Norms of formed gradients, `[n]`; every example is scaled, so that no square overflows."""

    def norm_of_example(x: jax.Array) -> jax.Array:
        scale = range_scale(x)
        square = sum_of_squares(x / scale.astype(x.dtype))
        return safe_sqrt(square) * scale.astype(square.dtype)

    return jax.vmap(norm_of_example)(x)


def squared_deviations(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean of the selected gradients, and the sum of squared deviations from the mean."""
    x = widen(x)
    # Differences from one gradient are exactly zero if all gradients are equal, and their mean has
    # a small rounding error relative to the deviations.
    first = replicate(x, 0)[jnp.argmax(replicate(mask))]
    x = x - first  # exact for gradients within a factor of two (Sterbenz lemma)
    mean = weighted_total(mask, x) / selected_count(mask, x.dtype)
    return first + mean, jnp.sum(zero_excluded(mask > 0, formed_squared_norms(x - mean)))


def selected_count(mask: jax.Array, dtype: Any) -> jax.Array:
    """Number of selected examples as a divisor, at least 1."""
    return jnp.maximum(jnp.sum(mask), 1).astype(dtype)


def block_norms(
    squares: Lengths, compute_scaled: Callable[[], Lengths], blocks: Sequence[int], count: int
) -> jax.Array:
    """Norms of blocks of params, `[blocks, n]`.

    Args:
        squares: Squared norms per leaf; in float32 they underflow or overflow for norms below 1e-19
            or above 1e19.
        compute_scaled: Function that computes the norms per leaf with scaling, called only if
            squares overflow or underflow.
        blocks: The block index of every leaf.
        count: Number of blocks; a block without leaves has norm 0.
    """
    members = [[i for i, b in enumerate(blocks) if b == block] for block in range(count)]
    sums = jnp.stack([_sum([squares[i] for i in own], squares[0]) for own in members])
    bad = out_of_range(sums)

    def replace_bad() -> jax.Array:
        norms = compute_scaled()
        empty = jnp.zeros_like(sums[0])  # norm of a block without leaves
        scaled = jnp.stack(
            [joint_norm([norms[i].astype(empty.dtype) for i in own] or [empty]) for own in members]
        )
        return jnp.where(bad, scaled, safe_sqrt(sums))

    # `cond`, not a select: the second pass costs as much as the first and is rarely needed.
    return jax.lax.cond(jnp.any(bad), replace_bad, lambda: safe_sqrt(sums))


def _sum(parts: Lengths, like: jax.Array) -> jax.Array:
    total = parts[0] if parts else jnp.zeros_like(like)
    for part in parts[1:]:
        total = total + part
    return total


REDUCTIONS = ("sum", "mean")


def zero_sums(params: Any) -> Any:
    """Zeros like the params in at least float32, because long sums lose digits in bfloat16."""
    wide = jax.tree.map(lambda p: compute_dtype(jnp.result_type(p)), params)
    return jax.tree.map(lambda p, d: reshard_like(jnp.zeros(jnp.shape(p), d), p), params, wide)


def like_params(sums: Any, params: Any) -> Any:
    """Cast sums to the dtypes and shardings of the params, like the results of `jax.grad`."""
    return jax.tree.map(lambda s, p: reshard_like(s.astype(jnp.result_type(p)), p), sums, params)


def weighted_total(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Weighted sum `sum_i weights[i] * x[i]` over the leading axis, at least float32."""
    # A matrix product, because XLA's reduction over a leading axis is 60x slower on a CPU. The
    # precision is the highest, because accelerators otherwise round the weights to fewer digits.
    dtype = compute_dtype(x.dtype)
    weights, x = weights.astype(dtype), x.astype(dtype)
    sharding = product_sharding(weights, x, (0, 0))
    out: Any = {} if sharding is None else {"out_sharding": sharding}
    return jnp.tensordot(weights, x, axes=1, precision=HIGHEST, **out)


def zero_excluded(mask: jax.Array, x: jax.Array) -> jax.Array:
    """Set excluded examples to zero."""
    # A select, because NaN times a weight of zero is NaN.
    return jnp.where(per_row(mask, x), x, jnp.zeros((), x.dtype))


def scaled_rows(factors: jax.Array, x: jax.Array) -> jax.Array:
    """Multiply `x[i]` by `factors[i]`, in at least float32."""
    wide = widen(x)
    return wide * per_row(factors.astype(wide.dtype), x)


def inner_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """Real inner products of all `x[i]` with all `y[j]`, `[n, m]`, at least float32."""
    dtype = compute_dtype(x.dtype, y.dtype)
    a, b = (reshape(z.astype(dtype), z.shape[0], -1) for z in (x, y))
    # Re<x, y> is the inner product of the concatenated real and imaginary parts.
    if jnp.issubdtype(dtype, jnp.complexfloating):
        a, b = (jnp.concatenate([jnp.real(z), jnp.imag(z)], axis=1) for z in (a, b))
    return matmul(a, b.T)
