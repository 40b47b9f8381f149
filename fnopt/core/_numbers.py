"""Safe numbers: roots, quotients, squares and norms that neither overflow nor underflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.core._dtypes import compute_dtype, real_dtype
from fnopt.core._kinds import by_kind
from fnopt.core._staged import is_staged
from fnopt.sharding import shard_axes, sharded_full_like, sum_over_shards

# From how many elements on a temporary of that size is avoided.
_LARGE = 2**14


def is_known_zero(x: Any) -> bool:
    """Whether a number is zero, and known to be while a step is traced."""
    return isinstance(x, (float, np.floating)) and x == 0


def product(number: Any, x: Any) -> Any:
    """`number * x`; of one dtype, one operation of JAX itself.

    The operator is a function of `jnp` under `jit`, which is traced again for every leaf.
    """
    return lax.mul(number, x) if number.dtype == x.dtype else number * x


def squared_modulus(x: jax.Array) -> jax.Array:
    """:math:`|x|^2`, elementwise; real for complex arrays too."""
    if jnp.iscomplexobj(x):
        return jnp.square(jnp.real(x)) + jnp.square(jnp.imag(x))
    return jnp.square(x)


def squarable(x: jax.Array, terms: int = 1) -> jax.Array:
    """The array with all finite entries small enough that sums of as many squares are finite.

    An average of squares that has met one infinite square stays infinite, and every step after it
    is zero. In float32 entries beyond 2.3e18 count as that; infinite ones stay, to be seen.
    """
    if jnp.finfo(x.dtype).bits < 32:  # squares are taken in float32 at least
        return x
    return lax.select(jnp.isfinite(x), capped(x, terms), x)


def capped(x: jax.Array, terms: int = 1) -> jax.Array:
    """Like `squarable`, with infinite entries as the largest ones: one operation."""
    info = jnp.finfo(x.dtype)
    if info.bits < 32:
        return x
    if jnp.iscomplexobj(x):
        return lax.complex(capped(jnp.real(x), terms), capped(jnp.imag(x), terms))
    most = np.asarray(2.0 ** (info.maxexp // 2 - 3) / max(terms, 1) ** 0.5, x.dtype)
    return lax.clamp(-most, x, most)


def root(x: jax.Array) -> jax.Array:
    """The square root with derivative 0 at 0; what rounding made negative is 0, NaN stays NaN."""
    zero, one = (sharded_full_like(x, value) for value in (0, 1))
    x = lax.max(x, zero)
    positive = lax.ne(x, zero)  # or NaN
    # sqrt has an infinite slope at zero; the inner select keeps it out of the derivative.
    return lax.select(positive, lax.sqrt(lax.select(positive, x, one)), zero)


def nonzero(x: jax.Array) -> jax.Array:
    """Replace zeros by ones, for a safe division; NaN stays NaN."""
    return jnp.where(x == 0, sharded_full_like(x, 1), x)


def clipped(x: jax.Array, most: jax.Array) -> jax.Array:
    """Elements of modulus `most` at most: longer ones are shortened, and keep their phase."""
    if not jnp.iscomplexobj(x):
        return jnp.clip(x, -most, most)
    modulus = jnp.abs(x)
    is_long = modulus > most
    return jnp.where(
        is_long, x * (most / jnp.where(is_long, modulus, sharded_full_like(modulus, 1))), x
    )


def divisor(largest: jax.Array) -> jax.Array:
    """What numbers are divided by to bring them into range, by the largest of them.

    1 where that is zero or not finite, else itself; but no more than a number whose reciprocal, by
    which XLA multiplies in place of a division, isn't subnormal, and so zero on most devices.
    """
    reach = 2.0 ** (jnp.finfo(largest.dtype).maxexp - 3)
    least, most = (sharded_full_like(largest, value) for value in (1 / reach, reach))
    usable = (largest > 0) & jnp.isfinite(largest)
    # It cancels, so that no derivative goes through it.
    return lax.stop_gradient(
        lax.select(usable, lax.clamp(least, largest, most), sharded_full_like(largest, 1))
    )


def over_length(x: jax.Array, length: jax.Array) -> jax.Array:
    """`x / length` for any length; `x` where that is zero.

    In two divisions: a float32 length beyond 2^126 has a reciprocal that is subnormal, and zero.
    """
    unit = divisor(length)
    rest = length / unit
    return x / unit / lax.select(rest > 0, rest, sharded_full_like(rest, 1))


def quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    """`a / b` with 0 / 0 = 0."""
    return a / jnp.where((a == 0) & (b == 0), sharded_full_like(b, 1), b)


def with_epsilon(norm: jax.Array, eps: jax.Array) -> jax.Array:
    """`norm + eps`, to divide by; 1 where the norm is 0, and the quotient has a moderate slope."""
    return jnp.where(norm == 0, sharded_full_like(norm, 1), norm + eps)


@jax.custom_jvp
def flat_at_zero(x: jax.Array) -> jax.Array:
    """The array itself, with derivative 0 where it is 0.

    A step of an adaptive method is zero where a param sits at its minimum: zero over a root of
    zero and an epsilon. Its slope there is one over that epsilon, and the product of the slopes of
    a few steps overflows.
    """
    return x


@flat_at_zero.defjvp
def _flat_at_zero_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    zero = sharded_full_like(dx, 0)
    return x, lax.select(lax.eq(x, sharded_full_like(x, 0)), zero, dx)


def power_of_two(size: jax.Array) -> jax.Array:
    """The power of two below each number; 1 for zeros, subnormal numbers and what isn't finite.

    To multiply by it rounds nothing.
    """
    info = jnp.finfo(size.dtype)
    words = jnp.dtype(f"uint{info.bits}")
    # The number without its mantissa; `ldexp` is a power to XLA, and zero for subnormal numbers.
    exponent = np.asarray(-1 << info.nmant, f"int{info.bits}").view(words)
    bits = lax.bitcast_convert_type(size, words) & exponent
    floor = lax.bitcast_convert_type(bits, size.dtype)
    known = (size >= info.tiny) & jnp.isfinite(size)
    return jnp.where(known, floor, sharded_full_like(size, 1))


def sum_of_squares(x: Any, scale: Any = None, dtype: Any = None) -> jax.Array:
    """The sum of the squared moduli of all elements, at least float32.

    Args:
        x: A floating or complex array.
        scale: A number that every element is multiplied by first; `None` for 1.
        dtype: A real dtype to compute in, if it is wider than that of the array.
    """
    x = jnp.asarray(x)
    wide = x.astype(compute_dtype(x.dtype, *([] if dtype is None else [dtype])))
    return jnp.sum(squared_modulus(wide if scale is None else wide * scale.astype(wide.dtype)))


def safe_norms(
    squares: Callable[[jax.Array | None], jax.Array],
    root: Callable[[jax.Array], jax.Array] = root,
) -> jax.Array:
    r"""The roots of sums of squares, right wherever the norms themselves can be represented.

    .. math:: \lVert x \rVert = \frac{1}{c} \Bigl( \sum_i (c\, x_i)^2 \Bigr)^{1/2}

    In float32 the square of 2e19 is infinite and that of 1e-23 is zero. The plain sum is computed
    first; only where it is out of range, a second pass scales by a power of two.

    Args:
        squares: From a scale `c` for each norm (`None` for 1) to the sums of squares of what is
            scaled by it, real, at least float32, of any shape.
        root: The square root of sums that were out of range, which may be zero; `lax.sqrt` where it
            isn't differentiated.

    Returns:
        The norms, in the shape of what `squares` returns. NaN and infinite elements give NaN and
        infinite norms.
    """
    plain = squares(None)
    bad = out_of_range(plain)
    some = jnp.any(bad) if bad.shape else bad
    # What isn't out of range isn't zero either: its root needs no care.
    return lax.cond(some, lambda: _rescaled(squares, plain, bad, root), lambda: lax.sqrt(plain))


def norms_over(x: jax.Array, axes: Any) -> jax.Array:
    """The Euclidean norms over some axes, which are kept with one entry each."""

    def squares(scale: jax.Array | None) -> jax.Array:
        scaled = x if scale is None else x * scale
        return jnp.sum(squared_modulus(scaled), axis=axes, keepdims=True)

    return safe_norms(squares)


def out_of_range(squares: jax.Array) -> jax.Array:
    """Whether a sum of squares is infinite or NaN, or so small that it may have lost terms."""
    info = jnp.finfo(squares.dtype)
    least = np.asarray(2.0 ** (-info.maxexp // 2), squares.dtype)
    return lax.ne(lax.clamp(least, squares, np.asarray(info.max, squares.dtype)), squares)


def _rescaled(squares: Any, plain: jax.Array, bad: jax.Array, root: Any) -> jax.Array:
    # One power for each side will do. With 2^128 as the largest number, overflow comes from
    # elements above 2^49 (if there are 2^30 of them), which 2^-96 brings to squares between 2^-94
    # and 2^64; underflow from elements below 2^-32, which 2^63 brings to between 2^-126 and 2^62.
    # The square of that scale is finite, too: of zeros that XLA knows (gradients of params that are
    # frozen or unused) it knows the scale as well, and makes c^2 x^2 of (c x)^2.
    top = jnp.finfo(plain.dtype).maxexp
    one, down, up = (sharded_full_like(plain, 2.0**e) for e in (0, -3 * top // 4, top // 2 - 1))
    scale = lax.select(plain > 1, down, up)
    scale = lax.select(bad, scale, one) if bad.shape else scale  # one that isn't isn't here
    return root(squares(scale)) / scale


def joint_norm(norms: Sequence[jax.Array] | jax.Array) -> jax.Array:
    """The norm of a whole from the norms of its parts, elementwise: `(sum_k n_k^2)^(1/2)`."""
    if len(norms) == 1:
        return norms[0]
    stacked = norms if isinstance(norms, jax.Array) else jnp.stack([*norms])
    unit = divisor(jnp.max(stacked, axis=0))
    return unit * root(jnp.sum((stacked / unit) ** 2, axis=0))


def norm_of_leaves(leaves: Sequence[Any]) -> jax.Array:
    """The Euclidean norm over some arrays, in their widest real dtype, at least float32."""
    if not leaves:
        return jnp.zeros((), jnp.float32)
    with sum_over_shards():
        norm = _norm([jnp.asarray(x) for x in leaves])
        return joint_norm(_on_all_devices(norm, shard_axes())) if shard_axes() else norm


def _on_all_devices(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """A number of every device, as a vector that is the same on all: their squares could overflow.

    It is a sum, and no gathering, because of a sum it is known that all devices have the same.
    """
    mine = jnp.arange(lax.psum(1, axes)) == lax.axis_index(axes)
    return lax.psum(jnp.where(mine, x, jnp.zeros_like(x)), axes)


@jax.custom_jvp
def _norm(leaves: list[jax.Array]) -> jax.Array:
    # Compiled by itself, or an eager call would compile the condition anew every time.
    return (_joint_norm if is_staged(*leaves) else _norm_program)(leaves)


def _joint_norm(leaves: list[jax.Array]) -> jax.Array:
    dtype = real_dtype(compute_dtype(*(x.dtype for x in leaves)))
    leaves = [kind.array for kind in by_kind(leaves)]
    # XLA on a GPU computes both sides of a condition, and reads the leaves once more for it. On a
    # CPU, which is bound by arithmetic here, three sums take fifteen times as long as one.
    if jax.default_backend() != "cpu":
        return _norm_from_ranges(leaves, dtype)

    def squares(scale: jax.Array | None) -> jax.Array:
        total = sum_of_squares(leaves[0], scale, dtype)
        for x in leaves[1:]:
            if scale is not None and x.size >= _LARGE:
                # A scale for every leaf, or one as large as the leaf is kept for all of that shape.
                total, scale = lax.optimization_barrier((total, scale))
            total = lax.add(total, sum_of_squares(x, scale, dtype))
        return total

    return safe_norms(squares, lax.sqrt)


_norm_program = jax.jit(_joint_norm)


def _norm_from_ranges(leaves: Sequence[jax.Array], dtype: Any) -> jax.Array:
    """The norm from the sums of squares of large, moderate and small elements, in one pass.

    Blue, 1978, ACM Transactions on Mathematical Software 4(1): a power of two for each range brings
    its squares into the range of the dtype.
    """
    # With 2^128 as the largest number, moderate elements are those from 2^-48 to 2^48. The sum of
    # 2^30 of their squares is below 2^126. The scales 2^-96 and 2^96 bring larger elements to
    # between 2^-48 and 2^32 and smaller ones, the subnormal too, to between 2^-53 and 2^48.
    top = jnp.finfo(dtype).maxexp
    bound, scale = 2.0 ** (3 * top // 8), 2.0 ** (3 * top // 4)
    totals = [jnp.zeros((), dtype)] * 3
    for x in leaves:
        for part in (jnp.real(x), jnp.imag(x)) if jnp.iscomplexobj(x) else (x,):
            size = jnp.abs(part.astype(dtype))
            large, small, zero = size > bound, size < 1 / bound, sharded_full_like(size, 0)
            ranges = (
                jnp.where(large, size * (1 / scale), zero),
                jnp.where(large | small, zero, size),  # and NaN
                jnp.where(small, size * scale, zero),
            )
            totals = [total + jnp.sum(r * r) for total, r in zip(totals, ranges, strict=True)]
    large, moderate, small = map(lax.sqrt, totals)
    return joint_norm([large * scale, moderate, small * (1 / scale)])


@_norm.defjvp
def _norm_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[jax.Array, jax.Array]:
    norm = _norm(*primals)
    length = nonzero(norm)
    slope = jnp.zeros_like(norm)
    for x, dx in zip(primals[0], tangents[0], strict=True):
        dtype = compute_dtype(x.dtype, norm.dtype)
        # The quotient first: it has modulus 1 at most, a product could overflow.
        unit = jnp.conj(x.astype(dtype) / length.astype(dtype))
        slope += jnp.sum(jnp.real(unit * dx.astype(dtype)))
    return norm, slope
