"""Shards of leaves, and their exchange in one collective per dtype, also as 8-bit codes.

A leaf is flattened, padded with zeros and split into N equal shards. A shard has as many axes as
the leaf, all of length 1 except the last. Thus masks can select leaves by their number of axes.
A collective sends the shards of all leaves of a dtype as one array, `[N, sum of shard lengths]`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.numerics import compute_dtype, real_dtype
from fnopt.sharding import UnshardedLeaves, all_gather
from fnopt.transforms import SIGNED, decode, encode


def split_in_shards(x: Any, n: int) -> jax.Array:
    """Split a leaf into `n` equal shards, `[n, ceil(size / n)]`, padded with zeros."""
    # Elements are split and not an axis, because the lengths of axes may not be divisible by N.
    x = jnp.ravel(x)
    length = -(-x.size // n)
    return jnp.pad(x, (0, n * length - x.size)).reshape(n, length)


def row_shape(x: Any, length: int) -> tuple[int, ...]:
    """Shape of a shard: all axes of the leaf `x` (at least one) have length 1, except the last."""
    return (1,) * (jnp.ndim(x) - 1) + (length,)


def concatenate_shards(x: Any, n: int) -> jax.Array:
    """Concatenate the shards of a leaf, including the padding, along the last axis."""
    parts = split_in_shards(x, n)
    return parts.reshape(row_shape(x, parts.size))


def join_shards(parts: Any, shape: tuple[int, ...]) -> jax.Array:
    """Join shards to a leaf of the given shape, without the padding."""
    return jnp.ravel(parts)[: math.prod(shape)].reshape(shape)


def local_shards(tree: Any, axes: tuple[str, ...], n: int) -> Any:
    """This device's shard of every leaf of a replicated tree."""
    index = jax.lax.axis_index(axes)

    def local_shard(x: Any) -> jax.Array:
        part = jax.lax.dynamic_index_in_dim(split_in_shards(x, n), index, keepdims=False)
        return part.reshape(row_shape(x, part.size))

    return jax.tree.map(local_shard, tree)


def local_unsharded_leaves(
    shapes: dict[str, tuple[int, ...]], axes: tuple[str, ...]
) -> UnshardedLeaves:
    """Describe leaves whose shards are on the devices of the named axes."""
    return UnshardedLeaves(
        shapes,
        jax.lax.psum(1, axes),
        lambda parts: jax.lax.dynamic_index_in_dim(
            parts, jax.lax.axis_index(axes), axis=-2, keepdims=False
        ),
    )


def reduce_scatter(tree: Any, axes: tuple[str, ...], n: int) -> Any:
    """Sum leaves over devices and return this device's shards, by one reduce-scatter per dtype."""
    leaves, treedef = jax.tree.flatten(tree)
    send = functools.partial(jax.lax.psum_scatter, axis_name=axes, scatter_dimension=0)
    received = _send_packed(send, [split_in_shards(x, n) for x in leaves])
    parts = [
        part.reshape(row_shape(x, part.size)) for part, x in zip(received, leaves, strict=True)
    ]
    return treedef.unflatten(parts)


def all_gather_shards(parts: Any, like: Any, axes: tuple[str, ...]) -> Any:
    """Gather all shards into leaves with the shapes of `like`, by one all-gather per dtype."""
    flat = [jnp.ravel(x) for x in jax.tree.leaves(parts)]
    received = _send_packed(lambda packed: all_gather(packed, axes), flat)
    shapes, treedef = jax.tree.flatten(like)
    leaves = [join_shards(x, jnp.shape(p)) for x, p in zip(received, shapes, strict=True)]
    return treedef.unflatten(leaves)


def _send_packed(
    send: Callable[[jax.Array], jax.Array], blocks: list[jax.Array]
) -> list[jax.Array]:
    """Send blocks, concatenated along their last axis, in one call per dtype."""
    # Every collective adds latency, so there is one per dtype and not one per leaf.
    received: dict[int, jax.Array] = {}
    for dtype in dict.fromkeys(x.dtype for x in blocks):
        indices = [i for i, x in enumerate(blocks) if x.dtype == dtype and x.size]
        if not indices:
            continue
        packed = send(jnp.concatenate([blocks[i] for i in indices], axis=-1))
        ends = [sum(blocks[j].shape[-1] for j in indices[: k + 1]) for k in range(len(indices))]
        pieces = jnp.split(packed, ends[:-1], axis=-1)
        received |= dict(zip(indices, pieces, strict=True))
    return [received.get(i, jnp.zeros((0,), x.dtype)) for i, x in enumerate(blocks)]


