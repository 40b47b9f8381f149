"""Strategies to reduce per-example gradients: chunks, recorded factors, compiled calls."""

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

# Maximum bytes of the per-example gradients of one chunk. On a CPU, a chunk that fits its caches is
# fastest (measured on a dense network and a transformer). An accelerator needs enough examples at
# once for full utilization (its figure is an estimate).
_CPU_CHUNK_BYTES = 4 * 2**20
_ACCELERATOR_CHUNK_BYTES = 512 * 2**20

# A chunk of recorded activations may be larger, because they are written and read once, and every
# chunk costs another pass over the sums.
_GHOST_FACTOR = 8


class Strategy(NamedTuple):
    """Strategy for the reduction of the gradients of a batch.

    Attributes:
        ghost: The traced loss, if `method` is `'ghost'`; else None.
        chunk_size: Number of examples to process at once; `None` for all.
    """

    ghost: Ghost | None
    chunk_size: int | None


def checked_strategy(method: str, chunk_size: int | None, name: str) -> int | None:
    """Check the method and the chunk size, and return the chunk size."""
    chunk_size = check_chunk_size(chunk_size, name)
    check_choice(method, METHODS, "method", name)
    if method == "vmap" and chunk_size is not None:
        raise ValueError(
            f"{name}: method='vmap' takes the whole batch at once, but chunk_size is {chunk_size}. "
            "Use method='chunked' or leave one of them out."
        )
    return chunk_size


def choose(method: str, chunk_size: int | None, bound: BoundLoss) -> Strategy:
    """Choose the strategy; `'auto'` compares the memory of one example under both methods."""
    if method == "vmap":
        return Strategy(None, None)
    # Recorded factors win where they are smaller than the gradient of an example.
    gradient = gradient_bytes(bound.params)
    ghost = trace_ghost(bound) if method in {"auto", "ghost"} else None
    if method == "auto" and ghost is not None and ghost.plan.bytes >= gradient:
        ghost = None
    if chunk_size is None:
        per_example = gradient if ghost is None else ghost.plan.bytes // _GHOST_FACTOR
        chunk_size = _fitting(per_example, bound.size)
    return Strategy(ghost, chunk_size)


def _fitting(bytes_per_example: int, size: int) -> int:
    """Return the number of examples of a given size that fit into the memory budget."""
    budget = _CPU_CHUNK_BYTES if jax.default_backend() == "cpu" else _ACCELERATOR_CHUNK_BYTES
    most = min(size, max(1, budget // max(1, bytes_per_example)))
    # A nearby divisor avoids a remainder chunk, which would be compiled separately.
    return next((k for k in range(most, most // 2, -1) if size % k == 0), most)


def gradient_bytes(params: Any) -> int:
    """Size of one example's gradient in bytes, in float32 or wider."""
    return sum(
        math.prod(jnp.shape(leaf)) * compute_dtype(jnp.result_type(leaf)).itemsize
        for leaf in jax.tree.leaves(params)
    )


def run_compiled(run: Callable[..., Any], bound: BoundLoss, *args: Any, **options: Any) -> Any:
    """Call `run(bound, *args, **options)`; an eager call is compiled once and cached.

    Without the cache, eager execution would compile loops and conditionals again in every call.

    Args:
        run: A function that closes over no values.
        bound: The loss with its arguments.
        *args: Trees of arrays and numbers.
        **options: Arguments that aren't arrays.
    """
    loss = _traced_loss(bound, args, options)
    if loss is None:
        with bound.on_its_mesh():
            return run(bound, *args, **options)
    return jit_call(
        _rebound, loss, bound.params, bound.batch, args, run=run, size=bound.size, **options
    )


def _rebound(
    loss: TracedFunction, params: Any, batch: Any, args: Any, *, run: Any, size: int, **options: Any
) -> Any:
    return run(BoundLoss(loss, params, batch, size, params), *args, **options)


def _traced_loss(
    bound: BoundLoss, args: tuple[Any, ...], options: dict[str, Any]
) -> TracedFunction | None:
    """Traced loss, if the call is eager and its program can be cached."""
    given = bound.params, bound.batch, args
    static = jax.tree.structure(given), *options.values()
    try:
        hash(static)
    except TypeError:  # unhashable options can't be cache keys
        return None
    if not (is_eager(given) and is_on_one_device(given)):
        return None
    if any(jax.typeof(x).weak_type for x in jax.tree.leaves(bound.batch)):
        # `ShapeDtypeStruct` below drops weak types, so the trace of an example would differ.
        return None
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), bound.batch)
    return trace_function(bound.loss, bound.params, example)
