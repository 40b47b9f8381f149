"""Block-wise quantization of float arrays to 8-bit or 4-bit codes, including shards of a leaf.

A code consists of the leading bits of a float: the magnitude, relative to the largest magnitude of
its block, plus a bias. Magnitudes below the bias are spaced evenly and larger magnitudes
logarithmically, as in the mu-law of ITU-T G.711. Therefore encoding and decoding take an addition
and a shift.

A shard that consists of whole blocks has exactly the codes of the leaf. In other shards the blocks
begin at the start of the shard, and the last block is shorter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.sharding import UnshardedLeaves, replicate, reshape, shard_axes, unsharded_leaves


class Code(NamedTuple):
    """A format of codes.

    Attributes:
        bits: The number of bits of a code.
        signed: Whether one of the bits is the sign.
        octaves: The number of octaves from the bias to the largest magnitude.
        digits: The number of bits after the bits of the octave.
    """

    bits: int
    signed: bool
    octaves: int
    digits: int

    @property
    def bias(self) -> float:
        """The octave of the smallest code, chosen so that this code represents zero."""
        return 2.0**-self.octaves

    @property
    def bias_bits(self) -> int:
        """The bits of the bias."""
        return int(np.float32(self.bias).view(np.int32))

    @property
    def dropped_bits(self) -> int:
        """The number of bits of a float32 after the bits of its code."""
        return int(np.finfo(np.float32).nmant) - self.digits

    @property
    def largest(self) -> int:
        """The code of one."""
        return self.octaves << self.digits

    @property
    def sign(self) -> int:
        """The bit of negative numbers."""
        return 1 << (self.bits - 1)


# As many digits as leave enough octaves in the codes: 15 for 8 bits, 7 for 4 bits.
SIGNED, UNSIGNED = Code(8, True, 15, 3), Code(8, False, 15, 4)
CODES = {
    ("signed", 8): SIGNED,
    ("unsigned", 8): UNSIGNED,
    ("signed", 4): Code(4, True, 7, 0),
    ("unsigned", 4): Code(4, False, 7, 1),
}


@functools.cache
def magnitudes(code: Code) -> np.ndarray:
    """The magnitudes of the codes from 0 on, from zero to one."""
    codes = np.arange(code.largest + 1, dtype=np.int32)
    biased = (code.bias_bits + (codes << code.dropped_bits)).view(np.float32)
    # The difference cancels in small codes. Float64 keeps its digits.
    return (biased.astype(np.float64) - code.bias) / (1 - code.bias)


def code_dtype(bits: int) -> Any:
    """The dtype of codes."""
    return jnp.dtype(jnp.uint8 if bits == 8 else jnp.int4)


def _chance(y: jax.Array, place: jax.Array, step: jax.Array, bits: int) -> jax.Array:
    """Return pseudo-random bits for every element, a hash of its digits, its index and the step.

    The last digits of an average are nearly random and free to use. The hash includes the step
    number because a number with the same code has the same digits in every step.
    """
    word = jax.lax.bitcast_convert_type(y, jnp.uint32)
    # 2^32 over the golden ratio (Knuth's multiplicative hash), and the fourth prime of xxHash32.
    word = word ^ (place * jnp.uint32(0x9E3779B9)) ^ (step * jnp.uint32(0x27D4EB2F))
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)  # as MurmurHash3 mixes
    return (word >> (32 - bits)).astype(jnp.int32)


def round_to_codes(y: jax.Array, place: jax.Array, code: Code, step: jax.Array) -> jax.Array:
    """Round float32 numbers in units of `1 / (1 - bias)` stochastically to codes.

    The probability of a code decreases with its distance, so that rounding is unbiased. With
    rounding to nearest, a mean square would never change if its relative change per step is a
    thousandth. `place` is the position of every number in its block.
    """
    size = jnp.abs(y) if code.signed else y
    bits = jax.lax.bitcast_convert_type(size + code.bias, jnp.int32) - code.bias_bits
    found = (bits + _chance(y, place, step, code.dropped_bits)) >> code.dropped_bits
    # Random rounding of a number near 1 must not exceed the code of 1.
    found = jnp.minimum(found, jnp.full_like(found, code.largest))
    if code.signed:
        found = found | jnp.where(y < 0, jnp.full_like(found, code.sign), jnp.zeros_like(found))
    else:  # Only a zero mean square may be rounded to zero, because the step divides by its root.
        found = jnp.maximum(found, (y > 0).astype(jnp.int32))
    return found.astype(code_dtype(code.bits))


def decode_numbers(codes: jax.Array, code: Code) -> jax.Array:
    """Decode codes to float32 numbers in units of `1 / (1 - bias)`."""
    found = codes.astype(jnp.int32)
    if code.bits == 4:  # checkpoints of TensorStore know int4 and not uint4
        found = found & 15
    size = (found & (code.sign - 1)) if code.signed else found
    bits = (size << code.dropped_bits) + code.bias_bits
    number = jax.lax.bitcast_convert_type(bits, jnp.float32) - code.bias
    return jnp.where(found >= code.sign, -number, number) if code.signed else number


def _divisor(n: int, most: int) -> int | None:
    """Largest divisor of `n` between half of `most` and `most`, preferably a multiple of 8.

    Vectors of 8 numbers then don't cross the ends of blocks. On a CPU, XLA takes three times as
    long for blocks of 250 as for blocks of 200.
    """
    divisors = [k for k in range(most, (most - 1) // 2, -1) if n % k == 0]
    best = [k for k in divisors if k == most or k % 8 == 0] or divisors
    return best[0] if best else None


def block_length(shape: tuple[int, ...], block_size: int) -> int:
    """Number of elements per scale: `block_size`, or a divisor of the array's size.

    A last axis of less than two blocks is one block, because LLVM doesn't vectorize a loop over two
    blocks.
    """
    if len(shape) > 1 and block_size < shape[-1] < 2 * block_size:
        return shape[-1]
    last = _divisor(shape[-1], block_size) if shape else None
    return last or _divisor(math.prod(shape), block_size) or block_size


def _as_blocks(x: jax.Array, block_size: int) -> jax.Array:
    """Reshape an array to blocks of at most `block_size` elements along the last axis.

    If the last axis can be divided, leading axes are unchanged, because they may be sharded over
    devices. Only an array whose size has no suitable divisor is padded, which takes a copy.
    """
    length = block_length(x.shape, block_size)
    if x.ndim and x.shape[-1] == length:
        return x
    if x.ndim and x.shape[-1] % length == 0:
        return reshape(x, *x.shape[:-1], x.shape[-1] // length, length)
    flat = reshape(x, -1)
    return jnp.pad(flat, (0, -x.size % length)).reshape(-1, length)


@functools.partial(jax.jit, static_argnums=1)
def block_scales(x: jax.Array, block_size: int) -> jax.Array:
    """The largest magnitude in every block; infinite or NaN if any element of the block is."""
    sizes = jnp.abs(_as_blocks(x, block_size))
    # A state begins as zeros. XLA would fold their maxima, number by number: 9 s for a million.
    zero = jax.lax.optimization_barrier(jnp.zeros((), sizes.dtype))
    if jax.default_backend() != "cpu":
        return jax.lax.reduce(sizes, zero, jax.lax.max, (sizes.ndim - 1,))
    # Nonnegative floats are ordered like their bits, with infinity and NaN last. XLA on a CPU calls
    # a library for a maximum of floats, and splits a long maximum of integers; both store their
    # operand. Two maxima of integers in one reduction are fused with their operands.
    integer = {32: jnp.int32, 64: jnp.int64}[jnp.finfo(sizes.dtype).bits]
    bits, zero = (jax.lax.bitcast_convert_type(part, integer) for part in (sizes, zero))
    half = bits.shape[-1] // 2
    halves = bits[..., : bits.shape[-1] - half], bits[..., half:]
    larger = lambda a, b: tuple(map(jnp.maximum, a, b))  # noqa: E731
    pair = jax.lax.reduce(halves, (zero, zero), larger, (bits.ndim - 1,))
    return jax.lax.bitcast_convert_type(jnp.maximum(*pair), sizes.dtype)


def _over_blocks(x: jax.Array, shape: tuple[int, ...], block_size: int) -> jax.Array:
    """Broadcast numbers `[..., blocks, block or 1]` of blocks to an array of a given shape."""
    length = block_length(shape, block_size)
    blocks, size = jnp.broadcast_to(x, (*x.shape[:-1], length)), math.prod(shape)
    if blocks.size == size:
        return reshape(blocks, *shape)
    return blocks.reshape(-1)[:size].reshape(shape)


@functools.partial(jax.jit, static_argnums=(2, 3))
def encode_with(
    x: jax.Array, scales: jax.Array, code: Code, block_size: int, count: jax.Array
) -> jax.Array:
    """Encode an array for given scales of its blocks; `count` is the step number.

    A block that contains an infinity or NaN has this value as its scale, so that its decoded
    numbers are infinite or NaN.
    """
    # The reciprocal of a subnormal scale may be infinite.
    usable = (scales >= jnp.finfo(scales.dtype).tiny) & jnp.isfinite(scales)
    unit = jnp.where(usable, (1 - code.bias) / scales, jnp.zeros_like(scales))
    length = block_length(x.shape, block_size)
    place = jax.lax.broadcasted_iota(jnp.uint32, (*scales.shape, length), scales.ndim)
    unit, place = (_over_blocks(part, x.shape, block_size) for part in (unit[..., None], place))
    # XLA on a CPU stores numbers that are both summed up and coded, unless a reshape is in between.
    # XLA for a GPU stores large arrays if there is a reshape.
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:
        x, unit, place = (jnp.expand_dims(part, 0) for part in (x, unit, place))
    codes = round_to_codes((x * unit).astype(jnp.float32), place, code, count.astype(jnp.uint32))
    return jnp.squeeze(codes, 0) if on_cpu else codes


def encode(
    x: jax.Array, code: Code, block_size: int, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Encode an array as codes of its shape, and a scale for every block."""
    scales = block_scales(x, block_size)
    return encode_with(x, scales, code, block_size, count), scales


