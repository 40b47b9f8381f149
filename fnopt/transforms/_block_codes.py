"""Arrays of floats as bytes: blocks with a scale each, and codes that are dense near zero.

The dynamic tree code of Dettmers et al.: a code's leading bit says the decade, from 1e-7 to 1 of
the largest number of the block, and the bits behind it divide the decade evenly. So the numbers
next to zero have few digits and the large ones up to seven.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import reshaped

DECADES = 7


@functools.cache
def magnitudes(signed: bool) -> np.ndarray:
    """The magnitudes of the codes from 0 on: zero, the middles of the parts of all decades, one."""
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
        inside = size >= float(m[2 ** (d + first) - first])  # its first number
        tens = jnp.where(inside, jnp.full_like(size, 10.0 ** (DECADES - 1 - d)), tens)
        count = jnp.where(inside, jnp.full_like(size, 2.0 ** (d + first)), count)
    return tens, count


def _chance(y: jax.Array, step: jax.Array) -> jax.Array:
    """A number from 0 to 1 for every element, mixed from its digits, its place and the step.

    The last digits of an average are as good as random and cost nothing to draw; the step is there
    for numbers that come back to the same code, and so to the same digits.
    """
    word = jax.lax.bitcast_convert_type(y.astype(jnp.float32), jnp.uint32)
    place = jax.lax.broadcasted_iota(jnp.uint32, y.shape, y.ndim - 1)
    word = word ^ (place * jnp.uint32(0x9E3779B9)) ^ (step * jnp.uint32(0x27D4EB2F))
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return (word >> 8).astype(y.dtype) * 2.0**-24


def codes_of(y: jax.Array, signed: bool, step: jax.Array) -> jax.Array:
    """One of the two neighbouring codes for numbers between -1 and 1 (0 and 1, if not signed).

    The nearer one is more likely, so that numbers are right on average: rounded to the nearest, a
    mean square that changes by a thousandth in a step would never change.
    """
    m = magnitudes(signed)
    size = jnp.abs(y) if signed else jnp.maximum(y, jnp.zeros_like(y))
    tens, count = _decade_of(size, signed)
    exact = (size * tens - 0.1) * (count * (1 / 0.9)) - 0.5
    inside = jnp.clip(jnp.floor(exact), jnp.zeros_like(count), count - 1)
    # To the first number of the next decade it is three times as far; to one, half as far.
    far = jnp.where(tens > 1, jnp.full_like(tens, 1 / 3), jnp.full_like(tens, 2.0))
    beyond = (exact - inside) * jnp.where(inside == count - 1, far, jnp.ones_like(far))
    chance = _chance(y, step)
    code = (count if signed else count - 1) + inside + (chance < beyond).astype(y.dtype)
    # A mean square becomes zero only where it is zero: the step divides by its root.
    least = (chance < size / float(m[1])) if signed else size > 0
    code = jnp.where(size < float(m[1]), least.astype(y.dtype), code)
    code = jnp.minimum(code, jnp.full_like(code, float(len(m) - 1)))
    if signed:  # the upper half are the negative ones; there is no code for minus one
        negative = jnp.minimum(code, jnp.full_like(code, 127.0)) + 128
        code = jnp.where((y < 0) & (code > 0), negative, code)
    return code.astype(jnp.uint8)


def numbers_of(codes: jax.Array, signed: bool, dtype: Any) -> jax.Array:
    """Decode 8-bit codes to numbers."""
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


def block_length(shape: tuple[int, ...], block_size: int) -> int:
    """How many elements of an array share a scale: `block_size`, or what divides the array."""
    last = _divisor(shape[-1], block_size) if shape else None
    return last or _divisor(math.prod(shape), block_size) or block_size


def _as_blocks(x: jax.Array, block_size: int) -> jax.Array:
    """The array with blocks as its last axis, each of at most `block_size` elements.

    Leading axes stay where the last one can be divided: they may be spread over devices. Only where
    the size of the whole array has no fitting divisor it is padded, which takes a copy.
    """
    length = block_length(x.shape, block_size)
    if x.ndim and x.shape[-1] == length:
        return x
    if x.ndim and x.shape[-1] % length == 0:
        return reshaped(x, *x.shape[:-1], x.shape[-1] // length, length)
    flat = reshaped(x, -1)
    return jnp.pad(flat, (0, -x.size % length)).reshape(-1, length)


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
    # A state begins as zeros. XLA would fold their maxima, number by number: 9 s for a million.
    zero = jax.lax.optimization_barrier(jnp.zeros((), integer))
    pair = jax.lax.reduce(halves, (zero, zero), _both_maxima, (bits.ndim - 1,))
    bits = jnp.maximum(*pair)
    return jax.lax.bitcast_convert_type(bits, blocks.dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def encode(
    x: jax.Array, signed: bool, block_size: int, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Codes of the array's shape, and a scale for every block; `count` is the number of the step.

    A block with an infinity or NaN has a scale that is one, and is NaN or infinite when it is read:
    nothing is hidden.
    """
    blocks = _as_blocks(x, block_size)
    scales = _scales_of(blocks)
    safe = jnp.where((scales > 0) & jnp.isfinite(scales), scales, jnp.ones_like(scales))
    finite = jnp.where(jnp.isfinite(blocks), blocks, jnp.zeros_like(blocks))
    codes = codes_of(finite / safe[..., None], signed, count.astype(jnp.uint32))
    return _from_blocks(codes, x.shape), scales


@functools.partial(jax.jit, static_argnums=(2, 3))
def decode(codes: jax.Array, scales: jax.Array, signed: bool, block_size: int) -> jax.Array:
    """The numbers that codes and scales stand for, in the dtype of the scales."""
    numbers = numbers_of(_as_blocks(codes, block_size), signed, scales.dtype)
    return _from_blocks(numbers * scales[..., None], codes.shape)
