"""Euclidean norms without overflow, and quotients without division by zero."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.numerics import range_divisor
from fnopt.sharding import all_gather_rows


def are_squares_safe(largest: jax.Array) -> jax.Array:
    r"""Whether squares of numbers with this largest magnitude, and sums of squares, are in range.

    True between :math:`1 / c` and the cube root `c` of the dtype's largest number. A sum of `c`
    squares then doesn't overflow.
    """
    limit = 2.0 ** (jnp.finfo(largest.dtype).maxexp // 3)
    return (largest >= 1 / limit) & (largest <= limit)


def least_square_sum(dtype: Any) -> jax.Array:
    """Return the smallest sum of squares to which subnormal terms contribute less than epsilon."""
    info = jnp.finfo(dtype)
    return jnp.asarray(float(info.tiny) / float(info.eps), dtype)


def norm(v: jax.Array, axis: int = 0) -> jax.Array:
    r"""Compute the Euclidean norm, without overflow or underflow of squares.

    .. math:: \|v\| = c \sqrt{\textstyle\sum_i (v_i / c)^2}, \qquad c = \max_i |v_i|

    In float32, squares of numbers above 1.8e19 overflow, and squares of numbers below 1e-19
    underflow. Residuals and Jacobians of unscaled models reach such magnitudes. In float64, squares
    of numbers from 1e-102 to 1e102 are in range. Within these limits `c = 1`, which avoids a
    rounding error.

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
    """Compute the Euclidean norm along the first axis, for arrays whose squares are in range.

    In a search, residuals, steps and params are scaled to moderate magnitudes. A single reduction
    is then sufficient, whereas `norm` compiles to five kernels.
    """
    return jnp.sqrt(jnp.sum(jnp.square(v), axis=0))


def row_norm(v: jax.Array) -> jax.Array:
    """Compute the norm of a vector whose rows are sharded over devices."""
    return norm(all_gather_rows(norm(v)[None]))


def divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return `a / b` where `b > 0`, and 0 elsewhere."""
    a, b = jnp.broadcast_arrays(a, b)
    positive = b > 0
    # Without the inner select, the derivative of the unselected branch would be 0 * inf = NaN.
    quotient = a / lax.select(positive, b, lax.full_like(b, 1))
    return lax.select(positive, quotient, lax.full_like(quotient, 0))
