"""Roots, quotients, squares and matrix products in full precision, without overflow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.numerics._dtypes import compute_dtype, real_dtype
from fnopt.sharding import product_sharding, sharded_full_like


def is_static_zero(x: Any) -> bool:
    """Whether a number is a Python or NumPy zero, which is known at trace time."""
    return isinstance(x, (float, np.floating)) and x == 0


def cast(x: Any, dtype: Any) -> jax.Array:
    """Cast to the compute dtype; real leaves stay real if others are complex."""
    if isinstance(x, jax.Array) and x.dtype == dtype and not x.weak_type:
        return x
    x = jnp.asarray(x)
    return x.astype(dtype if jnp.iscomplexobj(x) else real_dtype(dtype))


def widen(x: jax.Array) -> jax.Array:
    """Cast an array to at least float32, including integers and booleans."""
    return x.astype(compute_dtype(x.dtype))


def squared_modulus(x: jax.Array) -> jax.Array:
    """Squared modulus of every element, :math:`|x|^2`; real, also for complex arrays."""
    if jnp.iscomplexobj(x):
        return jnp.square(jnp.real(x)) + jnp.square(jnp.imag(x))
    return jnp.square(x)


def clip_squarable(x: jax.Array, terms: int = 1) -> jax.Array:
    """Clip finite entries so that sums of `terms` squares are finite.

    A moving average of squares stays infinite after one infinite square, so every later step would
    be zero. In float32, finite entries above 2.3e18 are clipped; infinite entries stay infinite.
    """
    if jnp.finfo(x.dtype).bits < 32:  # squares of 16-bit arrays are computed in float32
        return x
    return lax.select(jnp.isfinite(x), clip_all_squarable(x, terms), x)


def clip_all_squarable(x: jax.Array, terms: int = 1) -> jax.Array:
    """Clip finite and infinite entries to the bound of `clip_squarable`, in one operation."""
    info = jnp.finfo(x.dtype)
    if info.bits < 32:
        return x
    if jnp.iscomplexobj(x):
        return lax.complex(
            clip_all_squarable(jnp.real(x), terms), clip_all_squarable(jnp.imag(x), terms)
        )
    # In float32 the bound is 2^61 / sqrt(terms), so a sum of `terms` squares is 2^122 at most.
    limit = np.asarray(2.0 ** (info.maxexp // 2 - 3) / max(terms, 1) ** 0.5, x.dtype)
    return lax.clamp(-limit, x, limit)


def safe_sqrt(x: jax.Array) -> jax.Array:
    """Square root with derivative 0 at 0; 0 for negative numbers (rounding errors), NaN for NaN."""
    zero, one = (sharded_full_like(x, value) for value in (0, 1))
    x = lax.max(x, zero)
    positive = lax.ne(x, zero)  # True for NaN, too
    # The derivative of sqrt at zero is infinite, and infinity times the zero cotangent of the outer
    # select would be NaN. The inner select avoids it.
    return lax.select(positive, lax.sqrt(lax.select(positive, x, one)), zero)


def nonzero(x: jax.Array) -> jax.Array:
    """Replace zeros by ones, for a safe division; NaN stays NaN."""
    return jnp.where(x == 0, sharded_full_like(x, 1), x)


def range_divisor(largest: jax.Array) -> jax.Array:
    """Divisor that scales numbers into the dtype's range, computed from the largest number.

    The divisor is 1 if the largest number is zero or not finite. Otherwise the divisor is the
    largest number, bounded so that its reciprocal isn't subnormal: XLA multiplies by reciprocals,
    and most devices flush subnormal numbers to zero.
    """
    # In float32 the bounds are 2^-125 and 2^125; their reciprocals are normal (tiny is 2^-126).
    bound = 2.0 ** (jnp.finfo(largest.dtype).maxexp - 3)
    lower, upper = (sharded_full_like(largest, value) for value in (1 / bound, bound))
    is_scale = (largest > 0) & jnp.isfinite(largest)
    # The divisor cancels in the caller's result, so its derivative is omitted.
    return lax.stop_gradient(
        lax.select(is_scale, lax.clamp(lower, largest, upper), sharded_full_like(largest, 1))
    )


def safe_divide(a: jax.Array, b: jax.Array) -> jax.Array:
    """Quotient `a / b` with 0 / 0 = 0."""
    return a / jnp.where((a == 0) & (b == 0), sharded_full_like(b, 1), b)


def add_epsilon(norm: jax.Array, eps: jax.Array) -> jax.Array:
    """Divisor `norm + eps`; 1 if the norm is 0, so that the derivative stays bounded."""
    return jnp.where(norm == 0, sharded_full_like(norm, 1), norm + eps)


@jax.custom_jvp
def zero_slope_at_zero(x: jax.Array) -> jax.Array:
    """Identity with derivative 0 at 0.

    If all gradients are zero, the step of an adaptive method is 0 / (sqrt(0) + epsilon) = 0. The
    derivative of this step is 1 / epsilon, and the product of a few such derivatives overflows.
    """
    return x


@zero_slope_at_zero.defjvp
def _zero_slope_at_zero_jvp(
    primals: tuple[Any], tangents: tuple[Any]
) -> tuple[jax.Array, jax.Array]:
    (x,), (dx,) = primals, tangents
    zero = sharded_full_like(dx, 0)
    return x, lax.select(lax.eq(x, sharded_full_like(x, 0)), zero, dx)


def floor_power_of_two(size: jax.Array) -> jax.Array:
    """Round each number down to a power of two; 1 for zero, subnormal and non-finite numbers.

    Products with a power of two are exact.
    """
    info = jnp.finfo(size.dtype)
    bits_dtype = jnp.dtype(f"uint{info.bits}")
    # Mask the mantissa. XLA lowers `ldexp` to a power, which is zero for subnormal numbers.
    exponent_mask = np.asarray(-1 << info.nmant, f"int{info.bits}").view(bits_dtype)
    bits = lax.bitcast_convert_type(size, bits_dtype) & exponent_mask
    floor = lax.bitcast_convert_type(bits, size.dtype)
    is_normal = (size >= info.tiny) & jnp.isfinite(size)
    return jnp.where(is_normal, floor, sharded_full_like(size, 1))


def sum_of_squares(x: Any, scale: Any = None, dtype: Any = None) -> jax.Array:
    """Sum of the squared moduli of all elements, computed in at least float32.

    Args:
        x: A floating or complex array.
        scale: A factor of every element; `None` for 1.
        dtype: A real dtype for the computation, if it is wider than the array's dtype.
    """
    x = jnp.asarray(x)
    elements = x.astype(compute_dtype(x.dtype, *([] if dtype is None else [dtype])))
    return jnp.sum(
        squared_modulus(elements if scale is None else elements * scale.astype(elements.dtype))
    )


# By default a GPU rounds the factors of a float32 product to 10 bits (TF32), a TPU to 7 (bfloat16).
# A gradient J^T r near zero, a predicted reduction or a normal matrix would then lose all digits by
# cancellation. On a CPU the precision has no cost, because products are in full precision anyway.
HIGHEST = jax.lax.Precision.HIGHEST


def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    """Product `a @ b` in the full precision of its dtype, also on accelerators.

    All matrix products of the library use this function. Products in the user's model keep their
    precision.
    """
    batch = max(jnp.ndim(b) - 2, 0)
    sharding = product_sharding(a, b, (-1, batch), batch)
    if sharding is None:
        return jnp.matmul(a, b, precision=HIGHEST)
    # `jnp.matmul` squeezes a stack of one matrix, so it rejects an output sharding for the stack.
    axes = ((jnp.ndim(a) - 1,), (batch,)), (range(batch), range(batch))
    return jax.lax.dot_general(a, b, axes, precision=HIGHEST, out_sharding=sharding)


def materialized_transpose(a: jax.Array) -> jax.Array:
    """Transpose a matrix that is the left factor of a product; store a float64 transpose in memory.

    On a CPU, a float64 product takes twice as long if XLA reads the left factor by columns. An
    explicit transpose costs a tenth of the product. In float32, an explicit transpose doesn't help.
    """
    return jax.lax.optimization_barrier(a.T) if a.dtype == jnp.float64 else a.T


def per_row(numbers: jax.Array, x: jax.Array) -> jax.Array:
    """Reshape one number per row, `[n]`, to `[n, 1, ...]`, which broadcasts against the rows."""
    return numbers.reshape(-1, *[1] * (x.ndim - 1))
