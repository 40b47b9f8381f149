"""Ways to get at per-example gradients that are reduced at once, and how one is chosen."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype
from fnopt.gradients._checks import check_choice

METHODS = ("auto", "vmap", "chunked")

# How many bytes the per-example gradients of one chunk may take. On a CPU a chunk that fits its
# caches is fastest (measured on a dense network and a transformer); an accelerator needs enough
# examples at once to be busy (its figure is an estimate).
_CPU_CHUNK_BYTES = 4 * 2**20
_ACCELERATOR_CHUNK_BYTES = 512 * 2**20


def check_method(method: str, chunk_size: int | None, name: str) -> None:
    """Refuses a method that doesn't exist, or that contradicts the chunk size."""
    check_choice(method, METHODS, "method", name)
    if method == "vmap" and chunk_size is not None:
        raise ValueError(
            f"{name}: method='vmap' takes the whole batch at once, but chunk_size is {chunk_size}. "
            "Use method='chunked' or leave one of them out."
        )


def chosen_chunk_size(method: str, chunk_size: int | None, params: Any, size: int) -> int | None:
    """How many of `size` examples to take at once: what was asked for, or what fits the budget."""
    if method == "vmap" or chunk_size is not None:
        return chunk_size
    budget = _CPU_CHUNK_BYTES if jax.default_backend() == "cpu" else _ACCELERATOR_CHUNK_BYTES
    most = min(size, max(1, budget // max(1, _gradient_bytes(params))))
    # A divisor close by spares the remainder chunk, which is compiled apart.
    return next((k for k in range(most, most // 2, -1) if size % k == 0), most)


def _gradient_bytes(params: Any) -> int:
    return sum(
        math.prod(jnp.shape(leaf)) * compute_dtype(jnp.result_type(leaf)).itemsize
        for leaf in jax.tree.leaves(params)
    )
