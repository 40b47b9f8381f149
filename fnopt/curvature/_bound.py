"""Residual function of one example, with its params and batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fnopt.errors import (
    check_batch,
    count_text,
    explain_example_errors,
    leaf_text,
    leaves_with_names,
    type_text,
)
from fnopt.gradients import BoundLoss
from fnopt.jacobians import RealVector, check_real, checked_outputs, real_vector
from fnopt.numerics import compute_dtype


class BoundResiduals(NamedTuple):
    """Residual function of one example that returns a vector, with its params and batch.

    Attributes:
        bound: The function with its params and batch.
        layout: The order of the residuals of an example in the vector.
    """

    bound: BoundLoss
    layout: RealVector


def bind(fn: Callable[..., Any], params: Any, batch: Any, name: str) -> BoundResiduals:
    """Bind a residual function to its params and batch, and check all three.

    Args:
        fn: `fn(params, example)` for ONE example returns an array or a tree of arrays.
        params: The params.
        batch: The examples.
        name: The public function that the user called, for messages.
    """
    if not callable(fn):
        raise TypeError(
            f"{name}: the function is {type(fn).__name__}, expected fn(params, example)."
        )
    check_real(params, name)
    pairs = [(leaf_text(path), leaf) for path, leaf in leaves_with_names(batch)[0]]
    size = check_batch(pairs, name)
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
    # The abstract evaluation for one example checks the function without computation.
    with explain_example_errors(name, example, params):
        result = jax.eval_shape(fn, params, example)
    outputs = checked_outputs(result, name)
    dtype = compute_dtype(*(leaf.dtype for leaf in jax.tree.leaves(params)))
    layout = real_vector(outputs, dtype)
    if layout.size == 0:
        raise ValueError(
            f"{name}: the function returns {type_text(jax.tree.leaves(outputs)[0])} for an "
            "example, expected at least one number."
        )

    def residual_vector(params: Any, example: Any) -> tuple[jax.Array, None]:
        return layout.flatten(fn(params, example)), None

    return BoundResiduals(BoundLoss(residual_vector, params, batch, size, params), layout)


def checked_batches(batches: Any, count: int, name: str) -> tuple[Any, ...]:
    """Check that there is one batch per function."""
    if not isinstance(batches, (list, tuple)) or len(batches) != count:
        raise TypeError(
            f"{name}: the batch is {type_text(batches)}, expected a sequence of "
            f"{count_text(count, 'batch', 'batches')}: one for each function."
        )
    return tuple(batches)
