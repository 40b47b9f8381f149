"""Arithmetic that stays right where the plain formulas cancel, overflow or meet a zero."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


@jax.custom_jvp
def multiply(weight: jax.Array, x: jax.Array) -> jax.Array:
    r"""The product :math:`w x`, with :math:`0 \cdot \infty = 0`."""
    with jax.named_scope("weighted"):  # as `log_softmax` below
        return jnp.where(weight == 0, jnp.zeros_like(x), weight * x)


@multiply.defjvp
def _multiply_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    weight, x = primals
    weight_dot, x_dot = tangents
    # An infinite slope towards the weight would meet the zeros of a chain rule as NaN.
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
    """The axes to reduce (an int, several, or None for all) as one last axis."""
    reduced = _axes(axis, x.ndim)
    others = tuple(a for a in range(x.ndim) if a not in reduced)
    moved = x.transpose(others + reduced)
    size = 1
    for a in reduced:
        size *= x.shape[a]
    return moved.reshape(*moved.shape[: len(others)], size)


@jax.custom_jvp
def log_softmax(x: jax.Array) -> jax.Array:
    r"""The logarithm of the softmax over the last axis, accurate also where it is next to 0.

    .. math:: \log p_i = x_i - m - \mathrm{log1p}\Bigl(\sum_{x_j < m} e^{x_j - m} + k - 1\Bigr)

    with :math:`m` the maximum, which is met :math:`k` times. The one that the plain formula adds
    to the sum would swallow all that is smaller than its rounding error. Rows of nothing but
    minus infinity stay as they are.
    """
    if x.shape[-1] == 0:
        return x
    with jax.named_scope("log_softmax"):  # by which readers of programs know it (`kfac`)
        m = jnp.max(x, axis=-1, keepdims=True)
        m = jnp.where(m == -jnp.inf, jnp.zeros_like(m), m)
        shifted = x - m
        powers = jnp.where(x == m, jnp.zeros_like(x), jnp.exp(shifted))
        below = jnp.sum(powers, axis=-1, keepdims=True)
        ties = jnp.sum((x == m).astype(x.dtype), axis=-1, keepdims=True)
        return shifted - jnp.log1p(below + jnp.maximum(ties - 1, 0))


@log_softmax.defjvp
def _log_softmax_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    y, (x_dot,) = log_softmax(*primals), tangents
    return y, x_dot - jnp.sum(jnp.exp(y) * x_dot, axis=-1, keepdims=True)


def exclude_scores(where: jax.Array | None, x: jax.Array) -> jax.Array:
    """Scores with minus infinity where the mask excludes: classes that can't be."""
    return x if where is None else jnp.where(where, x, jnp.full_like(x, -jnp.inf))


def take_at_label(x: jax.Array, labels: jax.Array) -> jax.Array:
    """The entry of each row (last axis) at its label; NaN where there is no such class."""
    # A negative label would count from the end, silently.
    beyond = jnp.where(labels < 0, jnp.full_like(labels, x.shape[-1]), labels)
    found = jnp.take_along_axis(x, beyond[..., None], axis=-1, mode="fill", fill_value=jnp.nan)
    return found[..., 0]
