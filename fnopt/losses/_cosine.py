"""Cosine similarity and distance."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.losses._inputs import floats


def _scale(x: jax.Array, axis: Any, where: Any) -> tuple[jax.Array, jax.Array]:
    """A vector over its largest entry, and that entry (no part of the derivative)."""
    shown = jnp.abs(x) if where is None else jnp.where(where, jnp.abs(x), jnp.zeros_like(x))
    top = jax.lax.stop_gradient(jnp.max(shown, axis=axis, keepdims=True, initial=0))
    top = jnp.where((top > 0) & jnp.isfinite(top), top, jnp.ones_like(top))
    return x / top, top


def unit(x: jax.Array, epsilon: Any, axis: Any, where: Any = None) -> tuple[jax.Array, jax.Array]:
    r"""The unit vector :math:`x / \max(\|x\|, \sqrt\epsilon)`, and what its square lacks to 1.

    A vector of zeros stays one. The length is taken of the vector over its largest entry: squares
    of 1e20 and 1e-24 are infinite and zero in float32.
    """
    x, top = _scale(x, axis, where)
    square = jnp.sum(jnp.square(x), axis=axis, keepdims=True, where=where)
    # Over the largest entry the length is at least 1, unless all entries are zero.
    zero = square == 0
    length = jnp.sqrt(jnp.where(zero, jnp.ones_like(square), square))
    least = jnp.sqrt(jnp.asarray(epsilon, x.dtype)) / top
    short = length < least
    ratio = square / jnp.square(jnp.where(short, least, jnp.ones_like(least)))
    lacking = jnp.where(short, 1 - ratio, jnp.zeros_like(square))
    lacking = jnp.where(zero, jnp.ones_like(square), lacking)
    x = jnp.where(zero, jnp.zeros_like(x), x / jnp.maximum(length, least))
    return x, jnp.squeeze(lacking, axis=axis)


def _check_lengths(name: str, a: jax.Array, b: jax.Array, axis: Any) -> None:
    """Refuses vectors of two lengths, of which one broadcasts; other axes may."""
    ndim = max(a.ndim, b.ndim)
    axes = range(ndim) if axis is None else ((axis,) if isinstance(axis, int) else axis)
    shapes = [(1,) * (ndim - x.ndim) + x.shape for x in (a, b)]
    if any(shapes[0][i] != shapes[1][i] for i in axes):
        raise ValueError(
            f"{name}: predictions has shape {a.shape}, targets has shape {b.shape}, expected "
            f"vectors of one length along axis {axis}."
        )


def _unit_vectors(
    name: str, predictions: Any, targets: Any, epsilon: Any, axis: Any, where: Any
) -> tuple[Any, ...]:
    a, b = floats(name, predictions=predictions, targets=targets)
    _check_lengths(name, a, b, axis)
    if where is not None:
        where = jnp.broadcast_to(jnp.asarray(where, bool), jnp.broadcast_shapes(a.shape, b.shape))
        a, b = (jnp.where(where, x, jnp.zeros_like(x)) for x in (a, b))
    return *unit(a, epsilon, axis, where), *unit(b, epsilon, axis, where)


def cosine_similarity(
    predictions: Any, targets: Any, *, epsilon: Any = 0.0, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""The cosine of the angle between two vectors.

    .. math:: \cos(\hat y, y) = \frac{\hat y^\top y}
              {\max(\|\hat y\|, \sqrt\epsilon)\, \max(\|y\|, \sqrt\epsilon)}

    A vector of zeros has no direction: its cosine is 0, with derivative 0.

    Args:
        predictions: :math:`\hat y`, floating, vectors along `axis`.
        targets: :math:`y`, vectors too; the other axes may broadcast.
        epsilon: The least squared length to divide by.
        axis: The axis or axes of the vectors; None for all.
        where: Bools: which elements take part.

    Returns:
        The cosines, without `axis`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import cosine_similarity
        >>> cosine_similarity(jnp.asarray([3.0, 4.0]), jnp.asarray([0.0, 2.0]))
        Array(0.8, dtype=float32)
    """
    name = "cosine_similarity"
    a, _, b, _ = _unit_vectors(name, predictions, targets, epsilon, axis, where)
    return jnp.sum(a * b, axis=axis)


def cosine_distance(
    predictions: Any, targets: Any, *, epsilon: Any = 0.0, axis: Any = -1, where: Any = None
) -> jax.Array:
    r"""One minus the cosine of the angle between two vectors.

    .. math:: 1 - \cos(\hat y, y) = \tfrac12 \left\| \frac{\hat y}{\|\hat y\|} -
              \frac{y}{\|y\|} \right\|^2

    It is computed by the right side, which keeps its digits for vectors that almost agree.

    Args:
        predictions: :math:`\hat y`, floating, vectors along `axis`.
        targets: :math:`y`, vectors too; the other axes may broadcast.
        epsilon: The least squared length to divide by.
        axis: The axis or axes of the vectors; None for all.
        where: Bools: which elements take part.

    Returns:
        The distances, without `axis`; at least float32.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.losses import cosine_distance
        >>> cosine_distance(jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 1.0]))
        Array(1., dtype=float32)
    """
    name = "cosine_distance"
    a, a_lacks, b, b_lacks = _unit_vectors(name, predictions, targets, epsilon, axis, where)
    return 0.5 * (jnp.sum(jnp.square(a - b), axis=axis) + a_lacks + b_lacks)