@functools.partial(jax.jit, static_argnums=(2, 3))
def decode(codes: jax.Array, scales: jax.Array, code: Code, block_size: int) -> jax.Array:
    """Decode codes and scales to numbers in the dtype of the scales."""
    unit = _over_blocks((scales * (1 / (1 - code.bias)))[..., None], codes.shape, block_size)
    return decode_numbers(codes, code).astype(scales.dtype) * unit


def encode_part(
    x: jax.Array,
    shape: tuple[int, ...],
    code: Code,
    block_size: int,
    count: jax.Array,
    scales_of: Callable[[jax.Array, int], jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Encode a part as codes of its shape, and the scales of its blocks, `[..., blocks]`.

    Args:
        x: A slot's part, or the concatenated parts of all devices, `[..., length]`.
        shape: The shape of the whole leaf.
        code: As in `encode`.
        block_size: As in `encode`.
        count: As in `encode`.
        scales_of: A function from an array and `block_size` to the scales of its blocks.
    """
    blocks = _blocks(x, shape, block_size)
    scales = scales_of(blocks, block_size)
    codes = encode_with(blocks, scales, code, block_size, count)
    codes = _without_blocks(codes, shape)
    if shard_axes():
        return codes.reshape(x.shape), scales.reshape(*x.shape[:-1], -1)
    leaves = _leaves()
    return leaves.kept(codes), leaves.kept(scales)


def decode_part(
    codes: jax.Array,
    scales: jax.Array,
    shape: tuple[int, ...],
    code: Code,
    block_size: int,
) -> jax.Array:
    """Decode a part's codes and scales to numbers."""
    blocks = _blocks(codes, shape, block_size)
    numbers = decode(blocks, scales.reshape(blocks.shape[:-1]), code, block_size)
    return _without_blocks(numbers, shape).reshape(codes.shape)


def _blocks(x: jax.Array, shape: tuple[int, ...], block_size: int) -> jax.Array:
    """Reshape to `[..., parts, blocks, block]`; the last block of a part is padded with zeros."""
    # On an explicit mesh, JAX can't split a sharded axis.
    parts = replicate(x).reshape(*x.shape[:-1], -1, _length(shape))
    block = block_length((*_memory(x, shape), *shape), block_size)
    fill = [(0, 0)] * (parts.ndim - 1) + [(0, -parts.shape[-1] % block)]
    return jnp.pad(parts, fill).reshape(*parts.shape[:-1], -1, block)


def _without_blocks(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`[..., parts, length]`."""
    return x.reshape(*x.shape[:-2], -1)[..., : _length(shape)]


def _length(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // _leaves().count)


def _leaves() -> UnshardedLeaves:
    known = unsharded_leaves()
    assert known is not None
    return known


def _memory(x: jax.Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The leading axes of a slot with several arrays of the leaf's shape."""
    return x.shape[: x.ndim - max(len(shape), 1)]


def unsharded_size(x: jax.Array, shape: tuple[int, ...]) -> int:
    """Number of elements of the whole slot."""
    return math.prod((*_memory(x, shape), *shape))
