"""Sums of gradients over a batch, in a dtype that can hold them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype

REDUCTIONS = ("sum", "mean")


def zero_sums(params: Any) -> Any:
    """Zeros like the params, at least float32: sums over many chunks lose digits in bfloat16."""

    def zeros(leaf: Any) -> jax.Array:
        return jnp.zeros(jnp.shape(leaf), compute_dtype(jnp.result_type(leaf)))

    return jax.tree.map(zeros, params)


def add_to_sums(sums: Any, grads: Any) -> Any:
    """Adds gradients to sums, in the dtype of the sums."""
    return jax.tree.map(lambda total, grad: total + grad.astype(total.dtype), sums, grads)


def like_params(sums: Any, params: Any) -> Any:
    """Sums in the dtypes of the params, as `jax.grad` returns them."""
    return jax.tree.map(lambda total, leaf: total.astype(jnp.result_type(leaf)), sums, params)
