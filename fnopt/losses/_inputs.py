"""Input checks of losses, and arithmetic without cancellation or overflow."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import type_text
from fnopt.numerics import compute_dtype


def floats(name: str, **arrays: Any) -> tuple[Any, ...]:
    """Cast the arguments of a loss to one compute dtype, at least float32; `None` stays `None`.

    The first argument is the model's prediction and must be floating; the others may be integers or
    bools. The arguments must broadcast to the shape of one of them, because a column and a row
    would otherwise give a matrix of all pairs.
    """
    given = {k: jnp.asarray(x) for k, x in arrays.items() if x is not None}
    first = next(iter(given))
    if not jnp.issubdtype(given[first].dtype, jnp.floating):
        raise TypeError(
            f"{name}: {first} is {type_text(given[first])}, expected a real floating array."
        )
    for key, x in given.items():
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise TypeError(f"{name}: {key} is {type_text(x)}, expected real numbers.")
    dtype = compute_dtype(
        *(x.dtype for x in given.values() if jnp.issubdtype(x.dtype, jnp.floating))
    )
    return tuple(None if x is None else given[k].astype(dtype) for k, x in arrays.items())


def check_broadcast(name: str, **arrays: jax.Array | None) -> None:
    """Reject shapes that don't broadcast, or broadcast to a shape larger than each of them."""
    shapes = {k: x.shape for k, x in arrays.items() if x is not None}
    try:
        together = jnp.broadcast_shapes(*shapes.values())
    except ValueError:
        together = None
    # Shapes [B] and [B, 1] would broadcast to a loss of shape [B, B] without an error.
    if together not in shapes.values():
        text = ", ".join(f"{k} has shape {s}" for k, s in shapes.items())
        raise ValueError(f"{name}: {text}, expected shapes that agree (or a scalar).")


def pairs(name: str, **arrays: Any) -> tuple[Any, ...]:
    """Apply `floats` to arguments that are compared element by element."""
    found = floats(name, **arrays)
    check_broadcast(name, **dict(zip(arrays, found, strict=True)))
    return found


def class_labels(name: str, labels: Any, shape: tuple[int, ...]) -> jax.Array:
    """Check integer labels of the given shape."""
    labels = jnp.asarray(labels)
    if not jnp.issubdtype(labels.dtype, jnp.integer):
        raise TypeError(f"{name}: labels are {type_text(labels)}, expected integers.")
    if labels.shape != shape:
        raise ValueError(
            f"{name}: labels are {type_text(labels)}, expected shape {shape}: one class number "
            "for each row of scores."
        )
    return labels


def mask(where: Any, shape: Any, axis: Any) -> jax.Array | None:
    """Broadcast `where`, which may lack the reduced axes, to bools of a shape."""
    if where is None:
        return None
    where = jnp.asarray(where)
    if where.ndim != len(shape):
        where = jnp.expand_dims(where, tuple(range(len(shape))) if axis is None else axis)
    return jnp.broadcast_to(where.astype(bool), shape)


def zero_excluded(where: jax.Array | None, x: jax.Array) -> jax.Array:
    """Replace excluded elements, which may be NaN or infinite, by zeros."""
    return x if where is None else jnp.where(where, x, jnp.zeros_like(x))


@jax.custom_jvp
def multiply(weight: jax.Array, x: jax.Array) -> jax.Array:
    r"""The product :math:`w x`, with :math:`0 \cdot \infty = 0`."""
    with jax.named_scope("weighted"):  # as `log_softmax` below
        return jnp.where(weight == 0, jnp.zeros_like(x), weight * x)


@multiply.defjvp
def _multiply_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    weight, x = primals
    weight_dot, x_dot = tangents
    # An infinite slope with respect to the weight would give NaN with the zeros of the chain rule.
    most = jnp.finfo(x.dtype).max
    return multiply(weight, x), weight * x_dot + weight_dot * jnp.clip(x, -most, most)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    if any(not -ndim <= a < ndim for a in given):
        raise ValueError(f"axis = {axis} is out of bounds for an array with {ndim} axes.")
    return tuple(a % ndim for a in given)


def move_axes_last(x: jax.Array, axis: Any) -> jax.Array:
    """Merge the axes to reduce (one, several, or all for None) into one last axis."""
    reduced = _axes(axis, x.ndim)
    others = tuple(a for a in range(x.ndim) if a not in reduced)
    moved = x.transpose(others + reduced)
    return moved.reshape(*moved.shape[: len(others)], math.prod(x.shape[a] for a in reduced))


@jax.custom_jvp
def log_softmax(x: jax.Array) -> jax.Array:
    r"""The logarithm of the softmax over the last axis, accurate even for results near 0.

    .. math:: \log p_i = x_i - m - \mathrm{log1p}\Bigl(\sum_{x_j < m} e^{x_j - m} + k - 1\Bigr)

    where :math:`m` is the maximum, which occurs :math:`k` times. The usual formula includes the
    maximum's term 1 in the sum, which loses all terms below the rounding error of 1. Rows in which
    all entries are minus infinity are returned unchanged.
    """
    if x.shape[-1] == 0:
        return x
    # Readers of programs (`kfac`) recognize the function by this scope.
    with jax.named_scope("log_softmax"):
        m = jnp.max(x, axis=-1, keepdims=True)
        m = jnp.where(m == -jnp.inf, jnp.zeros_like(m), m)
        shifted = x - m
        powers = jnp.where(x == m, jnp.zeros_like(x), jnp.exp(shifted))
        below = jnp.sum(powers, axis=-1, keepdims=True)
        # One largest score is left out of the sum, so log1p keeps the digits of a loss next to 0.
        ties = jnp.sum((x == m).astype(x.dtype), axis=-1, keepdims=True)
        return shifted - jnp.log1p(below + jnp.maximum(ties - 1, 0))


@log_softmax.defjvp
def _log_softmax_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    y, (x_dot,) = log_softmax(*primals), tangents
    return y, x_dot - jnp.sum(jnp.exp(y) * x_dot, axis=-1, keepdims=True)


def exclude_scores(where: jax.Array | None, x: jax.Array) -> jax.Array:
    """Set the scores of excluded classes to minus infinity."""
    return x if where is None else jnp.where(where, x, jnp.full_like(x, -jnp.inf))


def take_at_label(x: jax.Array, labels: jax.Array) -> jax.Array:
    """The entry of each row (last axis) at its label; NaN for a label outside the classes."""
    # A negative label would count from the end, silently.
    safe_labels = jnp.where(labels < 0, jnp.full_like(labels, x.shape[-1]), labels)
    found = jnp.take_along_axis(x, safe_labels[..., None], axis=-1, mode="fill", fill_value=jnp.nan)
    return found[..., 0]
