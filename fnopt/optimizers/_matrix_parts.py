"""Matrices of sharded leaves: each device processes the whole matrices that it owns.

`fnopt.distributed.sharded` gives every device a shard of each leaf, but a matrix method needs whole
matrices. The devices send their pieces of all matrices to the owners by an all-to-all; each of N
devices owns one N-th of the matrices of a shape. The owners process whole matrices and send back
the pieces of the results: two messages of an N-th of the params' size. Therefore the state is
divided evenly for any matrices, and the work is divided evenly if N divides their number. Outside
of `sharded`, all functions of this file call the functions of the layout.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.optimizers._matrix_layout import MatrixLayout, by_shape, groups, into_places, stack
from fnopt.sharding import SHARD_SUM, UnshardedLeaves, shard_axes, unsharded_leaves


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("data",), meta_fields=("shape", "turned")
)
@dataclasses.dataclass(frozen=True)
class Piece:
    """This device's pieces of some arrays of one shape.

    Attributes:
        data: `[k, length]`: this device's contiguous part of every flattened array.
        shape: The shape of an array.
        turned: Whether `fn` receives transposed arrays.
    """

    data: Any
    shape: tuple[int, ...]
    turned: bool = False


def cut(layout: MatrixLayout, x: jax.Array, wide: bool = True, gathers: bool = True) -> list[Any]:
    """Cut a leaf into its matrices `[k, m, n]`; a sharded leaf into their pieces."""
    leaves = unsharded_leaves()
    if leaves is None or not layout.shapes:
        return layout.cut(x, wide, gathers)
    with jax.named_scope(SHARD_SUM):
        return _cut(layout, x, wide, leaves)


def whole(layout: MatrixLayout, parts: list[Any], like: Any, wide: bool = True) -> jax.Array:
    """Assemble a leaf from its parts; this device's shard of a sharded leaf."""
    leaves = unsharded_leaves()
    if leaves is None or not parts:
        return layout.whole(parts, like, wide)
    with jax.named_scope(SHARD_SUM):
        flat = jnp.zeros_like(like, parts[0].data.dtype)
        if not leaves.is_probe:
            flat = _part_of_leaf(layout, parts, wide, leaves)
        return flat.reshape(jnp.shape(like))


def map_by_shape(fn: Callable[[Any], Any], rows: list[list[Any]]) -> list[list[Any]]:
    """Apply a function per shape; for sharded leaves, each device processes its matrices."""
    leaves = unsharded_leaves()
    if leaves is None:
        return by_shape(fn, rows)
    with jax.named_scope(SHARD_SUM):
        return _group_by_owner(fn, rows, leaves.count)


def new_slot(tree: Any) -> Any:
    """Stored form of the first value of a slot for matrices."""
    leaves = unsharded_leaves()
    if leaves is None:
        return tree
    return jax.tree.map(lambda x: leaves.kept(_rows(x.reshape(len(x), -1), leaves.count)), tree)


def load_slot(tree: Any, start: Callable[[], Any]) -> Any:
    """Load a slot for matrices from its stored form; `start` makes the value from its shapes."""
    if unsharded_leaves() is None:
        return tree
    shapes = jax.eval_shape(start)
    return jax.tree.map(lambda x, like: Piece(x, like.shape[1:]), tree, shapes)


def number_matrices(rows: list[list[dict[str, Any]]]) -> None:
    """Number the matrices of all parts: `index`, equal on all devices."""
    start = 0
    for part in (part for row in rows for part in row):
        x = jax.tree.leaves(part["u"])[0]
        index = jnp.arange(start, start + len(x)).astype(x.dtype)
        part["index"] = index if unsharded_leaves() is None else Piece(index[:, None], ())
        start += len(x)


def store_slot(tree: Any) -> Any:
    """Stored form of a slot for matrices: the inverse of `load_slot`."""
    return jax.tree.map(lambda x: x.data if _is_piece(x) else x, tree, is_leaf=_is_piece)


def _is_piece(x: Any) -> bool:
    return isinstance(x, Piece)


