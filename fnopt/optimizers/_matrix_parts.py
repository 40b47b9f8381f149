"""Matrices of sharded leaves: each device processes the complete matrices that it owns.

With `fnopt.distributed.sharded`, every device stores a shard of each leaf, but a matrix method
needs complete matrices. Each of N devices owns one N-th of the matrices of a shape. In an
all-to-all, the devices send their pieces of all matrices to the owners. The owners process the
complete matrices and send back the pieces of the results. Both messages have an N-th of the params'
size. The state is stored in pieces, so it is always divided evenly. The work is divided evenly if
the number of matrices is a multiple of N. Outside of `sharded`, all functions of this file call the
functions of the layout.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.optimizers._matrix_layout import MatrixLayout, by_shape, groups, stack, unstack
from fnopt.sharding import SHARD_SUM, UnshardedLeaves, shard_axes, unsharded_leaves


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=("data",), meta_fields=("shape", "transposed")
)
@dataclasses.dataclass(frozen=True)
class Piece:
    """This device's pieces of `k` arrays of one shape.

    Attributes:
        data: This device's contiguous piece of each flattened array, `[k, length]`.
        shape: The shape of an array.
        transposed: Whether to transpose the arrays before a function processes them.
    """

    data: Any
    shape: tuple[int, ...]
    transposed: bool = False


def to_matrices(
    layout: MatrixLayout, x: jax.Array, wide: bool = True, gathers: bool = True
) -> list[Any]:
    """Split a leaf into stacks of matrices `[k, m, n]`; a sharded leaf into their pieces."""
    leaves = unsharded_leaves()
    if leaves is None or not layout.shapes:
        return layout.to_matrices(x, wide, gathers)
    with jax.named_scope(SHARD_SUM):
        return _to_matrices(layout, x, wide, leaves)


def to_leaf(layout: MatrixLayout, parts: list[Any], like: Any, wide: bool = True) -> jax.Array:
    """Assemble a leaf from its parts; for a sharded leaf, this device's shard."""
    leaves = unsharded_leaves()
    if leaves is None or not parts:
        return layout.to_leaf(parts, like, wide)
    with jax.named_scope(SHARD_SUM):
        shard = jnp.zeros_like(like, parts[0].data.dtype)
        if not leaves.is_probe:
            shard = _assemble_shard(layout, parts, wide, leaves)
        return shard.reshape(jnp.shape(like))


def map_by_shape(fn: Callable[[Any], Any], rows: list[list[Any]]) -> list[list[Any]]:
    """Apply a function to the stack of each shape; if sharded, to the matrices of this device."""
    leaves = unsharded_leaves()
    if leaves is None:
        return by_shape(fn, rows)
    with jax.named_scope(SHARD_SUM):
        return _map_by_owner(fn, rows, leaves.count)


def new_slot(tree: Any) -> Any:
    """Convert the initial value of a slot for matrices to its stored form."""
    leaves = unsharded_leaves()
    if leaves is None:
        return tree
    return jax.tree.map(lambda x: leaves.kept(_rows(x.reshape(len(x), -1), leaves.count)), tree)


def load_slot(tree: Any, start: Callable[[], Any]) -> Any:
    """Load a slot for matrices from its stored form; `start` returns the slot's initial value."""
    if unsharded_leaves() is None:
        return tree
    shapes = jax.eval_shape(start)
    return jax.tree.map(lambda x, like: Piece(x, like.shape[1:]), tree, shapes)


def number_matrices(rows: list[list[dict[str, Any]]]) -> None:
    """Add the entry `index` to all parts: numbers of the matrices, equal on all devices."""
    start = 0
    for part in (part for row in rows for part in row):
        x = jax.tree.leaves(part["u"])[0]
        index = jnp.arange(start, start + len(x)).astype(x.dtype)
        part["index"] = index if unsharded_leaves() is None else Piece(index[:, None], ())
        start += len(x)


def store_slot(tree: Any) -> Any:
    """Convert a slot for matrices to its stored form; the inverse of `load_slot`."""
    return jax.tree.map(lambda x: x.data if _is_piece(x) else x, tree, is_leaf=_is_piece)


def _is_piece(x: Any) -> bool:
    return isinstance(x, Piece)


