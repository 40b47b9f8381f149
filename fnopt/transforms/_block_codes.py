"""Block-wise quantization of float arrays to 8-bit or 4-bit codes, including shards of a leaf.

A magnitude is divided by the largest magnitude of its block, and a bias is added. The code consists
of the leading bits of this float. Therefore encoding and decoding need only an addition and a
shift. Codes of magnitudes below the bias are spaced evenly, codes of larger magnitudes
logarithmically, as in the mu-law of ITU-T G.711.

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
    """Format of a code: the numbers of its sign, octave and mantissa bits.

    Attributes:
        bits: The number of bits of a code.
        signed: Whether one of the bits is the sign.
        octaves: The number of octaves from the bias to the largest magnitude, which is 1.
        digits: The number of mantissa bits, which subdivide an octave.
    """

    bits: int
    signed: bool
    octaves: int
    digits: int

    @property
    def bias(self) -> float:
        """The number that is added to magnitudes; code 0 represents the bias, that is, zero."""
        return 2.0**-self.octaves

    @property
    def bias_bits(self) -> int:
        """The bits of the bias as a float32."""
        return int(np.float32(self.bias).view(np.int32))

    @property
    def dropped_bits(self) -> int:
        """The number of low bits of a float32 that its code omits."""
        return int(np.finfo(np.float32).nmant) - self.digits

    @property
    def largest(self) -> int:
        """The largest code without a sign, which represents 1."""
        return self.octaves << self.digits

    @property
    def sign(self) -> int:
        """The sign bit, which is set in the codes of negative numbers."""
        return 1 << (self.bits - 1)


# The octaves are numbered by 4 bits (15 octaves) or 3 bits (7 octaves); the remaining bits are the
# sign and the digits.
SIGNED, UNSIGNED = Code(8, True, 15, 3), Code(8, False, 15, 4)
CODES = {
    ("signed", 8): SIGNED,
    ("unsigned", 8): UNSIGNED,
    ("signed", 4): Code(4, True, 7, 0),
    ("unsigned", 4): Code(4, False, 7, 1),
}


@functools.cache
def magnitudes(code: Code) -> np.ndarray:
    """Magnitudes of all codes in ascending order, from 0 to 1."""
    codes = np.arange(code.largest + 1, dtype=np.int32)
    biased = (code.bias_bits + (codes << code.dropped_bits)).view(np.float32)
    # Small codes suffer from cancellation, so the difference is computed in float64.
    return (biased.astype(np.float64) - code.bias) / (1 - code.bias)


def code_dtype(bits: int) -> Any:
    """Dtype of codes with 8 or 4 bits."""
    return jnp.dtype(jnp.uint8 if bits == 8 else jnp.int4)


def _random_bits(y: jax.Array, position: jax.Array, step: jax.Array, bits: int) -> jax.Array:
    """Compute pseudo-random bits for every element: a hash of its bits, its index and the step.

    The last digits of an average are nearly random, and a hash needs no random generator. The hash
    includes the step number, because a number with the same code has the same bits in every step.
    """
    word = jax.lax.bitcast_convert_type(y, jnp.uint32)
    # 2^32 over the golden ratio (Knuth's multiplicative hash), and the fourth prime of xxHash32.
    word = word ^ (position * jnp.uint32(0x9E3779B9)) ^ (step * jnp.uint32(0x27D4EB2F))
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)  # a mixing step of MurmurHash3
    return (word >> (32 - bits)).astype(jnp.int32)


def round_to_codes(y: jax.Array, position: jax.Array, code: Code, step: jax.Array) -> jax.Array:
    """Round float32 numbers in units of `1 / (1 - bias)` stochastically to codes.

    Rounding is unbiased: the nearer of the two neighboring codes is more probable. With rounding to
    nearest, a mean square would never change if its relative change per step is a thousandth.
    `position` is the position of every number in its block.
    """
    size = jnp.abs(y) if code.signed else y
    bits = jax.lax.bitcast_convert_type(size + code.bias, jnp.int32) - code.bias_bits
    random_bits = _random_bits(y, position, step, code.dropped_bits)
    # Random low bits, added before truncation, carry into the code with the right probability.
    codes = (bits + random_bits) >> code.dropped_bits
    # Random rounding of a number near 1 must not exceed the code of 1.
    codes = jnp.minimum(codes, jnp.full_like(codes, code.largest))
    if code.signed:
        codes = codes | jnp.where(y < 0, jnp.full_like(codes, code.sign), jnp.zeros_like(codes))
    else:
        # Only a zero mean square may be rounded to zero, because the step divides by its root.
        codes = jnp.maximum(codes, (y > 0).astype(jnp.int32))
    return codes.astype(code_dtype(code.bits))


def decode_numbers(codes: jax.Array, code: Code) -> jax.Array:
    """Decode codes to float32 numbers in units of `1 / (1 - bias)`."""
    codes = codes.astype(jnp.int32)
    if code.bits == 4:  # the dtype is int4, because TensorStore can't save uint4
        codes = codes & 15
    size = (codes & (code.sign - 1)) if code.signed else codes
    bits = (size << code.dropped_bits) + code.bias_bits
    number = jax.lax.bitcast_convert_type(bits, jnp.float32) - code.bias
    return jnp.where(codes >= code.sign, -number, number) if code.signed else number


def _divisor(n: int, limit: int) -> int | None:
    """Largest divisor of `n` between half of `limit` and `limit`, preferably a multiple of 8.

    With a multiple of 8, vectors of 8 numbers don't cross the ends of blocks. On a CPU, XLA takes
    three times as long for blocks of 250 as for blocks of 200.
    """
    divisors = [k for k in range(limit, (limit - 1) // 2, -1) if n % k == 0]
    candidates = [k for k in divisors if k == limit or k % 8 == 0] or divisors
    return candidates[0] if candidates else None


def block_length(shape: tuple[int, ...], block_size: int) -> int:
    """Number of elements per scale: `block_size`, or a divisor of the array's size.

    A last axis of less than two blocks is one block, because LLVM doesn't vectorize a loop over two
    blocks.
    """
    if len(shape) > 1 and block_size < shape[-1] < 2 * block_size:
        return shape[-1]
    axis_divisor = _divisor(shape[-1], block_size) if shape else None
    return axis_divisor or _divisor(math.prod(shape), block_size) or block_size


def _as_blocks(x: jax.Array, block_size: int) -> jax.Array:
    """Reshape an array to blocks of at most `block_size` elements along the last axis.

    If the last axis can be divided, leading axes are unchanged, because leading axes may be sharded
    over devices. Only an array whose size has no suitable divisor is padded, which needs a copy.
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
    """Largest magnitude in every block; infinite or NaN if any element of the block is."""
    sizes = jnp.abs(_as_blocks(x, block_size))
    # Without the barrier, XLA would compute the maxima of an initial state of zeros when it
    # compiles, which takes 9 s for a million numbers.
    zero = jax.lax.optimization_barrier(jnp.zeros((), sizes.dtype))
    if jax.default_backend() != "cpu":
        return jax.lax.reduce(sizes, zero, jax.lax.max, (sizes.ndim - 1,))
    # Nonnegative floats are ordered like their bits, with infinity and NaN last. On a CPU, XLA
    # calls a library for a maximum of floats, and splits a long maximum of integers; both store
    # their operand in memory. Two maxima of integers in one reduction are fused with the operands.
    integer = {32: jnp.int32, 64: jnp.int64}[jnp.finfo(sizes.dtype).bits]
    bits, zero = (jax.lax.bitcast_convert_type(part, integer) for part in (sizes, zero))
    half = bits.shape[-1] // 2
    halves = bits[..., : bits.shape[-1] - half], bits[..., half:]
    maxima = lambda a, b: tuple(map(jnp.maximum, a, b))  # noqa: E731
    pair = jax.lax.reduce(halves, (zero, zero), maxima, (bits.ndim - 1,))
    return jax.lax.bitcast_convert_type(jnp.maximum(*pair), sizes.dtype)


