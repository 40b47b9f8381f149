"""Losses whose arguments broadcast with a warning, as in optax."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Arguments with one number per element of the loss.
_ELEMENTS = {"predictions", "targets", "logits", "log_predictions", "log_targets", "labels"}
_ELEMENTS |= {"predictor_outputs", "anchors", "positives", "negatives"}
# Losses that normalize vectors along the last axis or take their norm, so that a last axis of
# length 1 must not broadcast.
_VECTORS = {"softmax_cross_entropy", "poly_loss_cross_entropy", "ranking_softmax_loss"}
_VECTORS |= {"triplet_margin_loss", "cosine_distance", "cosine_similarity"}
# Losses of scores `[..., classes]` and class indices `[...]`.
_ROWS = {"multiclass_hinge_loss", "multiclass_perceptron_loss", "multiclass_sparsemax_loss"}
_ROWS |= {"softmax_cross_entropy_with_integer_labels"}
# Losses whose arrays must also have equal shapes in optax.
_EQUAL = {"squared_error", "l2_loss", "perceptron_loss", "ctc_loss", "ctc_loss_with_forward_probs"}
_EQUAL |= {"dice_loss", "multiclass_generalized_dice_loss", "binary_dice_loss"}


def broadcasting(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a loss such that its arguments broadcast to a common shape, with a warning."""
    if not inspect.isfunction(loss) or loss.__name__ in _EQUAL:
        return loss
    signature, name = inspect.signature(loss), loss.__name__
    broadcast = _rows if name in _ROWS else _vectors if name in _VECTORS else _elements

    @functools.wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return loss(*args, **kwargs)
        except ValueError as error:
            bound = signature.bind(*args, **kwargs)
            arguments = bound.arguments
            # Broadcasting is tried only after an error, so that equal shapes have no overhead.
            arrays = broadcast(arguments)
            if arrays is None:
                raise
            shapes = ", ".join(f"`{k}` has shape {jnp.shape(arguments[k])}" for k in arrays)
            common = next(iter(arrays.values())).shape
            warnings.warn(
                f"{name}: {shapes}, expected equal shapes; the arrays are broadcast to {common}. "
                f"fnopt.losses.{name} raises an error for these shapes.",
                stacklevel=2,
            )
            bound.arguments.update(arrays)
            try:
                return loss(*bound.args, **bound.kwargs)
            # The first error contains the user's shapes, not the broadcast shapes.
            except ValueError:
                raise error from None

    return call


def _elements(arguments: dict[str, Any]) -> dict[str, jax.Array] | None:
    """Broadcast arrays to a common shape; return None if their shapes are equal or incompatible."""
    arrays = {k: x for k, x in arguments.items() if k in _ELEMENTS and x is not None}
    shape = _common_shape(*map(jnp.shape, arrays.values()))
    return None if shape is None else {k: jnp.broadcast_to(x, shape) for k, x in arrays.items()}


def _vectors(arguments: dict[str, Any]) -> dict[str, jax.Array] | None:
    """Broadcast arrays of vectors; return None if the vectors have different lengths."""
    arrays = _elements(arguments)
    lengths = {jnp.shape(arguments[k])[-1:] for k in arrays or ()} - {()}
    return arrays if len(lengths) == 1 else None


def _rows(arguments: dict[str, Any]) -> dict[str, jax.Array] | None:
    """Broadcast scores and class indices to a common shape of the rows."""
    (first, scores), (second, labels) = [*arguments.items()][:2]
    shape = _common_shape(jnp.shape(scores)[:-1], jnp.shape(labels))
    if shape is None:
        return None
    classes = jnp.shape(scores)[-1:]
    return {
        first: jnp.broadcast_to(scores, shape + classes),
        second: jnp.broadcast_to(labels, shape),
    }


def _common_shape(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return jnp.broadcast_shapes(*shapes) if len({*shapes}) > 1 else None
    except ValueError:
        return None
