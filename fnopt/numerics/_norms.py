"""Euclidean norms that neither overflow nor underflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.numerics._batching import stack_alike
from fnopt.numerics._dtypes import compute_dtype, is_traced, real_dtype
from fnopt.numerics._numbers import (
    nonzero,
    range_divisor,
    safe_sqrt,
    squared_modulus,
    sum_of_squares,
)
from fnopt.sharding import shard_axes, sharded_full_like, sum_over_shards

# From this number of elements on, a temporary buffer of the array's size is avoided. Without a
# bound, the scaled norm of 200 arrays of 64 elements takes a fifth longer on a CPU.
_LARGE = 2**14


def safe_norms(
    squares: Callable[[jax.Array | None], jax.Array],
    root: Callable[[jax.Array], jax.Array] = safe_sqrt,
) -> jax.Array:
    r"""Square roots of sums of squares, accurate whenever the norms are representable.

    .. math:: \lVert x \rVert = \frac{1}{c} \Bigl( \sum_i (c\, x_i)^2 \Bigr)^{1/2}

    In float32 the square of 2e19 overflows to infinity and the square of 1e-23 underflows to zero.
    The plain sum is computed first. If the sum overflows or underflows, a second pass scales the
    elements by a power of two.

    Args:
        squares: Function from a scale `c` for each norm (`None` for 1) to the sums of squares of
            the scaled elements. The sums are real, at least float32, of any shape.
        root: The square root for sums of the second pass, which may be zero; pass `lax.sqrt` if the
            norms aren't differentiated.

    Returns:
        The norms, in the shape of the result of `squares`. NaN and infinite elements give NaN and
        infinite norms.
    """
    sums = squares(None)
    is_bad = out_of_range(sums)
    any_bad = jnp.any(is_bad) if is_bad.shape else is_bad
    # A sum that isn't out of range is positive, so its square root is differentiable.
    return lax.cond(any_bad, lambda: _rescaled(squares, sums, is_bad, root), lambda: lax.sqrt(sums))


def axis_norms(x: jax.Array, axes: Any) -> jax.Array:
    """Euclidean norms over the axes `axes`, which remain with length one."""
    return safe_norms(
        lambda scale: jnp.sum(
            squared_modulus(x if scale is None else x * scale), axis=axes, keepdims=True
        )
    )


def out_of_range(squares: jax.Array) -> jax.Array:
    """Whether a sum of squares is infinite, NaN, or so small that terms may have underflowed."""
    info = jnp.finfo(squares.dtype)
    lower_limit = np.asarray(2.0 ** (-info.maxexp // 2), squares.dtype)
    return lax.ne(lax.clamp(lower_limit, squares, np.asarray(info.max, squares.dtype)), squares)


def _rescaled(squares: Any, sums: jax.Array, is_bad: jax.Array, root: Any) -> jax.Array:
    # One power of two for overflow and one for underflow are enough. In float32, a sum of 2^30
    # squares overflows only if some elements are above 2^49. The scale 2^-96 maps the squares of
    # these elements to between 2^-94 and 2^64. A sum below 2^-64 has only elements below 2^-32. The
    # scale 2^63 maps their squares to between 2^-126 and 2^62. For constant zeros (gradients of
    # frozen or unused params), XLA computes c^2 x^2 instead of (c x)^2. Therefore the square of the
    # scale must be finite, too.
    max_exponent = jnp.finfo(sums.dtype).maxexp
    one, down, up = (
        sharded_full_like(sums, 2.0**e) for e in (0, -3 * max_exponent // 4, max_exponent // 2 - 1)
    )
    scale = lax.select(sums > 1, down, up)
    scale = lax.select(is_bad, scale, one) if is_bad.shape else scale  # a scalar `bad` is True here
    return root(squares(scale)) / scale


def joint_norm(norms: Sequence[jax.Array] | jax.Array) -> jax.Array:
    """Combine the norms of a vector's parts to the norm of the vector: `(sum_k n_k^2)^(1/2)`."""
    if len(norms) == 1:
        return norms[0]
    stacked = norms if isinstance(norms, jax.Array) else jnp.stack([*norms])
    scale = range_divisor(jnp.max(stacked, axis=0))
    return scale * safe_sqrt(jnp.sum((stacked / scale) ** 2, axis=0))


