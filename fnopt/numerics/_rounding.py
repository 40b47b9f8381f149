"""Rounding to narrow dtypes, in float32 arithmetic."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp

# XLA may omit a conversion to a narrow dtype and back ("excess precision"), and the rounding error
# would then be zero. Therefore numbers are rounded by arithmetic to multiples of the narrow dtype's
# spacing. The arithmetic is exact, because the spacing is a power of two.
# Exponent of the smallest normal float32: some devices flush smaller numbers to zero.
_LEAST_EXPONENT = -126
_SMALL = 4096  # elements of an array that shares a draw of random numbers
_FIRST = 64  # number of the first draw of a leaf; smaller numbers are shared draws


def is_narrow(dtype: Any) -> bool:
    """Whether a dtype is a float of less than 32 bits."""
    return jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def _distance(x: jax.Array, dtype: Any) -> jax.Array:
    """Spacing of the numbers of a narrow dtype near the float32 numbers `x`."""
    info = jnp.finfo(dtype)
    exponent = jax.lax.bitcast_convert_type(x, jnp.int32) & 0x7F800000
    # The largest power of two not above |x|.
    power = jax.lax.bitcast_convert_type(exponent, jnp.float32)
    least = max(int(info.minexp), _LEAST_EXPONENT + int(info.nmant))
    return jnp.maximum(power, 2.0**least) * jnp.float32(2.0 ** -int(info.nmant))


def saturating_cast(x: Any, dtype: Any) -> jax.Array:
    """Cast to a dtype; numbers above the range of the dtype become its largest number.

    A plain cast makes them infinite, or NaN in a float8 dtype without infinity. bfloat16 has the
    range of float32.
    """
    if all(jnp.issubdtype(d, jnp.floating) for d in (jnp.result_type(x), dtype)):
        target = jnp.finfo(dtype)
        if target.maxexp < jnp.finfo(jnp.result_type(x)).maxexp:
            x = jnp.clip(x, float(target.min), float(target.max))
    return jax.lax.convert_element_type(x, dtype)


@functools.partial(jax.jit, static_argnums=1)
def round_to_nearest(x: jax.Array, dtype: Any) -> jax.Array:
    """Round a float32 array to the nearest numbers of a narrow dtype; the result is float32."""
    distance = _distance(x, dtype)
    return jnp.where(jnp.isfinite(x), jnp.round(x / distance) * distance, x)


def stochastic_round(x: Any, dtype: Any, key: jax.Array) -> jax.Array:
    r"""Round at random to one of the two neighbors in a narrower dtype, without bias.

    .. math:: P(\text{up}) = \frac{x - \lfloor x \rfloor}{\lceil x \rceil - \lfloor x \rfloor},
              \qquad E[\mathrm{round}(x)] = x

    The mean of rounded sums includes small increments, which rounding to nearest would discard.
    Numbers of the dtype don't change. (Below 1e-36, numbers that bfloat16 represents are rounded
    too, to multiples of float32's smallest normal number.)

    Args:
        x: A real array.
        dtype: A floating dtype of less than 32 bits; for a wider dtype, the array is converted
            without random rounding.
        key: A key of `jax.random`.

    Returns:
        An array of that dtype.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.numerics import stochastic_round
        >>> x = jnp.full(10_000, 1 + 2.0**-10)  # bfloat16 has 1 and 1 + 2**-7
        >>> y = stochastic_round(x, jnp.bfloat16, jax.random.key(0))
        >>> print(f"{(y > 1).mean():.2f}")  # one in eight goes up
        0.13

    Reference:
        Gupta et al., 2015, arXiv:1502.02551; Zamirai et al., 2020, arXiv:2010.06192.
    """
    if not is_narrow(dtype):
        return jnp.asarray(x).astype(dtype)
    x = jnp.asarray(x).astype(jnp.float32)
    return _round_by_bits(x, dtype, jax.random.bits(key, x.shape, _words(dtype))).astype(dtype)


def stochastic_round_leaves(
    xs: list[jax.Array], dtypes: list[Any], key: jax.Array
) -> list[jax.Array]:
    """Round float32 arrays stochastically, each to a given dtype with independent random numbers.

    Small arrays share one call of the random generator, because XLA takes 0.15 s to compile each
    call.
    """
    drawn: list[Any] = [None] * len(xs)
    for words in (jnp.uint16, jnp.uint32):
        small = [i for i, x in enumerate(xs) if x.size <= _SMALL and _words(dtypes[i]) == words]
        if not small:
            continue
        sizes = [xs[i].size for i in small]
        own = jax.random.fold_in(key, jnp.iinfo(words).bits)
        # Without the barrier, XLA would generate the random numbers again for every leaf.
        shared = jax.lax.optimization_barrier(jax.random.bits(own, (sum(sizes),), words))
        ends = itertools.accumulate(sizes)
        for i, size, end in zip(small, sizes, ends, strict=True):
            drawn[i] = jax.lax.slice(shared, (end - size,), (end,)).reshape(xs[i].shape)
    for i, x in enumerate(xs):
        if drawn[i] is None:
            own = jax.random.fold_in(key, _FIRST + i)
            drawn[i] = jax.random.bits(own, x.shape, _words(dtypes[i]))
    return list(map(_round_by_bits, xs, dtypes, drawn))


def _words(dtype: Any) -> Any:
    # There are as many random bits as float32 has extra digits, so rounding is unbiased.
    return jnp.uint16 if jnp.finfo(dtype).bits == 16 else jnp.uint32


@functools.partial(jax.jit, static_argnums=1)
def _round_by_bits(x: jax.Array, dtype: Any, drawn: jax.Array) -> jax.Array:
    distance = _distance(x, dtype)
    below = jnp.floor(x / distance)
    bits = jnp.iinfo(drawn.dtype).bits
    drawn = (drawn >> (bits - 24)) if bits > 24 else drawn
    chance = drawn.astype(jnp.float32) * jnp.float32(2.0 ** -min(bits, 24))
    above = (chance < x / distance - below).astype(jnp.float32)
    return jnp.where(jnp.isfinite(x), (below + above) * distance, x)
