"""Division of leaves into one part for each device, and their exchange in one message.

A leaf is a row of numbers, filled up with zeros to N equal parts. A part has as many axes as the
leaf, all but the last of length 1: masks that tell matrices from vectors work. On the way the parts
of all leaves of a dtype lie side by side, `[N, sum of the parts]`: one collective for all of them,
and each device has its part of every leaf by name, not some stretch of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.sharding import UnshardedLeaves, all_gather, varying_axes


def rows(x: Any, n: int) -> jax.Array:
    """A leaf as `n` equal parts, `[n, ceil(size / n)]`, with zeros at the end."""
    x = jnp.ravel(x)
    length = part_length(x.size, n)
    return jnp.pad(x, (0, n * length - x.size)).reshape(n, length)


def part_length(size: int, n: int) -> int:
    """The length of a part: a whole number, rounded up."""
    return -(-size // n)


def row_shape(x: Any, length: int) -> tuple[int, ...]:
    """The shape of a row of numbers of the leaf `x`: with as many axes, and one at least."""
    return (1,) * (jnp.ndim(x) - 1) + (length,)


def in_a_row(x: Any, n: int) -> jax.Array:
    """The parts of a leaf, one after the other, as one array."""
    parts = rows(x, n)
    return parts.reshape(row_shape(x, parts.size))


def whole(parts: Any, shape: tuple[int, ...]) -> jax.Array:
    """The leaf of this shape from its parts."""
    return jnp.ravel(parts)[: math.prod(shape)].reshape(shape)


def own_parts(tree: Any, axes: tuple[str, ...], n: int) -> Any:
    """This device's part of every leaf, all of which it has."""
    here = jax.lax.axis_index(axes)

    def one(x: Any) -> jax.Array:
        part = jax.lax.dynamic_index_in_dim(rows(x, n), here, keepdims=False)
        return part.reshape(row_shape(x, part.size))

    return jax.tree.map(one, tree)


def whole_leaves_of(shapes: dict[str, tuple[int, ...]], axes: tuple[str, ...]) -> UnshardedLeaves:
    """The whole leaves behind the parts that the devices of these axes have."""

    def kept(parts: jax.Array) -> jax.Array:
        here = jax.lax.axis_index(axes)
        return jax.lax.dynamic_index_in_dim(parts, here, axis=-2, keepdims=False)

    return UnshardedLeaves(shapes, jax.lax.psum(1, axes), kept)


def summed_parts(tree: Any, axes: tuple[str, ...], n: int) -> Any:
    """This device's part of the sum of every leaf over all devices: one reduce-scatter a dtype."""

    def send(packed: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(packed, axes, scatter_dimension=0)

    leaves, treedef = jax.tree.flatten(tree)
    received = _side_by_side(send, [rows(x, n) for x in leaves])
    parts = [
        part.reshape(row_shape(x, part.size)) for part, x in zip(received, leaves, strict=True)
    ]
    return treedef.unflatten(parts)


def gathered_parts(parts: Any, like: Any, axes: tuple[str, ...]) -> Any:
    """Leaves in the shapes of `like` from the parts of all devices: one all-gather a dtype."""
    flat = [jnp.ravel(x) for x in jax.tree.leaves(parts)]
    received = _side_by_side(lambda packed: all_gather(packed, axes), flat)
    shapes, treedef = jax.tree.flatten(like)
    leaves = [whole(x, jnp.shape(p)) for x, p in zip(received, shapes, strict=True)]
    return treedef.unflatten(leaves)


def types_are_tracked(axes: tuple[str, ...]) -> bool:
    """Whether types say what differs between devices (`jax.shard_map` with `check_vma=True`)."""
    return bool(varying_axes(jax.lax.axis_index(axes)))


def _side_by_side(
    send: Callable[[jax.Array], jax.Array], blocks: list[jax.Array]
) -> list[jax.Array]:
    """Sends blocks, joined along their last axis, in one message for every dtype."""
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
