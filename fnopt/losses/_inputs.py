"""Checks of the arguments of losses, and arithmetic without cancellation or overflow."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import type_text
from fnopt.numerics import broadcasts_to, compute_dtype


def floats(name: str, **arrays: Any) -> tuple[Any, ...]:
    """Cast the arguments of a loss to one compute dtype, at least float32; `None` stays `None`.

    The first argument is the model's prediction and must be floating; the others may be integers or
    bools.
    """
    inputs = {k: jnp.asarray(x) for k, x in arrays.items() if x is not None}
    prediction = next(iter(inputs))
    if not jnp.issubdtype(inputs[prediction].dtype, jnp.floating):
        raise TypeError(
            f"{name}: {prediction} is {type_text(inputs[prediction])}, expected a real floating "
            "array."
        )
    for key, x in inputs.items():
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise TypeError(f"{name}: {key} is {type_text(x)}, expected real numbers.")
    dtype = compute_dtype(
        *(x.dtype for x in inputs.values() if jnp.issubdtype(x.dtype, jnp.floating))
    )
    return tuple(None if x is None else inputs[k].astype(dtype) for k, x in arrays.items())


def check_broadcast(name: str, **arrays: jax.Array | None) -> None:
    """Raise a ValueError unless all arguments broadcast to the shape of one argument."""
    shapes = {k: x.shape for k, x in arrays.items() if x is not None}
    try:
        common_shape = jnp.broadcast_shapes(*shapes.values())
    except ValueError:
        common_shape = None
    # Shapes [B] and [B, 1] would broadcast to a loss of shape [B, B] without an error.
    if common_shape not in shapes.values():
        text = ", ".join(f"`{k}` has shape {s}" for k, s in shapes.items())
        raise ValueError(f"{name}: {text}, expected equal shapes, or a scalar.")


def pairs(name: str, **arrays: Any) -> tuple[Any, ...]:
    """Apply `floats` to arguments that are compared elementwise, and check their shapes."""
    cast_arrays = floats(name, **arrays)
    check_broadcast(name, **dict(zip(arrays, cast_arrays, strict=True)))
    return cast_arrays


def class_labels(name: str, labels: Any, shape: tuple[int, ...]) -> jax.Array:
    """Check that labels are integers of the given shape, and return them as an array."""
    labels = jnp.asarray(labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{name}: labels are {type_text(labels)}, expected integers.")
    if labels.shape != shape:
        raise ValueError(
            f"{name}: labels are {type_text(labels)}, expected shape {shape}, one class number "
            "per row of scores."
        )
    return labels


def mask(where: Any, shape: Any, axis: Any) -> jax.Array | None:
    """Broadcast `where`, with or without the reduced axes, to an array of bools of a shape."""
    if where is None:
        return None
    where = jnp.asarray(where)
    if where.ndim != len(shape):
        where = jnp.expand_dims(where, tuple(range(len(shape))) if axis is None else axis)
    if not broadcasts_to(where.shape, shape):
        raise ValueError(
            f"the argument `where` has shape {where.shape}, expected a shape that broadcasts to "
            f"{shape}, the shape of the predictions."
        )
    return jnp.broadcast_to(where.astype(bool), shape)


def zero_excluded(where: jax.Array | None, x: jax.Array) -> jax.Array:
    """Replace excluded elements, which may be NaN or infinite, by zeros."""
    return x if where is None else jnp.where(where, x, jnp.zeros_like(x))


@jax.custom_jvp
def multiply(weight: jax.Array, x: jax.Array) -> jax.Array:
    r"""The product :math:`w x`, with :math:`0 \cdot \infty = 0`."""
    with jax.named_scope("weighted"):  # `kfac` recognizes the function by this scope
        return jnp.where(weight == 0, jnp.zeros_like(x), weight * x)


@multiply.defjvp
def _multiply_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    weight, x = primals
    weight_dot, x_dot = tangents
    # The derivative with respect to the weight is `x`. An infinite `x` times a tangent of zero
    # would be NaN.
    largest = jnp.finfo(x.dtype).max
    return multiply(weight, x), weight * x_dot + weight_dot * jnp.clip(x, -largest, largest)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if any(not -ndim <= a < ndim for a in axes):
        raise ValueError(f"axis = {axis}, expected axes from {-ndim} to {ndim - 1}.")
    return tuple(a % ndim for a in axes)


def move_axes_last(x: jax.Array, axis: Any) -> jax.Array:
    """Merge the axes to reduce (one, several, or all for None) into one last axis."""
    reduced = _axes(axis, x.ndim)
    batch_axes = tuple(a for a in range(x.ndim) if a not in reduced)
    transposed = x.transpose(batch_axes + reduced)
    return transposed.reshape(
        *transposed.shape[: len(batch_axes)], math.prod(x.shape[a] for a in reduced)
    )


@jax.custom_jvp
def log_softmax(x: jax.Array) -> jax.Array:
    r"""Logarithm of the softmax over the last axis, accurate even for results near 0.

    .. math:: \log p_i = x_i - m - \mathrm{log1p}\Bigl(\sum_{x_j < m} e^{x_j - m} + k - 1\Bigr)

    where :math:`m` is the maximum, which occurs :math:`k` times. The usual formula includes the
    term 1 of the maximum in the sum, which then loses terms below the rounding error of 1. Rows of
    minus infinity are returned unchanged.
    """
    if x.shape[-1] == 0:
        return x
    # `kfac` recognizes the function in a jaxpr by this scope.
    with jax.named_scope("log_softmax"):
        m = jnp.max(x, axis=-1, keepdims=True)
        m = jnp.where(m == -jnp.inf, jnp.zeros_like(m), m)
        shifted = x - m
        powers = jnp.where(x == m, jnp.zeros_like(x), jnp.exp(shifted))
        total = jnp.sum(powers, axis=-1, keepdims=True)
        # The sum omits the term 1 of one largest score, so that log1p is accurate near 0.
        ties = jnp.sum((x == m).astype(x.dtype), axis=-1, keepdims=True)
        return shifted - jnp.log1p(total + jnp.maximum(ties - 1, 0))


@log_softmax.defjvp
def _log_softmax_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    y, (x_dot,) = log_softmax(*primals), tangents
    return y, x_dot - jnp.sum(jnp.exp(y) * x_dot, axis=-1, keepdims=True)


def exclude_scores(where: jax.Array | None, x: jax.Array) -> jax.Array:
    """Set the scores of excluded classes to minus infinity."""
    return x if where is None else jnp.where(where, x, jnp.full_like(x, -jnp.inf))


def take_at_label(x: jax.Array, labels: jax.Array) -> jax.Array:
    """Take the entry of each row (last axis) at its label; NaN for a label outside the classes."""
    # A negative label would index from the end, without an error.
    safe_labels = jnp.where(labels < 0, jnp.full_like(labels, x.shape[-1]), labels)
    entries = jnp.take_along_axis(
        x, safe_labels[..., None], axis=-1, mode="fill", fill_value=jnp.nan
    )
    return entries[..., 0]
