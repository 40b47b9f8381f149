"""Sums over the examples of a batch in chunks, and checks of the arguments of matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import cast_like, check_same_tree
from fnopt.errors import (
    check_batch,
    check_choice,
    check_chunk_size,
    explain_example_errors,
    leaf_text,
    leaves_with_names,
    type_text,
)
from fnopt.gradients import check_example_loss
from fnopt.jacobians import check_real
from fnopt.numerics import compute_dtype, scan_chunks
from fnopt.sharding import psum, pvary_like, replicate_for_batch, reshard_like

REDUCTIONS = ("mean", "sum")


def checked_options(reduction: str, chunk_size: int | None, name: str) -> int | None:
    """Check the options, and return the chunk size."""
    check_choice(reduction, REDUCTIONS, "reduction", name)
    return check_chunk_size(chunk_size, name)


def check_direction(direction: Any, params: Any, name: str) -> None:
    """Check that params are real and floating, and that a direction has their tree and shapes."""
    check_real(params, name)
    check_same_tree(direction, params, f"{name}: v", "the params")


def symmetric_product(product: Callable[[Any], Any], like: Any, name: str) -> Callable[[Any], Any]:
    """Wrap a user's matrix-vector product, and check the structure and shapes of its result."""
    check_real(like, name)

    def checked_product(v: Any) -> Any:
        result = product(v)
        check_same_tree(result, like, f"{name}: products", "the vectors")
        return result

    return checked_product


def explain_errors(
    fn: Callable[[Any, Any], Any], name: str, *, is_loss: bool = True
) -> Callable[[Any, Any], Any]:
    """Wrap a user's function of one example, so that its errors name the example's shapes.

    Args:
        fn: `fn(params, example)`, or `fn(outputs, example)`.
        name: The public function that the user called, for messages.
        is_loss: Whether the function is a loss.
    """

    def call_with_context(first: Any, example: Any) -> Any:
        with explain_example_errors(name, example, first):
            result = fn(first, example)
        return scalar(result, name) if is_loss else result

    return call_with_context


def scalar(result: Any, name: str) -> jax.Array:
    """Check that a user's loss returns a scalar without auxiliary output."""
    if isinstance(result, tuple):
        raise TypeError(
            f"{name}: the loss returned {type_text(result)}, expected one floating scalar. "
            "If it returns (value, aux), pass lambda *args: loss(*args)[0]."
        )
    return check_example_loss(result, False, name)[0]


def sum_over_examples(
    total: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    reduction: str,
    chunk_size: int | None,
    name: str,
    axis_name: Any = None,
) -> Any:
    """Sum the results of `total` over chunks of a batch, cast to the dtypes of the params.

    Args:
        total: Function of params and a chunk that returns the sum over the chunk's examples, a tree
            like params.
        params: The params.
        batch: The examples.
        reduction: `'mean'` or `'sum'` over the examples.
        chunk_size: Number of examples at once.
        name: The public function that the user called, for messages.
        axis_name: The named axis along which a larger batch is sharded, if any.
    """
    size = check_batch(
        [(leaf_text(path), leaf) for path, leaf in leaves_with_names(batch)[0]], name
    )
    scale = 1 / (size * psum(1, axis_name)) if reduction == "mean" else 1.0
    # Inside shard_map the params must vary over devices, so that a derivative refers to this
    # device's examples and isn't summed over devices.
    varying_params = pvary_like(replicate_for_batch(params, batch), batch)

    def add_chunk(sums: Any, chunk: Any) -> tuple[Any, None]:
        return jax.tree.map(
            lambda s, x: s + x.astype(s.dtype), sums, total(varying_params, chunk)
        ), None

    # At least float32: in 16 bits, a sum over many chunks loses digits.
    zeros = jax.tree.map(
        lambda p: jnp.zeros_like(p, compute_dtype(jnp.result_type(p))), varying_params
    )
    sums, _ = scan_chunks(add_chunk, zeros, batch, size, chunk_size)
    sums = psum(sums, axis_name)
    scaled = jax.tree.map(lambda s, p: reshard_like(s * scale, p), sums, params)
    return cast_like(scaled, params)