def _broadcast_blocks(x: jax.Array, shape: tuple[int, ...], block_size: int) -> jax.Array:
    """Broadcast `[..., blocks, block or 1]` to elements of blocks, and reshape to `shape`."""
    length = block_length(shape, block_size)
    blocks, size = jnp.broadcast_to(x, (*x.shape[:-1], length)), math.prod(shape)
    if blocks.size == size:
        return reshape(blocks, *shape)
    return blocks.reshape(-1)[:size].reshape(shape)


@functools.partial(jax.jit, static_argnums=(2, 3))
def encode_with(
    x: jax.Array, scales: jax.Array, code: Code, block_size: int, count: jax.Array
) -> jax.Array:
    """Encode an array with the scales of its blocks; `count` is the step number.

    A block that contains an infinity or NaN has this value as its scale, so that its decoded
    numbers are infinite or NaN.
    """
    # The reciprocal of a subnormal scale may be infinite.
    is_normal = (scales >= jnp.finfo(scales.dtype).tiny) & jnp.isfinite(scales)
    factor = jnp.where(is_normal, (1 - code.bias) / scales, jnp.zeros_like(scales))
    length = block_length(x.shape, block_size)
    position = jax.lax.broadcasted_iota(jnp.uint32, (*scales.shape, length), scales.ndim)
    factor = _broadcast_blocks(factor[..., None], x.shape, block_size)
    position = _broadcast_blocks(position, x.shape, block_size)
    # On a CPU, XLA stores numbers that are both summed and encoded, unless a reshape is in between.
    # On a GPU, XLA stores large arrays if there is a reshape.
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:
        x, factor, position = (jnp.expand_dims(part, 0) for part in (x, factor, position))
    y = (x * factor).astype(jnp.float32)
    codes = round_to_codes(y, position, code, count.astype(jnp.uint32))
    return jnp.squeeze(codes, 0) if on_cpu else codes


