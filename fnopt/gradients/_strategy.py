"""Choice of the method and the chunk size, and cache of compiled calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import check_choice, check_chunk_size
from fnopt.gradients._loss import BoundLoss
from fnopt.gradients.ghost import Ghost, trace_ghost
from fnopt.numerics import compute_dtype
from fnopt.programs import TracedFunction, is_eager, is_on_one_device, jit_call, trace_function

METHODS = ("auto", "vmap", "chunked", "ghost")

# Maximum bytes of the per-example gradients of one chunk. On a CPU, chunks that fit into the cache
# are fastest (measured on a dense network and a transformer). An accelerator needs larger chunks
# for full utilization: an H100 writes 512 MB in 0.15 ms (3.35 TB/s), 30 times the 5 us of a launch.
_CPU_CHUNK_BYTES = 4 * 2**20
_ACCELERATOR_CHUNK_BYTES = 512 * 2**20

# Chunks of recorded activations are larger, because every chunk costs another pass over the sums.
# For layers of width 256 to 2,048, a factor of 1 takes 1.2 times as long as 2 (CPU time). A factor
# of 8 takes as long as 2, and more memory.
_GHOST_FACTOR = 2


class Strategy(NamedTuple):
    """Method and chunk size for the gradients of a batch.

    Attributes:
        ghost: The traced loss for the method `'ghost'`; `None` for formed gradients.
        chunk_size: Number of examples to process at once; `None` for all.
    """

    ghost: Ghost | None
    chunk_size: int | None


def checked_strategy(method: str, chunk_size: int | None, name: str) -> int | None:
    """Check the method and the chunk size; return the chunk size as an int or `None`."""
    chunk_size = check_chunk_size(chunk_size, name)
    check_choice(method, METHODS, "method", name)
    if method == "vmap" and chunk_size is not None:
        raise ValueError(
            f"{name}: got chunk_size = {chunk_size} with method = 'vmap', which processes the "
            "whole batch at once. Use method='chunked', or omit chunk_size."
        )
    return chunk_size


def choose_strategy(method: str, chunk_size: int | None, bound: BoundLoss) -> Strategy:
    """Choose the strategy; `'auto'` compares the memory of one example under both methods."""
    if method == "vmap":
        return Strategy(None, None)
    # `'auto'` minimizes memory: the activations and cotangents, or the gradient, of one example.
    gradient = gradient_bytes(bound.params)
    ghost = trace_ghost(bound) if method in {"auto", "ghost"} else None
    if method == "auto" and ghost is not None and ghost.plan.bytes >= gradient:
        ghost = None
    if chunk_size is None:
        per_example = gradient if ghost is None else ghost.plan.bytes // _GHOST_FACTOR
        chunk_size = _fitting_chunk_size(per_example, bound.size)
    return Strategy(ghost, chunk_size)


def _fitting_chunk_size(bytes_per_example: int, size: int) -> int:
    """Number of examples that fit into the memory budget, a divisor of `size` if possible."""
    budget = _CPU_CHUNK_BYTES if jax.default_backend() == "cpu" else _ACCELERATOR_CHUNK_BYTES
    limit = min(size, max(1, budget // max(1, bytes_per_example)))
    # A divisor avoids a remainder chunk, which would be compiled separately.
    return next((k for k in range(limit, limit // 2, -1) if size % k == 0), limit)


def gradient_bytes(params: Any) -> int:
    """Bytes of one example's gradient in float32 or wider."""
    return sum(
        math.prod(jnp.shape(leaf)) * compute_dtype(jnp.result_type(leaf)).itemsize
        for leaf in jax.tree.leaves(params)
    )


def run_compiled(run: Callable[..., Any], bound: BoundLoss, *args: Any, **options: Any) -> Any:
    """Call `run(bound, *args, **options)`; compile eager calls and cache the programs.

    Without the cache, eager execution would compile loops and conditionals again in every call.

    Args:
        run: A function without a closure.
        bound: The loss with its arguments.
        *args: Trees of arrays and numbers.
        **options: Arguments that aren't arrays.
    """
    loss = _traced_loss(bound, args, options)
    if loss is None:
        with bound.mesh_context():
            return run(bound, *args, **options)
    return jit_call(
        _run_traced, loss, bound.params, bound.batch, args, run=run, size=bound.size, **options
    )


def _run_traced(
    loss: TracedFunction, params: Any, batch: Any, args: Any, *, run: Any, size: int, **options: Any
) -> Any:
    return run(BoundLoss(loss, params, batch, size, params), *args, **options)


def _traced_loss(
    bound: BoundLoss, args: tuple[Any, ...], options: dict[str, Any]
) -> TracedFunction | None:
    """Traced loss if the call is eager and its program can be cached; else `None`."""
    arrays = bound.params, bound.batch, args
    static = jax.tree.structure(arrays), *options.values()
    try:
        hash(static)
    except TypeError:  # unhashable options can't be cache keys
        return None
    if not (is_eager(arrays) and is_on_one_device(arrays)):
        return None
    if any(jax.typeof(x).weak_type for x in jax.tree.leaves(bound.batch)):
        # `ShapeDtypeStruct` below drops weak types, so the traced loss could promote differently.
        return None
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), bound.batch)
    return trace_function(bound.loss, bound.params, example)
