"""Strategies for per-example gradients that are reduced at once, and the choice of one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import check_choice, check_chunk_size, compute_dtype
from fnopt.gradients._loss import BoundLoss
from fnopt.gradients.ghost import Ghost, trace_ghost

METHODS = ("auto", "vmap", "chunked", "ghost")

# How many bytes the per-example gradients of one chunk may take. On a CPU a chunk that fits its
# caches is fastest (measured on a dense network and a transformer); an accelerator needs enough
# examples at once to be busy (its figure is an estimate).
_CPU_CHUNK_BYTES = 4 * 2**20
_ACCELERATOR_CHUNK_BYTES = 512 * 2**20

# A chunk of recorded activations may be larger: they are written and read once, and every chunk
# costs another pass over the sums.
_GHOST_FACTOR = 8


class Strategy(NamedTuple):
    """The strategy by which the gradients of a batch are reduced.

    Attributes:
        ghost: The traced loss, if gradients are measured without being formed.
        chunk_size: How many examples are taken at once; `None` for all.
    """

    ghost: Ghost | None
    chunk_size: int | None


def checked_strategy(method: str, chunk_size: int | None, name: str) -> int | None:
    """The chunk size; refuses a method that doesn't exist, or that contradicts it."""
    chunk_size = check_chunk_size(chunk_size, name)
    check_choice(method, METHODS, "method", name)
    if method == "vmap" and chunk_size is not None:
        raise ValueError(
            f"{name}: method='vmap' takes the whole batch at once, but chunk_size is {chunk_size}. "
            "Use method='chunked' or leave one of them out."
        )
    return chunk_size


def choose(method: str, chunk_size: int | None, bound: BoundLoss) -> Strategy:
    """The strategy that was asked for; `'auto'` compares the memory of one example."""
    if method == "vmap":
        return Strategy(None, None)
    gradient = gradient_bytes(bound.params)
    ghost = trace_ghost(bound) if method in {"auto", "ghost"} else None
    if method == "auto" and ghost is not None and ghost.plan.bytes >= gradient:
        ghost = None
    if chunk_size is None:
        per_example = gradient if ghost is None else ghost.plan.bytes // _GHOST_FACTOR
        chunk_size = _fitting(per_example, bound.size)
    return Strategy(ghost, chunk_size)


def _fitting(bytes_per_example: int, size: int) -> int:
    """The number of examples, of `size`, that fit the budget."""
    budget = _CPU_CHUNK_BYTES if jax.default_backend() == "cpu" else _ACCELERATOR_CHUNK_BYTES
    most = min(size, max(1, budget // max(1, bytes_per_example)))
    # A divisor close by spares the remainder chunk, which is compiled apart.
    return next((k for k in range(most, most // 2, -1) if size % k == 0), most)


def gradient_bytes(params: Any) -> int:
    """The size of one example's gradient, float32 or wider."""
    return sum(
        math.prod(jnp.shape(leaf)) * compute_dtype(jnp.result_type(leaf)).itemsize
        for leaf in jax.tree.leaves(params)
    )
