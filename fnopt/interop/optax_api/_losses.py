"""Losses whose arguments broadcast, as in optax, with a warning."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Arguments with one number for every element.
_ELEMENTS = {"predictions", "targets", "logits", "log_predictions", "log_targets", "labels"}
_ELEMENTS |= {"predictor_outputs", "anchors", "positives", "negatives"}
# Losses that normalize vectors along the last axis or take their norm, so that a last axis of
# length 1 must not broadcast.
_VECTORS = {"softmax_cross_entropy", "poly_loss_cross_entropy", "ranking_softmax_loss"}
_VECTORS |= {"triplet_margin_loss", "cosine_distance", "cosine_similarity"}
# Losses of scores and class numbers.
_ROWS = {"multiclass_hinge_loss", "multiclass_perceptron_loss", "multiclass_sparsemax_loss"}
_ROWS |= {"softmax_cross_entropy_with_integer_labels"}
# Losses whose arrays must have equal shapes in optax, too.
_EQUAL = {"squared_error", "l2_loss", "perceptron_loss", "ctc_loss", "ctc_loss_with_forward_probs"}
_EQUAL |= {"dice_loss", "multiclass_generalized_dice_loss", "binary_dice_loss"}


def broadcasting(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a loss so that its arguments broadcast to a larger shape, with a warning."""
    if not inspect.isfunction(loss) or loss.__name__ in _EQUAL:
        return loss
    signature, name = inspect.signature(loss), loss.__name__
    together = _rows if name in _ROWS else _vectors if name in _VECTORS else _elements

    @functools.wraps(loss)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return loss(*args, **kwargs)
        except ValueError as error:
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            # The check runs only after fnopt's loss has raised an error, so that equal shapes need
            # no check.
            larger = together(given)
            if larger is None:
                raise
            shapes = ", ".join(f"{k} has shape {jnp.shape(given[k])}" for k in larger)
            found = f"{shapes}, broadcast to {next(iter(larger.values())).shape}"
            warnings.warn(
                f"{name}: {found}. fnopt.losses.{name} raises an error for these.", stacklevel=2
            )
            bound.arguments.update(larger)
            try:
                return loss(*bound.args, **bound.kwargs)
            except ValueError:
                raise error from None

    return call


def _elements(given: dict[str, Any]) -> dict[str, jax.Array] | None:
    """Broadcast arrays to a common shape; return None if their shapes are equal or incompatible."""
    arrays = {k: x for k, x in given.items() if k in _ELEMENTS and x is not None}
    shape = _common(*map(jnp.shape, arrays.values()))
    return None if shape is None else {k: jnp.broadcast_to(x, shape) for k, x in arrays.items()}


def _vectors(given: dict[str, Any]) -> dict[str, jax.Array] | None:
    """Like `_elements`, for vectors of equal length."""
    found = _elements(given)
    lengths = {jnp.shape(given[k])[-1:] for k in found or ()} - {()}
    return found if len(lengths) == 1 else None


def _rows(given: dict[str, Any]) -> dict[str, jax.Array] | None:
    """Broadcast scores and class indices to the same rows."""
    (first, scores), (second, labels) = [*given.items()][:2]
    shape = _common(jnp.shape(scores)[:-1], jnp.shape(labels))
    if shape is None:
        return None
    classes = jnp.shape(scores)[-1:]
    return {
        first: jnp.broadcast_to(scores, shape + classes),
        second: jnp.broadcast_to(labels, shape),
    }


def _common(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return jnp.broadcast_shapes(*shapes) if len({*shapes}) > 1 else None
    except ValueError:
        return None
