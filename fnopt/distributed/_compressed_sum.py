"""Sums over devices as 8-bit codes, with error feedback."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import compute_dtype, real_dtype
from fnopt.distributed._packing import join_shards, split_in_shards
from fnopt.transforms import decode, encode


def compressed_sum(
    tree: Any, owed: Any, axes: tuple[str, ...], block_size: int, count: jax.Array
) -> tuple[Any, Any]:
    r"""Sum the trees of all devices, and keep this device's rounding error for the next sum.

    .. math:: q_k = Q(x_k + e_k), \quad s = Q\Bigl(\sum_k q_k\Bigr), \quad
              e_k' = x_k + e_k - q_k + \Bigl[\sum_j q_j - s\Bigr]_{\text{part } k}

    Every device sums its part of all (an all-to-all of codes), and sends it to all (an
    all-gather): two bytes a number, where an all-reduce of float32 takes eight. The second rounding
    is owed by the device that did it, so that all sums together are right.

    Args:
        tree: This device's floating arrays.
        owed: :math:`e_k`, a tree like it.
        axes: The named axes of the devices.
        block_size: How many numbers share a scale.
        count: The number of this sum: rounding is at random.
    """
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.add, tree, owed))
    if not sum(x.size for x in leaves):
        return tree, owed
    n = jax.lax.psum(1, axes)
    packed, block = _pack(leaves, n, block_size)
    codes, sent = _encode_rows(packed, block, count)
    received = jax.lax.all_to_all(codes, axes, 0, 0)
    part = jnp.sum(_decode_rows(received, packed.shape[1], block, packed.dtype), 0)
    back, decoded = _encode_rows(part[None], block, count)
    everything = jax.lax.all_gather(back[0], axes)
    total = _decode_rows(everything, packed.shape[1], block, packed.dtype)
    rest = (packed - sent).at[jax.lax.axis_index(axes)].add(part - decoded[0])
    return treedef.unflatten(_unpack(total, leaves)), treedef.unflatten(_unpack(rest, leaves))


def as_pairs(x: jax.Array) -> jax.Array:
    """Complex numbers as pairs of real ones, along a last axis."""
    return jnp.stack([x.real, x.imag], axis=-1) if jnp.iscomplexobj(x) else x


def from_pairs(x: jax.Array, dtype: Any) -> jax.Array:
    """The inverse of `as_pairs`, in this dtype."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        x = jax.lax.complex(x[..., 0], x[..., 1])
    return x.astype(dtype)


def _pack(leaves: list[jax.Array], n: int, block_size: int) -> tuple[jax.Array, int]:
    """Pack leaves as `n` rows of whole blocks; returns the rows and the length of a block."""
    dtype = real_dtype(compute_dtype(*(x.dtype for x in leaves)))
    packed = jnp.concatenate(
        [split_in_shards(as_pairs(x).astype(dtype), n) for x in leaves], axis=1
    )
    block = min(block_size, packed.shape[1])
    return jnp.pad(packed, ((0, 0), (0, -packed.shape[1] % block))), block


def _unpack(packed: jax.Array, leaves: list[jax.Array]) -> list[jax.Array]:
    found, start = [], 0
    for x in leaves:
        like = jax.eval_shape(as_pairs, x)
        length = -(-like.size // packed.shape[0])
        part = join_shards(packed[:, start : start + length], like.shape)
        found.append(from_pairs(part, x.dtype))
        start += length
    return found


def _encode_rows(x: jax.Array, block: int, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Encode rows as bytes, codes and then scales; returns the bytes and their decoded values."""
    codes, scales = encode(x, True, block, count)
    as_bytes = jax.lax.bitcast_convert_type(scales, jnp.uint8).reshape(x.shape[0], -1)
    sent = decode(codes, scales, True, block)
    return jnp.concatenate([codes, as_bytes], axis=1), sent


def _decode_rows(message: jax.Array, length: int, block: int, dtype: Any) -> jax.Array:
    """Decode messages of rows of this length."""
    codes, as_bytes = message[:, :length], message[:, length:]
    blocks = () if length == block else (length // block,)
    as_bytes = as_bytes.reshape(len(message), *blocks, dtype.itemsize)
    return decode(codes, jax.lax.bitcast_convert_type(as_bytes, dtype), True, block)
