"""Checks of losses, weights, clipping norms and keys of per-example gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fnopt.core import check_number, check_returned, type_text

PASS_BY_KEYWORD = (
    "Pass what all examples share by keyword, or say which arguments are batched with "
    "batch_argnums."
)


def check_not_empty(params: Any, name: str) -> None:
    """Check that the parameters contain an array."""
    if not jax.tree.leaves(params):
        raise ValueError(f"{name}: the params have no array in them, so no gradient.")


def check_weights(weights: Any, size: int, name: str) -> jax.Array:
    """Check that weights are real and have the shape `[size]`."""
    if getattr(weights, "shape", None) != (size,):
        raise ValueError(
            f"{name}: weights are {type_text(weights)}, expected shape ({size},): one weight per "
            "example. They are the last positional argument, after the batch."
        )
    if jnp.issubdtype(weights.dtype, jnp.complexfloating) or not (
        jnp.issubdtype(weights.dtype, jnp.number) or weights.dtype == jnp.bool_
    ):
        raise TypeError(f"{name}: weights are {type_text(weights)}, expected real numbers.")
    return jnp.asarray(weights)


def check_clip_norm(clip_norm: Any, name: str) -> None:
    """Check that a clipping norm is one positive number; traced values pass."""
    check_number(clip_norm, "clip_norm", name)
    if not isinstance(clip_norm, Tracer) and not clip_norm > 0:
        raise ValueError(f"{name}: clip_norm is {clip_norm}, expected a positive number.")


def fold_in_step(key: Any, step: Any, name: str) -> Any:
    """Fold the step into a key; a step of `None` leaves the key unchanged."""
    if step is None:
        return key
    step = jnp.asarray(step)
    if step.shape != () or not jnp.issubdtype(step.dtype, jnp.integer):
        # Rounding would give two steps the same random numbers.
        raise TypeError(f"{name}: step is {type_text(step)}, expected one integer.")
    return jax.random.fold_in(key, step.astype(jnp.uint32))


def check_example_loss(output: Any, has_aux: bool, name: str) -> tuple[jax.Array, Any]:
    """Check the result of a loss, and return it as `(value, aux)`."""
    if has_aux and not (isinstance(output, tuple) and len(output) == 2):
        raise TypeError(
            f"{name}: has_aux=True expects the loss to return (value, aux), "
            f"it returned {type_text(output)}."
        )
    value, aux = output if has_aux else (output, None)
    if not isinstance(value, (int, float)) and not hasattr(value, "dtype"):
        hint = " Say has_aux=True if it returns (value, aux)." if isinstance(value, tuple) else ""
        raise TypeError(
            f"{name}: the loss returned {type_text(value)}, expected one floating scalar.{hint}"
        )
    value = jnp.asarray(value)
    if value.shape:
        raise TypeError(
            f"{name}: the loss of ONE example returned {type_text(value)}, expected a scalar. "
            "Write the loss for a single example, without the batch axis, and sum over whatever "
            "axes it has (time, pixels): it is mapped over the batch for you."
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise TypeError(f"{name}: the loss returned {type_text(value)}, expected a real float.")
    check_returned(aux, f"{name}: the aux of the loss")
    return value, aux
