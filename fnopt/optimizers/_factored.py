"""Mean squares of matrices, kept as those of rows and of columns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import ema, positive_root

Parts = tuple[jax.Array, ...]
"""The mean squares of rows and of columns; of what isn't factored, all of them."""

Axes = tuple[int, int] | None
"""The axis that rows keep and the one that columns keep; None for no factors."""


def zeros_like_parts(p: jax.Array, dtype: Any, axes: Axes) -> Parts:
    """Zeros, made from the params, so that they lie where these are."""
    if axes is None:
        return (jnp.zeros_like(p, dtype),)
    return tuple(jnp.zeros_like(jnp.sum(p, axis=i), dtype) for i in reversed(axes))


def average_squares(v: Parts, squares: jax.Array, decay: Any, axes: Axes) -> Parts:
    """Update the mean squares of rows and columns."""
    if axes is None:
        return (ema(v[0], squares, decay),)
    # Means of infinite squares would have infinite quotients.
    most = jnp.asarray(jnp.finfo(squares.dtype).max / max(squares.size, 1), squares.dtype)
    squares = jnp.minimum(squares, most)
    sides = zip(v, reversed(axes), strict=True)
    return tuple(ema(part, jnp.mean(squares, axis=i), decay) for part, i in sides)


def divide_by_root(x: jax.Array, v: Parts, axes: Axes) -> jax.Array:
    r"""`x` over the root of the mean squares, :math:`x_{ij} / \sqrt{R_i C_j / \bar R}`."""
    if axes is None:
        return x / positive_root(v[0])
    (rows, columns), (kept, summed) = v, axes
    mean = jnp.mean(rows, axis=kept - (kept > summed), keepdims=True)
    # Products with reciprocals of roots: for small mean squares, the slopes of quotients overflow
    # before they meet the zero that they are multiplied by.
    share = positive_root(mean) / positive_root(rows)
    u = x * jnp.expand_dims(share, summed)
    return u * jnp.expand_dims(1 / positive_root(columns), kept)