def _rows(x: jax.Array, n: int) -> jax.Array:
    """Split `[..., size]` into `n` equal pieces, `[..., n, length]`, padded with zeros."""
    length = -(-x.shape[-1] // n)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, n * length - x.shape[-1])])
    return x.reshape(*x.shape[:-1], n, length)


def _to_matrices(
    layout: MatrixLayout, x: jax.Array, wide: bool, leaves: UnshardedLeaves
) -> list[Piece]:
    n = leaves.count
    if leaves.is_probe:
        sizes = [(k, -(-rows * columns // n)) for k, rows, columns in layout.shapes]
        datas = [jnp.zeros(size, x.dtype) for size in sizes]
        shapes = layout.wide_shapes if wide else layout.shapes
        return [Piece(data, s[1:]) for data, s in zip(datas, shapes, strict=True)]
    if not layout.is_consecutive:
        # The elements of a matrix aren't consecutive in the leaf, so each device gathers the leaf.
        gathered = jax.lax.all_gather(jnp.ravel(x), shard_axes()).reshape(-1)
        leaf = gathered[: math.prod(layout.shape)].reshape(layout.shape)
        matrices = layout.to_matrices(leaf, wide)
        return [Piece(leaves.kept(_rows(m.reshape(len(m), -1), n)), m.shape[1:]) for m in matrices]
    ((k, rows, columns),) = layout.shapes
    data, size = jnp.ravel(x), rows * columns
    if k == 1:
        data = data[None]
    elif k % n == 0:  # the shard of a device consists of complete matrices
        local = jnp.swapaxes(_rows(data.reshape(k // n, size), n), 0, 1)
        data = jax.lax.all_to_all(local, shard_axes(), 0, 0).reshape(k, -1)
    else:
        gathered = jax.lax.all_gather(data, shard_axes()).reshape(-1)[: k * size]
        data = leaves.kept(_rows(gathered.reshape(k, size), n))
    return [Piece(data, (rows, columns), wide and rows > columns)]


def _assemble_shard(
    layout: MatrixLayout, parts: list[Piece], wide: bool, leaves: UnshardedLeaves
) -> jax.Array:
    """Assemble this device's shard of a leaf: the inverse of `_to_matrices`."""
    n, (k, *shape) = leaves.count, layout.shapes[0]
    if layout.is_consecutive and parts[0].shape == tuple(shape):
        data, size = parts[0].data, math.prod(shape)
        if k == 1:
            return data[0]
        if k % n == 0:
            local = jax.lax.all_to_all(data.reshape(n, k // n, -1), shard_axes(), 0, 0)
            return jnp.swapaxes(local, 0, 1).reshape(k // n, -1)[:, :size].reshape(-1)
    matrices = [_matrices(Piece(_gather(p.data), p.shape, p.transposed)) for p in parts]
    leaf = layout.to_leaf(matrices, jnp.zeros(layout.shape, matrices[0].dtype), wide)
    return leaves.kept(_rows(leaf.reshape(-1), n))


def _gather(data: jax.Array) -> jax.Array:
    """Gather the pieces `[k, length]` of all devices, and concatenate them."""
    return jnp.swapaxes(jax.lax.all_gather(data, shard_axes()), 0, 1).reshape(len(data), -1)


def _matrices(piece: Piece) -> jax.Array:
    """Assemble complete arrays from gathered pieces."""
    data = piece.data[:, : math.prod(piece.shape)].reshape(-1, *piece.shape)
    return jnp.swapaxes(data, 1, 2) if piece.transposed else data


def _map_by_owner(fn: Callable[[Any], Any], rows: list[list[Any]], n: int) -> list[list[Any]]:
    # Shapes on a device, for k matrices of one shape and j = ceil(k / n): pieces of all matrices
    # `[k, length]` -> pieces for each owner `[n, j, length]` -> (all-to-all) all pieces of the
    # owned matrices -> complete matrices `[j, rows, columns]` -> fn, and all steps reversed.
    all_positions = groups(rows)
    stacks = [stack(rows, positions) for positions in all_positions]
    counts = [jax.tree.leaves(x)[0].shape[0] for x in stacks]
    pieces, treedef = jax.tree.flatten(stacks)
    received = _exchange([_pad_for_owners(x, n) for x in pieces])
    owned = treedef.unflatten([jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1) for x in received])
    results = [
        _split_results(fn(jax.tree.map(_matrices, x, is_leaf=_is_piece)), x, n) for x in owned
    ]
    pieces, treedef = jax.tree.flatten(results)
    returned = treedef.unflatten(_exchange(pieces))
    out: list[list[Any]] = [[None] * len(row) for row in rows]
    for positions, k, result in zip(all_positions, counts, returned, strict=True):
        result = jax.tree.map(lambda x, k=k: x.reshape(-1, x.shape[-1])[:k], result)
        unstack(out, positions, rows, result)
    return out


def _pad_for_owners(x: jax.Array, n: int) -> jax.Array:
    """Group pieces `[k, length]` by owner, `[n, ceil(k / n), length]`, with padding."""
    per_owner = -(-len(x) // n)
    # The padding consists of copies of a matrix, because a factorization of zeros may be NaN.
    padding = jnp.broadcast_to(x[:1], (n * per_owner - len(x), x.shape[1]))
    return jnp.concatenate([x, padding]).reshape(n, per_owner, -1)


def _split_results(out: Any, inputs: Any, n: int) -> Any:
    """Split results into pieces for all devices, `[n, k, length]`.

    A named result is transposed if the input of the same name is transposed.
    """
    if isinstance(out, dict):
        return {
            name: _split_results(x, inputs.get(name) if isinstance(inputs, dict) else None, n)
            for name, x in out.items()
        }
    like = inputs if _is_piece(inputs) else None

    def split_array(x: jax.Array) -> Piece:
        transposed = like is not None and like.transposed
        x = jnp.swapaxes(x, 1, 2) if transposed else x
        data = jnp.swapaxes(_rows(x.reshape(len(x), -1), n), 0, 1)
        return Piece(data, x.shape[1:], transposed)

    return jax.tree.map(split_array, out)


def _exchange(blocks: list[jax.Array]) -> list[jax.Array]:
    """Send row `i` of each block `[n, ...]` to device `i`; return the rows from all devices."""
    received: list[Any] = [None] * len(blocks)
    # Blocks of one dtype share one collective, because each collective adds latency.
    for dtype in dict.fromkeys(x.dtype for x in blocks):
        indices = [i for i, x in enumerate(blocks) if x.dtype == dtype]
        flat = [blocks[i].reshape(len(blocks[i]), -1) for i in indices]
        packed = jax.lax.all_to_all(jnp.concatenate(flat, axis=1), shard_axes(), 0, 0)
        start = 0
        for i, x in zip(indices, flat, strict=True):
            received[i] = packed[:, start : start + x.shape[1]].reshape(blocks[i].shape)
            start += x.shape[1]
    return received
