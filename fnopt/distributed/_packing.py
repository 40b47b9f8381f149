"""Shards of leaves, and their exchange in one collective for every dtype.

A leaf is flattened and padded with zeros to N equal shards. A shard has as many axes as the leaf,
all but the last of length 1, so that masks of matrices and vectors work. A collective sends the
shards of all leaves of a dtype as one array, `[N, sum of their lengths]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.sharding import UnshardedLeaves, all_gather, varying_axes


def split_in_shards(x: Any, n: int) -> jax.Array:
    """Split a leaf into `n` equal shards, `[n, ceil(size / n)]`, padded with zeros."""
    x = jnp.ravel(x)
    length = -(-x.size // n)
    return jnp.pad(x, (0, n * length - x.size)).reshape(n, length)


def row_shape(x: Any, length: int) -> tuple[int, ...]:
    """The shape of a flat array with as many axes as the leaf `x`, at least one."""
    return (1,) * (jnp.ndim(x) - 1) + (length,)


def shards_in_a_row(x: Any, n: int) -> jax.Array:
    """The shards of a leaf, concatenated."""
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
    """The leaves whose shards are on the devices of these axes."""

    def kept(parts: jax.Array) -> jax.Array:
        index = jax.lax.axis_index(axes)
        return jax.lax.dynamic_index_in_dim(parts, index, axis=-2, keepdims=False)

    return UnshardedLeaves(shapes, jax.lax.psum(1, axes), kept)


def reduce_scatter(tree: Any, axes: tuple[str, ...], n: int) -> Any:
    """This device's shard of the sum of every leaf: one reduce-scatter for every dtype."""

    def send(packed: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(packed, axes, scatter_dimension=0)

    leaves, treedef = jax.tree.flatten(tree)
    received = _send_packed(send, [split_in_shards(x, n) for x in leaves])
    parts = [
        part.reshape(row_shape(x, part.size)) for part, x in zip(received, leaves, strict=True)
    ]
    return treedef.unflatten(parts)


def all_gather_shards(parts: Any, like: Any, axes: tuple[str, ...]) -> Any:
    """Gather leaves of the shapes of `like` from all shards: one all-gather for every dtype."""
    flat = [jnp.ravel(x) for x in jax.tree.leaves(parts)]
    received = _send_packed(lambda packed: all_gather(packed, axes), flat)
    shapes, treedef = jax.tree.flatten(like)
    leaves = [join_shards(x, jnp.shape(p)) for x, p in zip(received, shapes, strict=True)]
    return treedef.unflatten(leaves)


def tracks_varying_axes(axes: tuple[str, ...]) -> bool:
    """Whether types track varying axes (`jax.shard_map` with `check_vma=True`)."""
    return bool(varying_axes(jax.lax.axis_index(axes)))


def _send_packed(
    send: Callable[[jax.Array], jax.Array], blocks: list[jax.Array]
) -> list[jax.Array]:
    """Send blocks, concatenated along their last axis, in one call for every dtype."""
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
