"""QR decompositions of matrices with sharded rows, without moving the rows between devices (TSQR).

Every device reduces its rows to a triangular factor. The factors are gathered and stacked on all
devices. The QR decomposition of the stack gives the triangular factor of all rows. The result is as
accurate as a single factorization, and each device sends an `[n, n]` matrix.

Reference:
    Demmel, Grigori, Hoemmen and Langou, 2008, arXiv:0806.2159.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from fnopt.sharding import all_gather_rows, explicit_spec, replicate, row_axes, row_shards


def with_fewer_rows(A: jax.Array) -> jax.Array:
    """Replace rows sharded over an explicit mesh by fewer, replicated rows with the same `R`."""
    row_axis, column_axis = explicit_spec(A)
    if row_axis is None and column_axis is None:
        return A
    A = replicate(A, 1)
    names = row_axis if isinstance(row_axis, tuple) else (row_axis,)
    mesh = jax.typeof(A).sharding.mesh
    if row_axis is not None and _has_tall_blocks(A, mesh, names):
        specs = {"mesh": mesh, "in_specs": PartitionSpec(names), "out_specs": PartitionSpec(names)}
        A = jax.shard_map(_triangle, axis_names={*names}, **specs)(A)
    return replicate(A)


def with_fewer_residuals(A: jax.Array) -> jax.Array:
    """Replace rows by fewer rows with the same `R`, for any sharding of the rows.

    Along the named axes of `rows_sharded_over`, each device has a part of the rows. On an automatic
    mesh, an array's type contains the devices, but not the sharding of the rows. The rows are then
    split into one block per device, which is correct for any sharding and never slower than one
    factorization.
    """
    if row_axes():
        return _gather_triangles(A)
    mesh = jax.typeof(A).sharding.mesh
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    names = tuple(name for name, kind in kinds if kind == AxisType.Auto)
    blocks = _block_count(mesh, names)
    if len(A) % blocks or not _has_tall_blocks(A, mesh, names):
        return A

    @jax.custom_batching.custom_vmap
    def blockwise(A: jax.Array) -> jax.Array:
        R = _triangle(A.reshape(blocks, -1, A.shape[1]))
        return _triangle(R.reshape(-1, A.shape[1]))

    @blockwise.def_vmap
    def batched_rule(size: int, batched: Any, A: jax.Array) -> tuple[jax.Array, bool]:
        # Under vmap, the batch axis is probably the sharded axis, so the rows aren't divided.
        del size, batched
        return _triangle(A), True

    return blockwise(A)


def _gather_triangles(A: jax.Array) -> jax.Array:
    """Gather the triangular factors of all devices, or their rows if these are fewer."""
    m, n = A.shape
    # A triangular factor can replace the rows of a device, because R^T R = A^T A.
    rows = _triangle(A) if m > n else A
    # Pad with zero rows if all devices together have fewer than n rows.
    missing = n - len(rows) * row_shards()
    return jnp.pad(all_gather_rows(rows), ((0, max(missing, 0)), (0, 0)))


def _triangle(A: jax.Array) -> jax.Array:
    return jnp.linalg.qr(A, mode="r")


def _has_tall_blocks(A: jax.Array, mesh: Any, names: tuple[Any, ...]) -> bool:
    """Whether there are several blocks, each with more rows than columns."""
    blocks = _block_count(mesh, names)
    return blocks > 1 and len(A) // blocks > A.shape[1]


def _block_count(mesh: Any, names: tuple[Any, ...]) -> int:
    return math.prod(mesh.shape[name] for name in names)
