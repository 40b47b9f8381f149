"""Shards of leaves, and their exchange in one collective per dtype, also as 8-bit codes.

A leaf is flattened, padded with zeros and split into N equal shards. A shard has as many axes as
the leaf, all of length 1 except the last, so masks that select matrices or vectors work. A
collective sends the shards of all leaves of a dtype as one array, `[N, sum of their lengths]`.
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
    # Split elements and not an axis, because a leaf of any shape then has N equal parts.
    x = jnp.ravel(x)
    length = -(-x.size // n)
    return jnp.pad(x, (0, n * length - x.size)).reshape(n, length)


def row_shape(x: Any, length: int) -> tuple[int, ...]:
    """Shape of a flat array with as many axes as the leaf `x`, at least one."""
    return (1,) * (jnp.ndim(x) - 1) + (length,)


def shards_in_a_row(x: Any, n: int) -> jax.Array:
    """Concatenated shards of a leaf."""
    parts = split_in_shards(x, n)
    return parts.reshape(row_shape(x, parts.size))


def join_shards(parts: Any, shape: tuple[int, ...]) -> jax.Array:
    """Join shards to a leaf of this shape."""
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
    """Description of leaves whose shards are on the devices of these axes."""
    return UnshardedLeaves(
        shapes,
        jax.lax.psum(1, axes),
        lambda parts: jax.lax.dynamic_index_in_dim(
            parts, jax.lax.axis_index(axes), axis=-2, keepdims=False
        ),
    )


def reduce_scatter(tree: Any, axes: tuple[str, ...], n: int) -> Any:
    """This device's shard of every leaf's sum over devices: one reduce-scatter per dtype."""
    leaves, treedef = jax.tree.flatten(tree)
    send = functools.partial(jax.lax.psum_scatter, axis_name=axes, scatter_dimension=0)
    received = _send_packed(send, [split_in_shards(x, n) for x in leaves])
    parts = [
        part.reshape(row_shape(x, part.size)) for part, x in zip(received, leaves, strict=True)
    ]
    return treedef.unflatten(parts)


def all_gather_shards(parts: Any, like: Any, axes: tuple[str, ...]) -> Any:
    """Gather leaves of the shapes of `like` from all shards: one all-gather per dtype."""
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
        which = [i for i, x in enumerate(blocks) if x.dtype == dtype and x.size]
        if not which:
            continue
        packed = send(jnp.concatenate([blocks[i] for i in which], axis=-1))
        ends = [sum(blocks[j].shape[-1] for j in which[: k + 1]) for k in range(len(which))]
        pieces = jnp.split(packed, ends[:-1], axis=-1)
        received |= dict(zip(which, pieces, strict=True))
    return [received.get(i, jnp.zeros((0,), x.dtype)) for i, x in enumerate(blocks)]


def compressed_sum(
    tree: Any, owed: Any, axes: tuple[str, ...], block_size: int, count: jax.Array
) -> tuple[Any, Any]:
    r"""Sum the trees of all devices, and keep this device's rounding error for the next sum.

    .. math:: q_k = Q(x_k + e_k), \quad s = Q\Bigl(\sum_k q_k\Bigr), \quad
              e_k' = x_k + e_k - q_k + \Bigl[\sum_j q_j - s\Bigr]_{\text{part } k}

    Every device sums its part (an all-to-all of codes) and sends the sum to all devices (an
    all-gather). This sends two bytes per number, whereas an all-reduce of float32 sends eight. The
    device that sums a part stores the second rounding error, so the sum over all rounds is exact.

    Args:
        tree: This device's floating arrays.
        owed: :math:`e_k`, a tree like `tree`.
        axes: The named axes of the devices.
        block_size: Number of elements that share a scale.
        count: The index of this sum, the seed of the stochastic rounding.
    """
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.add, tree, owed))
    if not sum(x.size for x in leaves):
        return tree, owed
    n = jax.lax.psum(1, axes)
    # Reduce-scatter and all-gather, both in codes. Both rounding errors are added to the next
    # message (error feedback, Karimireddy et al., 2019, arXiv:1901.09847).
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
    """Convert complex numbers to pairs of real numbers, along a new last axis."""
    return jnp.stack([x.real, x.imag], axis=-1) if jnp.iscomplexobj(x) else x


def from_pairs(x: jax.Array, dtype: Any) -> jax.Array:
    """Invert `as_pairs`, with results in this dtype."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        x = jax.lax.complex(x[..., 0], x[..., 1])
    return x.astype(dtype)


def _pack(leaves: list[jax.Array], n: int, block_size: int) -> tuple[jax.Array, int]:
    """Pack leaves in `n` rows of whole blocks; return the rows and the block length."""
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
    """Encode rows as bytes (codes, then scales); return the bytes and the decoded values."""
    codes, scales = encode(x, SIGNED, block, count)
    as_bytes = jax.lax.bitcast_convert_type(scales, jnp.uint8).reshape(x.shape[0], -1)
    sent = decode(codes, scales, SIGNED, block)
    return jnp.concatenate([codes, as_bytes], axis=1), sent


def _decode_rows(message: jax.Array, length: int, block: int, dtype: Any) -> jax.Array:
    """Decode messages of rows of this length."""
    codes, as_bytes = message[:, :length], message[:, length:]
    blocks = () if length == block else (length // block,)
    as_bytes = as_bytes.reshape(len(message), *blocks, dtype.itemsize)
    return decode(codes, jax.lax.bitcast_convert_type(as_bytes, dtype), SIGNED, block)
