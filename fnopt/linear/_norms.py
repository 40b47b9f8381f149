"""Norms and quotients without overflow or division by zero."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.numerics import range_divisor
from fnopt.sharding import all_gather_rows


def are_squares_safe(largest: jax.Array) -> jax.Array:
    r"""Whether squares of numbers up to this size, and sums of them, are in the dtype's range.

    True up to the cube root `c` of the dtype's largest number: a sum of `c` such squares doesn't
    overflow.
    """
    most = 2.0 ** (jnp.finfo(largest.dtype).maxexp // 3)
    return (largest >= 1 / most) & (largest <= most)


def least_square_sum(dtype: Any) -> jax.Array:
    """Return the smallest sum of squares with full precision, above subnormal errors."""
    info = jnp.finfo(dtype)
    return jnp.asarray(float(info.tiny) / float(info.eps), dtype)


def norm(v: jax.Array, axis: int = 0) -> jax.Array:
    r"""The Euclidean norm, safe where the squares leave the range of the dtype.

    .. math:: \|v\| = c \sqrt{\textstyle\sum_i (v_i / c)^2}, \qquad c = \max_i |v_i|

    In float32 squares overflow beyond 1.8e19 and underflow below 1e-19. Residuals and Jacobians of
    unscaled models reach such magnitudes. Squares of float64 are safe from 1e-102 to 1e102; within
    these limits `c = 1`, which avoids a rounding error.

    Args:
        v: An array of shape `[..., m, ...]`; `m` may be zero.
        axis: The axis to reduce.

    Returns:
        The norm; the reduced axis is removed.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import norm
        >>> print(norm(jnp.asarray([3e30, 4e30])))
        5e+30
    """
    largest = jnp.max(jnp.abs(v), axis=axis, keepdims=True, initial=0)
    c = range_divisor(largest)
    if v.dtype == jnp.float64:
        c = lax.select(are_squares_safe(largest), lax.full_like(c, 1), c)
    return jnp.squeeze(c, axis) * jnp.sqrt(jnp.sum(jnp.square(v / c), axis=axis))


def length(v: jax.Array) -> jax.Array:
    """The Euclidean norm along the first axis of an array whose squares are in range.

    In a search, residuals, steps and params are scaled to moderate sizes, so a single reduction is
    sufficient; `norm` compiles to five kernels.
    """
    return jnp.sqrt(jnp.sum(jnp.square(v), axis=0))


def row_norm(v: jax.Array) -> jax.Array:
    """The norm of the residuals on all devices."""
    return norm(all_gather_rows(norm(v)[None]))


def divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a / b` where `b > 0`, and 0 elsewhere."""
    a, b = jnp.broadcast_arrays(a, b)
    positive = b > 0
    # The inner select keeps a division by zero out of the derivative.
    quotient = a / lax.select(positive, b, lax.full_like(b, 1))
    return lax.select(positive, quotient, lax.full_like(quotient, 0))