@jax.custom_jvp
def _norm(leaves: list[jax.Array]) -> jax.Array:
    # An eager call runs a jitted program, because an eager conditional is compiled in every call.
    return (_joint_norm if is_traced(*leaves) else _norm_program)(leaves)


def _joint_norm(leaves: list[jax.Array]) -> jax.Array:
    dtype = real_dtype(compute_dtype(*(x.dtype for x in leaves)))
    leaves = [kind.array for kind in stack_alike(leaves)]
    # On a GPU, XLA computes both branches of a conditional, which reads the leaves once more. On a
    # CPU, where this sum is compute-bound, three sums take fifteen times as long as one.
    if jax.default_backend() != "cpu":
        return _norm_from_ranges(leaves, dtype)

    def squares(scale: jax.Array | None) -> jax.Array:
        total = sum_of_squares(leaves[0], scale, dtype)
        for x in leaves[1:]:
            if scale is not None and x.size >= _LARGE:
                # Without the barrier, XLA would store a scale that leaves of this shape share,
                # broadcast to the shape.
                total, scale = lax.optimization_barrier((total, scale))
            total = lax.add(total, sum_of_squares(x, scale, dtype))
        return total

    return safe_norms(squares, lax.sqrt)


_norm_program = jax.jit(_joint_norm)


def _norm_from_ranges(leaves: Sequence[jax.Array], dtype: Any) -> jax.Array:
    """Norm from the sums of squares of large, moderate and small elements, in one pass.

    Blue, 1978, ACM Transactions on Mathematical Software 4(1): a power of two for each group scales
    its squares into the range of the dtype.
    """
    # With 2^128 as the largest number, elements from 2^-48 to 2^48 are moderate, and the sum of
    # 2^30 moderate squares is below 2^126. The scale 2^-96 maps larger elements to between 2^-48
    # and 2^32. The scale 2^96 maps smaller elements (also if subnormal) to between 2^-53 and 2^48.
    max_exponent = jnp.finfo(dtype).maxexp
    bound, scale = 2.0 ** (3 * max_exponent // 8), 2.0 ** (3 * max_exponent // 4)
    totals = [jnp.zeros((), dtype)] * 3
    for x in leaves:
        for part in (jnp.real(x), jnp.imag(x)) if jnp.iscomplexobj(x) else (x,):
            size = jnp.abs(part.astype(dtype))
            large, small, zero = size > bound, size < 1 / bound, sharded_full_like(size, 0)
            ranges = (
                jnp.where(large, size * (1 / scale), zero),
                jnp.where(large | small, zero, size),  # also NaN, for which comparisons are False
                jnp.where(small, size * scale, zero),
            )
            totals = [total + jnp.sum(r * r) for total, r in zip(totals, ranges, strict=True)]
    large, moderate, small = map(lax.sqrt, totals)
    return joint_norm([large * scale, moderate, small * (1 / scale)])


@_norm.defjvp
def _norm_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[jax.Array, jax.Array]:
    norm = _norm(*primals)
    divisor = nonzero(norm)
    tangent = jnp.zeros_like(norm)
    for x, dx in zip(primals[0], tangents[0], strict=True):
        dtype = compute_dtype(x.dtype, norm.dtype)
        # Division before multiplication, because the quotient has modulus 1 at most, whereas the
        # product of an element and a tangent could overflow.
        direction = jnp.conj(x.astype(dtype) / divisor.astype(dtype))
        tangent += jnp.sum(jnp.real(direction * dx.astype(dtype)))
    return norm, tangent


def euclidean_norm(arrays: list[jax.Array]) -> jax.Array:
    """Euclidean norm over all elements of some arrays, including shards on other devices."""
    with sum_over_shards():
        norm, axes = _norm(arrays), shard_axes()
        if not axes:
            return norm
        # The norms of all devices are gathered, because the sum of their squares could overflow.
        # `psum` instead of `all_gather`, because only the type of the result of `psum` records that
        # the value is equal on all devices.
        is_own = jnp.arange(lax.psum(1, axes)) == lax.axis_index(axes)
        return joint_norm(lax.psum(jnp.where(is_own, norm, jnp.zeros_like(norm)), axes))
