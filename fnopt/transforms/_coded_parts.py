"""8-bit codes of sharded leaves, in the blocks of the whole leaf.

A part is a stretch of the leaf's numbers. Where it holds whole blocks of the leaf, its codes are
those of the leaf in every bit; elsewhere blocks begin where the part does, and the last is short.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fnopt.sharding import UnshardedLeaves, replicate, shard_axes, unsharded_leaves
from fnopt.transforms._block_codes import block_length, decode, encode_with


def encode_part(
    x: jax.Array,
    shape: tuple[int, ...],
    signed: bool,
    block_size: int,
    count: jax.Array,
    scales_of: Callable[[jax.Array, int], jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Codes of the part's shape and the scales of its blocks, `[..., blocks]`.

    Args:
        x: A slot's part, or the parts of all devices in a row, `[..., length]`.
        shape: The shape of the whole leaf.
        signed: As in `encode`.
        block_size: As in `encode`.
        count: As in `encode`.
        scales_of: From an array and `block_size` to the scales of its blocks.
    """
    blocks = _blocks(x, shape, block_size)
    scales = scales_of(blocks, block_size)
    codes = encode_with(blocks, scales, signed, block_size, count)
    codes = _without_blocks(codes, shape)
    if shard_axes():
        return codes.reshape(x.shape), scales.reshape(*x.shape[:-1], -1)
    leaves = _leaves()
    return leaves.kept(codes), leaves.kept(scales)


def decode_part(
    codes: jax.Array,
    scales: jax.Array,
    shape: tuple[int, ...],
    signed: bool,
    block_size: int,
) -> jax.Array:
    """The numbers that a part's codes and scales stand for."""
    blocks = _blocks(codes, shape, block_size)
    numbers = decode(blocks, scales.reshape(blocks.shape[:-1]), signed, block_size)
    return _without_blocks(numbers, shape).reshape(codes.shape)


def _blocks(x: jax.Array, shape: tuple[int, ...], block_size: int) -> jax.Array:
    """`[..., parts, blocks, block]`, zeros where the last block of a part is filled up."""
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
    """The leading axes of a slot that keeps several arrays of the leaf's shape."""
    return x.shape[: x.ndim - max(len(shape), 1)]


def size_of_whole(x: jax.Array, shape: tuple[int, ...]) -> int:
    """Number of elements of the whole slot."""
    return math.prod((*_memory(x, shape), *shape))