def encode(
    x: jax.Array, code: Code, block_size: int, count: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Encode an array as codes of the same shape, and compute the scale of every block."""
    scales = block_scales(x, block_size)
    return encode_with(x, scales, code, block_size, count), scales


@functools.partial(jax.jit, static_argnums=(2, 3))
def decode(codes: jax.Array, scales: jax.Array, code: Code, block_size: int) -> jax.Array:
    """Decode codes and scales to numbers in the dtype of the scales."""
    factor = _broadcast_blocks((scales * (1 / (1 - code.bias)))[..., None], codes.shape, block_size)
    return decode_numbers(codes, code).astype(scales.dtype) * factor


def encode_part(
    x: jax.Array,
    shape: tuple[int, ...],
    code: Code,
    block_size: int,
    count: jax.Array,
    scales_of: Callable[[jax.Array, int], jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Encode a part of a slot as codes of the same shape and scales of blocks, `[..., blocks]`.

    Args:
        x: The part of a slot on a device, or the concatenated parts of all devices, of shape
            `[..., length]`.
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
    leaves = _sharded_leaves()
    return leaves.kept(codes), leaves.kept(scales)


def decode_part(
    codes: jax.Array,
    scales: jax.Array,
    shape: tuple[int, ...],
    code: Code,
    block_size: int,
) -> jax.Array:
    """Decode the codes and scales of a part of a slot; the inverse of `encode_part`."""
    blocks = _blocks(codes, shape, block_size)
    numbers = decode(blocks, scales.reshape(blocks.shape[:-1]), code, block_size)
    return _without_blocks(numbers, shape).reshape(codes.shape)


def _blocks(x: jax.Array, shape: tuple[int, ...], block_size: int) -> jax.Array:
    """Reshape to `[..., parts, blocks, block]`; the last block of a part is padded with zeros."""
    # Replicated first, because JAX can't split a sharded axis on an explicit mesh.
    parts = replicate(x).reshape(*x.shape[:-1], -1, _part_length(shape))
    block = block_length((*_leading_axes(x, shape), *shape), block_size)
    fill = [(0, 0)] * (parts.ndim - 1) + [(0, -parts.shape[-1] % block)]
    return jnp.pad(parts, fill).reshape(*parts.shape[:-1], -1, block)


def _without_blocks(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Join blocks and remove the padding, to `[..., parts, length]`."""
    return x.reshape(*x.shape[:-2], -1)[..., : _part_length(shape)]


def _part_length(shape: tuple[int, ...]) -> int:
    """Number of elements of a leaf in the part of a device, rounded up."""
    return -(-math.prod(shape) // _sharded_leaves().count)


def _sharded_leaves() -> UnshardedLeaves:
    leaves = unsharded_leaves()
    assert leaves is not None
    return leaves


def _leading_axes(x: jax.Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of the leading axes of a slot that stacks several arrays of the leaf's shape."""
    return x.shape[: x.ndim - max(len(shape), 1)]


def unsharded_size(x: jax.Array, shape: tuple[int, ...]) -> int:
    """Number of elements of the whole slot of a leaf of this shape."""
    return math.prod((*_leading_axes(x, shape), *shape))
