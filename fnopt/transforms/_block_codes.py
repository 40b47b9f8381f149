"""Arrays of floats as bytes: blocks with a scale each, and codes that are dense near zero.

The dynamic tree code of Dettmers et al.: a code's leading bit says the decade, from 1e-7 to 1 of
the largest number of the block, and the bits behind it divide the decade evenly. So the numbers
next to zero have few digits and the large ones up to seven.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import reshaped

DECADES = 7


@functools.cache
def magnitudes(signed: bool) -> np.ndarray:
    """What the codes from 0 on stand for: zero, the middles of the parts of all decades, one."""
    first = 0 if signed else 1
    parts = [
        10.0 ** (d + 1 - DECADES) * (0.1 + 0.9 * (np.arange(n) + 0.5) / n)
        for d, n in ((d, 2 ** (d + first)) for d in range(DECADES))
    ]
    return np.concatenate([[0.0], *parts, [1.0]])


# A table that is looked up is no part of XLA's fused loops: what goes in and what comes out would
# be kept. So codes and numbers are computed from each other, by a choice between decades.


def _decade_of(size: jax.Array, signed: bool) -> tuple[jax.Array, jax.Array]:
    """The power of ten that brings a number's decade to (0.1, 1), and how many codes it has."""
    m, first = magnitudes(signed), 0 if signed else 1
    tens, count = (jnp.full_like(size, x) for x in (10.0 ** (DECADES - 1), 2.0**first))
    for d in range(1, DECADES):
        start = 2 ** (d + first) - first
        inside = size >= float(m[start - 1] + m[start]) / 2  # nearer to it than to the last decade
        tens = jnp.where(inside, jnp.full_like(size, 10.0 ** (DECADES - 1 - d)), tens)
        count = jnp.where(inside, jnp.full_like(size, 2.0 ** (d + first)), count)
    return tens, count


def codes_of(y: jax.Array, signed: bool) -> jax.Array:
    """The nearest codes for numbers between -1 and 1 (0 and 1, if not signed)."""
    m = magnitudes(signed)
    size = jnp.abs(y) if signed else jnp.maximum(y, jnp.zeros_like(y))
    tens, count = _decade_of(size, signed)
    inside = jnp.floor((size * tens - 0.1) * (count * (1 / 0.9)))
    inside = jnp.clip(inside, jnp.zeros_like(count), count - 1)
    code = (count if signed else count - 1) + inside
    code = jnp.where(size < float(m[1]) / 2, jnp.zeros_like(code), code)
    last = float(len(m) - 1)
    code = jnp.where(size >= float(m[-2] + 1) / 2, jnp.full_like(code, last), code)
    if signed:  # the upper half are the negative ones; there is no code for minus one
        negative = jnp.minimum(code, jnp.full_like(code, 127.0)) + 128
        code = jnp.where((y < 0) & (code > 0), negative, code)
    return code.astype(jnp.uint8)


def numbers_of(codes: jax.Array, signed: bool, dtype: Any) -> jax.Array:
    """What codes stand for."""
    c = codes.astype(dtype)
    negative = c > 128
    c = jnp.where(negative, c - 128, c) if signed else c + 1
    first, ten = (0 if signed else 1), 10.0 ** (1 - DECADES)
    least, part = (jnp.full_like(c, x * ten) for x in (0.1, 0.9 / 2**first))
    count = jnp.full_like(c, 2.0**first)
    for d in range(1, DECADES):
        n, unit = 2.0 ** (d + first), ten * 10.0**d
        inside = c >= n
        least = jnp.where(inside, jnp.full_like(c, 0.1 * unit), least)
        part = jnp.where(inside, jnp.full_like(c, 0.9 * unit / n), part)
        count = jnp.where(inside, jnp.full_like(c, n), count)
    size = least + part * (c - count + 0.5)
    size = jnp.where(c < 2.0**first, jnp.zeros_like(c), size)
    size = jnp.where(c >= 2.0 ** (DECADES + first), jnp.ones_like(c), size)
    return jnp.where(negative, -size, size) if signed else size


def _divisor(n: int, most: int) -> int | None:
    """The largest divisor of a length between half of `most` and `most`."""
    return next((k for k in range(most, (most - 1) // 2, -1) if n % k == 0), None)


def _as_blocks(x: jax.Array, block_size: int) -> jax.Array:
    """The array with blocks as its last axis, each of at most `block_size` elements.

    Leading axes stay where the last one can be divided: they may be spread over devices. Only where
    the size of the whole array has no fitting divisor it is padded, which takes a copy.
    """
    last = _divisor(x.shape[-1], block_size) if x.ndim else None
    if x.ndim and last == x.shape[-1]:
        return x
    if last is not None:
        return reshaped(x, *x.shape[:-1], x.shape[-1] // last, last)
    flat, length = reshaped(x, -1), _divisor(x.size, block_size)
    if length is not None:
        return flat.reshape(-1, length)
    return jnp.pad(flat, (0, -x.size % block_size)).reshape(-1, block_size)


def _from_blocks(blocks: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    size = int(np.prod(shape))
    if blocks.size == size:
        return reshaped(blocks, *shape)
    return blocks.reshape(-1)[:size].reshape(shape)


def _both_maxima(a: Any, b: Any) -> Any:
    return tuple(map(jnp.maximum, a, b))


def _scales_of(blocks: jax.Array) -> jax.Array:
    """The largest size in every block, which is infinite or NaN where something in it is."""
    # The bits of floats without a sign are in their order, infinity and NaN last. XLA on a CPU
    # hands a maximum of floats to a library, and makes two of a long one of integers; what goes in
    # would be kept. Two maxima of integers at once are fused with what they are of.
    integer = {32: jnp.int32, 64: jnp.int64}[jnp.finfo(blocks.dtype).bits]
    bits = jax.lax.bitcast_convert_type(jnp.abs(blocks), integer)
    half = bits.shape[-1] // 2
    halves = bits[..., : bits.shape[-1] - half], bits[..., half:]
    zero = jnp.zeros((), integer)
    pair = jax.lax.reduce(halves, (zero, zero), _both_maxima, (bits.ndim - 1,))
    bits = jnp.maximum(*pair)
    return jax.lax.bitcast_convert_type(bits, blocks.dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def encode(x: jax.Array, signed: bool, block_size: int) -> tuple[jax.Array, jax.Array]:
    """Codes of the array's shape, and a scale for every block.

    A block with an infinity or NaN has a scale that is one, and is NaN or infinite when it is read:
    nothing is hidden.
    """
    blocks = _as_blocks(x, block_size)
    scales = _scales_of(blocks)
    safe = jnp.where((scales > 0) & jnp.isfinite(scales), scales, jnp.ones_like(scales))
    finite = jnp.where(jnp.isfinite(blocks), blocks, jnp.zeros_like(blocks))
    return _from_blocks(codes_of(finite / safe[..., None], signed), x.shape), scales


@functools.partial(jax.jit, static_argnums=(2, 3))
def decode(codes: jax.Array, scales: jax.Array, signed: bool, block_size: int) -> jax.Array:
    """The numbers that codes and scales stand for, in the dtype of the scales."""
    numbers = numbers_of(_as_blocks(codes, block_size), signed, scales.dtype)
    return _from_blocks(numbers * scales[..., None], codes.shape)
