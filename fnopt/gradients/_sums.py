"""Sums of gradients over a batch, in a dtype that can hold them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, matmul, per_row, weighted_rows
from fnopt.sharding import reshape, reshard_like

REDUCTIONS = ("sum", "mean")


def zero_sums(params: Any) -> Any:
    """Zeros like the params, at least float32: sums over many chunks lose digits in bfloat16."""

    def zeros(leaf: Any) -> jax.Array:
        zero = jnp.zeros(jnp.shape(leaf), compute_dtype(jnp.result_type(leaf)))
        return reshard_like(zero, leaf)

    return jax.tree.map(zeros, params)


def like_params(sums: Any, params: Any) -> Any:
    """Sums in the dtypes of the params and as they lie, as `jax.grad` returns them."""

    def cast_leaf(total: jax.Array, leaf: Any) -> jax.Array:
        return reshard_like(total.astype(jnp.result_type(leaf)), leaf)

    return jax.tree.map(cast_leaf, sums, params)


def weighted_total(weights: jax.Array, x: jax.Array) -> jax.Array:
    """`sum_i weights[i] * x[i]` over the leading axis, at least float32."""
    # A matrix product, because XLA's reduction over a leading axis is 60x slower on a CPU; at the
    # highest precision, or an accelerator would round the weights to fewer digits.
    dtype = compute_dtype(x.dtype)
    return weighted_rows(weights.astype(dtype), x.astype(dtype))


def only_where(wanted: jax.Array, x: jax.Array) -> jax.Array:
    """Zero for the examples that do not count: a weight of zero would not hide a NaN."""
    return jnp.where(per_row(wanted, x), x, jnp.zeros((), x.dtype))


def scaled_rows(factors: jax.Array, x: jax.Array) -> jax.Array:
    """`factors[i] * x[i]`, at least float32."""
    wide = x.astype(compute_dtype(x.dtype))
    return wide * per_row(factors.astype(wide.dtype), x)


def inner_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """The real inner products of all `x[i]` with all `y[j]`, `[n, m]`, at least float32."""
    dtype = compute_dtype(x.dtype, y.dtype)
    a, b = (reshape(z.astype(dtype), z.shape[0], -1) for z in (x, y))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        a, b = (jnp.concatenate([jnp.real(z), jnp.imag(z)], axis=1) for z in (a, b))
    return matmul(a, b.T)