def compressed_sum(
    tree: Any, error: Any, axes: tuple[str, ...], block_size: int, count: jax.Array
) -> tuple[Any, Any]:
    r"""Sum the trees of all devices, and keep this device's rounding error for the next sum.

    .. math:: q_k = Q(x_k + e_k), \quad s = Q\Bigl(\sum_k q_k\Bigr), \quad
              e_k' = x_k + e_k - q_k + \Bigl[\sum_j q_j - s\Bigr]_{\text{part } k}

    Every device sums its part (an all-to-all of codes) and sends the sum to all devices (an
    all-gather). This sends two bytes per number, whereas an all-reduce of float32 sends eight. The
    device that sums a part stores the second rounding error, so that no rounding error is lost.

    Args:
        tree: This device's floating arrays.
        error: :math:`e_k`, a tree like `tree`.
        axes: The named axes of the devices.
        block_size: Number of elements that share a scale.
        count: The index of this sum, the seed of the stochastic rounding.
    """
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.add, tree, error))
    if not sum(x.size for x in leaves):
        return tree, error
    n = jax.lax.psum(1, axes)
    # A reduce-scatter and an all-gather of codes. The rounding errors of both are added to the next
    # message (error feedback, Karimireddy et al., 2019, arXiv:1901.09847).
    packed, block = _pack(leaves, n, block_size)
    codes, decoded = _encode_rows(packed, block, count)
    received = jax.lax.all_to_all(codes, axes, 0, 0)
    part = jnp.sum(_decode_rows(received, packed.shape[1], block, packed.dtype), 0)
    sum_codes, decoded_sum = _encode_rows(part[None], block, count)
    gathered = jax.lax.all_gather(sum_codes[0], axes)
    total = _decode_rows(gathered, packed.shape[1], block, packed.dtype)
    new_error = (packed - decoded).at[jax.lax.axis_index(axes)].add(part - decoded_sum[0])
    return treedef.unflatten(_unpack(total, leaves)), treedef.unflatten(_unpack(new_error, leaves))


def as_pairs(x: jax.Array) -> jax.Array:
    """Convert complex numbers to pairs of real numbers, along a new last axis."""
    return jnp.stack([x.real, x.imag], axis=-1) if jnp.iscomplexobj(x) else x


def from_pairs(x: jax.Array, dtype: Any) -> jax.Array:
    """Invert `as_pairs`, and cast the result to `dtype`."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        x = jax.lax.complex(x[..., 0], x[..., 1])
    return x.astype(dtype)


def _pack(leaves: list[jax.Array], n: int, block_size: int) -> tuple[jax.Array, int]:
    """Pack leaves in `n` rows of whole blocks; return the rows and the block length."""
    dtype = real_dtype(compute_dtype(*(x.dtype for x in leaves)))
    packed = jnp.concatenate(
        [split_in_shards(as_pairs(x).astype(dtype), n) for x in leaves], axis=1
    )
    # A row is the message to one device, so blocks don't extend over several rows.
    block = min(block_size, packed.shape[1])
    return jnp.pad(packed, ((0, 0), (0, -packed.shape[1] % block))), block


def _unpack(packed: jax.Array, leaves: list[jax.Array]) -> list[jax.Array]:
    unpacked, start = [], 0
    for x in leaves:
        like = jax.eval_shape(as_pairs, x)
        length = -(-like.size // packed.shape[0])
        part = join_shards(packed[:, start : start + length], like.shape)
        unpacked.append(from_pairs(part, x.dtype))
        start += length
    return unpacked


def _encode_rows(x: jax.Array, block: int, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Encode rows as bytes (codes, then scales); return the bytes and the decoded values."""
    codes, scales = encode(x, SIGNED, block, count)
    scale_bytes = jax.lax.bitcast_convert_type(scales, jnp.uint8).reshape(x.shape[0], -1)
    decoded = decode(codes, scales, SIGNED, block)
    return jnp.concatenate([codes, scale_bytes], axis=1), decoded


def _decode_rows(message: jax.Array, length: int, block: int, dtype: Any) -> jax.Array:
    """Decode messages of `_encode_rows` to rows of the given length."""
    codes, scale_bytes = message[:, :length], message[:, length:]
    blocks = () if length == block else (length // block,)
    scale_bytes = scale_bytes.reshape(len(message), *blocks, dtype.itemsize)
    return decode(codes, jax.lax.bitcast_convert_type(scale_bytes, dtype), SIGNED, block)