def _rows(x: jax.Array, n: int) -> jax.Array:
    """Split `[..., size]` into `n` equal pieces, `[..., n, length]`, padded with zeros."""
    length = -(-x.shape[-1] // n)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, n * length - x.shape[-1])])
    return x.reshape(*x.shape[:-1], n, length)


def _cut(layout: MatrixLayout, x: jax.Array, wide: bool, leaves: UnshardedLeaves) -> list[Piece]:
    n = leaves.count
    if leaves.is_probe:
        sizes = [(k, -(-rows * columns // n)) for k, rows, columns in layout.shapes]
        datas = [jnp.zeros(size, x.dtype) for size in sizes]
        shapes = layout.wide_shapes if wide else layout.shapes
        return [Piece(data, s[1:]) for data, s in zip(datas, shapes, strict=True)]
    if not layout.is_consecutive:
        # The elements of a matrix aren't consecutive in the leaf, so every device gathers the whole
        # leaf.
        everything = jax.lax.all_gather(jnp.ravel(x), shard_axes()).reshape(-1)
        leaf = everything[: math.prod(layout.shape)].reshape(layout.shape)
        matrices = layout.cut(leaf, wide)
        return [Piece(leaves.kept(_rows(m.reshape(len(m), -1), n)), m.shape[1:]) for m in matrices]
    ((k, rows, columns),) = layout.shapes
    data, size = jnp.ravel(x), rows * columns
    if k == 1:
        data = data[None]
    elif k % n == 0:  # the part of a device consists of whole matrices
        ours = jnp.swapaxes(_rows(data.reshape(k // n, size), n), 0, 1)
        data = jax.lax.all_to_all(ours, shard_axes(), 0, 0).reshape(k, -1)
    else:
        everything = jax.lax.all_gather(data, shard_axes()).reshape(-1)[: k * size]
        data = leaves.kept(_rows(everything.reshape(k, size), n))
    return [Piece(data, (rows, columns), wide and rows > columns)]


def _part_of_leaf(
    layout: MatrixLayout, parts: list[Piece], wide: bool, leaves: UnshardedLeaves
) -> jax.Array:
    """Assemble this device's shard of a leaf: the inverse of `_cut`."""
    n, (k, *shape) = leaves.count, layout.shapes[0]
    if layout.is_consecutive and parts[0].shape == tuple(shape):
        data, size = parts[0].data, math.prod(shape)
        if k == 1:
            return data[0]
        if k % n == 0:
            ours = jax.lax.all_to_all(data.reshape(n, k // n, -1), shard_axes(), 0, 0)
            return jnp.swapaxes(ours, 0, 1).reshape(k // n, -1)[:, :size].reshape(-1)
    matrices = [_matrices(Piece(_gather(p.data), p.shape, p.turned)) for p in parts]
    leaf = layout.whole(matrices, jnp.zeros(layout.shape, matrices[0].dtype), wide)
    return leaves.kept(_rows(leaf.reshape(-1), n))


def _gather(data: jax.Array) -> jax.Array:
    """Pieces `[k, length]` of all devices, one after the other."""
    return jnp.swapaxes(jax.lax.all_gather(data, shard_axes()), 0, 1).reshape(len(data), -1)


def _matrices(piece: Piece) -> jax.Array:
    """Whole arrays from gathered pieces."""
    data = piece.data[:, : math.prod(piece.shape)].reshape(-1, *piece.shape)
    return jnp.swapaxes(data, 1, 2) if piece.turned else data


def _group_by_owner(fn: Callable[[Any], Any], rows: list[list[Any]], n: int) -> list[list[Any]]:
    places = groups(rows)
    stacks = [stack(rows, group) for group in places]
    counts = [jax.tree.leaves(x)[0].shape[0] for x in stacks]
    pieces, treedef = jax.tree.flatten(stacks)
    theirs = _exchange([_pad_for_owners(x, n) for x in pieces])
    owned = treedef.unflatten([jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1) for x in theirs])
    results = [
        _split_results(fn(jax.tree.map(_matrices, x, is_leaf=_is_piece)), x, n) for x in owned
    ]
    pieces, treedef = jax.tree.flatten(results)
    back = treedef.unflatten(_exchange(pieces))
    out: list[list[Any]] = [[None] * len(row) for row in rows]
    for group, k, result in zip(places, counts, back, strict=True):
        result = jax.tree.map(lambda x, k=k: x.reshape(-1, x.shape[-1])[:k], result)
        into_places(out, group, rows, result)
    return out


def _pad_for_owners(x: jax.Array, n: int) -> jax.Array:
    """Group pieces `[k, length]` by owner, `[n, some, length]`, padded with the first piece."""
    each = -(-len(x) // n)
    # The padding is a copy of a matrix, because zeros may give NaN in a factorization.
    lacking = jnp.broadcast_to(x[:1], (n * each - len(x), x.shape[1]))
    return jnp.concatenate([x, lacking]).reshape(n, each, -1)


def _split_results(out: Any, given: Any, n: int) -> Any:
    """Split results into pieces for all devices, `[n, k, length]`.

    A named result is transposed if the input of the same name is transposed.
    """
    if isinstance(out, dict):
        return {
            name: _split_results(x, given.get(name) if isinstance(given, dict) else None, n)
            for name, x in out.items()
        }
    like = given if _is_piece(given) else None

    def split_array(x: jax.Array) -> Piece:
        turned = like is not None and like.turned
        x = jnp.swapaxes(x, 1, 2) if turned else x
        data = jnp.swapaxes(_rows(x.reshape(len(x), -1), n), 0, 1)
        return Piece(data, x.shape[1:], turned)

    return jax.tree.map(split_array, out)


def _exchange(blocks: list[jax.Array]) -> list[jax.Array]:
    """Send the rows of blocks `[n, ...]` to the devices, in one message for every dtype."""
    received: list[Any] = [None] * len(blocks)
    # Every collective adds latency, so there is one per dtype.
    for dtype in dict.fromkeys(x.dtype for x in blocks):
        which = [i for i, x in enumerate(blocks) if x.dtype == dtype]
        flat = [blocks[i].reshape(len(blocks[i]), -1) for i in which]
        packed = jax.lax.all_to_all(jnp.concatenate(flat, axis=1), shard_axes(), 0, 0)
        start = 0
        for i, x in zip(which, flat, strict=True):
            received[i] = packed[:, start : start + x.shape[1]].reshape(blocks[i].shape)
            start += x.shape[1]
    return received
