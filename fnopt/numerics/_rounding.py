"""Rounding to narrow dtypes, in float32 arithmetic."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp

# XLA may omit a conversion to a narrow dtype and back ("excess precision"), so the number wouldn't
# be rounded. Therefore numbers are rounded by arithmetic to multiples of the narrow dtype's
# spacing. The quotient and the product are exact, because the spacing is a power of two.

# Exponent of the smallest normal float32: some devices flush smaller numbers to zero.
_MIN_EXPONENT = -126
# Largest size of an array whose random bits come from a draw for many arrays. A shared draw takes
# twice the temporary memory: 1.3 MB for 20 arrays of this size, 5.3 MB for arrays of 16,384. For
# arrays of 65,536 it also takes twice the time.
_MAX_SHARED = 4096
# `fold_in` data of the first separate draw. The shared draws use 16 and 32, their bits per number.
_FIRST_DRAW = 64


def is_narrow(dtype: Any) -> bool:
    """Whether a dtype is a float of less than 32 bits."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def _spacing(x: jax.Array, dtype: Any) -> jax.Array:
    """Spacing of the numbers of a narrow dtype near the float32 numbers `x`."""
    info = jnp.finfo(dtype)
    exponent = jax.lax.bitcast_convert_type(x, jnp.int32) & 0x7F800000
    # |x| rounded down to a power of two.
    power = jax.lax.bitcast_convert_type(exponent, jnp.float32)
    # The spacing must be a normal float32, so it isn't smaller than 2^-126.
    min_exponent = max(int(info.minexp), _MIN_EXPONENT + int(info.nmant))
    return jnp.maximum(power, 2.0**min_exponent) * jnp.float32(2.0 ** -int(info.nmant))


def saturating_cast(x: Any, dtype: Any) -> jax.Array:
    """Cast to a dtype; numbers above the range of the dtype become its largest number.

    A plain cast would make such numbers infinite, or NaN in a float8 dtype without infinity.
    bfloat16 has the range of float32, so numbers are not clipped.
    """
    if all(jnp.issubdtype(d, jnp.floating) for d in (jnp.result_type(x), dtype)):
        target = jnp.finfo(dtype)
        if target.maxexp < jnp.finfo(jnp.result_type(x)).maxexp:
            x = jnp.clip(x, float(target.min), float(target.max))
    return jax.lax.convert_element_type(x, dtype)


@functools.partial(jax.jit, static_argnums=1)
def round_to_nearest(x: jax.Array, dtype: Any) -> jax.Array:
    """Round a float32 array to the nearest numbers of a narrow dtype; the result is float32."""
    spacing = _spacing(x, dtype)
    return jnp.where(jnp.isfinite(x), jnp.round(x / spacing) * spacing, x)


def stochastic_round(x: Any, dtype: Any, key: jax.Array) -> jax.Array:
    r"""Round at random to one of the two neighbors in a narrower dtype, without bias.

    .. math:: P(\text{up}) = \frac{x - \lfloor x \rfloor}{\lceil x \rceil - \lfloor x \rfloor},
              \qquad E[\mathrm{round}(x)] = x

    A sum that is rounded stochastically includes small increments in the mean; rounding to nearest
    would discard them. Numbers that the dtype represents don't change, except in bfloat16 below
    1e-36, where numbers are rounded to multiples of float32's smallest normal number.

    Args:
        x: A real array.
        dtype: A floating dtype of less than 32 bits. For a wider dtype, the array is converted
            without random rounding.
        key: A key of `jax.random`.

    Returns:
        An array of that dtype.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.numerics import stochastic_round
        >>> x = jnp.full(10_000, 1 + 2.0**-10)  # bfloat16 has 1 and 1 + 2**-7
        >>> y = stochastic_round(x, jnp.bfloat16, jax.random.key(0))
        >>> print(f"{(y > 1).mean():.2f}")  # one in eight is rounded up
        0.13

    Reference:
        Gupta et al., 2015, arXiv:1502.02551; Zamirai et al., 2020, arXiv:2010.06192.
    """
    if not is_narrow(dtype):
        return jnp.asarray(x).astype(dtype)
    x = jnp.asarray(x).astype(jnp.float32)
    return _round_by_bits(x, dtype, jax.random.bits(key, x.shape, _bits_dtype(dtype))).astype(dtype)


def stochastic_round_leaves(
    xs: list[jax.Array], dtypes: list[Any], key: jax.Array
) -> list[jax.Array]:
    """Round float32 arrays stochastically, each to its own dtype with independent random numbers.

    Small arrays share one call of the random generator, because XLA takes 0.15 s to compile each
    call.
    """
    random_bits: list[Any] = [None] * len(xs)
    for words in (jnp.uint16, jnp.uint32):
        indices = [
            i for i, x in enumerate(xs) if x.size <= _MAX_SHARED and _bits_dtype(dtypes[i]) == words
        ]
        if not indices:
            continue
        sizes = [xs[i].size for i in indices]
        draw_key = jax.random.fold_in(key, jnp.iinfo(words).bits)
        # Without the barrier, XLA would generate the random numbers again for every leaf.
        draw = jax.lax.optimization_barrier(jax.random.bits(draw_key, (sum(sizes),), words))
        ends = itertools.accumulate(sizes)
        for i, size, end in zip(indices, sizes, ends, strict=True):
            # A gather, because XLA would propagate the sharding of one leaf through slices to the
            # draw and to all other leaves.
            places = jnp.arange(end - size, end).reshape(xs[i].shape)
            random_bits[i] = draw.at[places].get(mode="promise_in_bounds")
    for i, x in enumerate(xs):
        if random_bits[i] is None:
            draw_key = jax.random.fold_in(key, _FIRST_DRAW + i)
            random_bits[i] = jax.random.bits(draw_key, x.shape, _bits_dtype(dtypes[i]))
    return list(map(_round_by_bits, xs, dtypes, random_bits))


def _bits_dtype(dtype: Any) -> Any:
    # Rounding is unbiased if there is a random bit for every mantissa bit of float32 that the dtype
    # lacks: 16 for bfloat16, 13 for float16, 20 or 21 for float8.
    return jnp.uint16 if jnp.finfo(dtype).bits == 16 else jnp.uint32


@functools.partial(jax.jit, static_argnums=1)
def _round_by_bits(x: jax.Array, dtype: Any, random_bits: jax.Array) -> jax.Array:
    spacing = _spacing(x, dtype)
    floor = jnp.floor(x / spacing)
    # float32 represents integers of 24 bits, so the uniform number in [0, 1) has 24 bits at most.
    bits = jnp.iinfo(random_bits.dtype).bits
    random_bits = (random_bits >> (bits - 24)) if bits > 24 else random_bits
    uniform = random_bits.astype(jnp.float32) * jnp.float32(2.0 ** -min(bits, 24))
    increment = (uniform < x / spacing - floor).astype(jnp.float32)
    return jnp.where(jnp.isfinite(x), (floor + increment) * spacing, x)
