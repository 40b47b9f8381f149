"""Triangles of matrices whose rows are divided over devices: no device gets another's rows.

Every device reduces its rows to a triangle; these are put on top of each other, on all devices,
and have the triangle of the whole matrix (TSQR): as accurate as one factorisation, for `[n, n]`
numbers of each device.

Reference:
    Demmel, Grigori, Hoemmen and Langou, 2008, arXiv:0806.2159.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from fnopt.core import axes_of, gathered, row_axes, row_parts, rows_gathered


def with_fewer_rows(A: jax.Array) -> jax.Array:
    """Rows with the same triangle, whole on every device, if the type says that `A` is divided."""
    axis, rest = axes_of(A)
    if axis is None and rest is None:
        return A
    A = gathered(A, 1)
    names = axis if isinstance(axis, tuple) else (axis,)
    mesh = jax.typeof(A).sharding.mesh
    if axis is None or not _is_worth_it(A, _parts(mesh, names)):
        return gathered(A)
    return gathered(_triangles(A, mesh, names))


def with_fewer_residuals(A: jax.Array) -> jax.Array:
    """Likewise for a matrix with a row for every residual, wherever these may be divided.

    Over the named axes of `rows_over` each device has its own rows. On an automatic mesh the type
    says which devices there are and not how the rows lie; but no order of rows costs more than
    one factorisation. So there are as many blocks as devices, which stay where they are.
    """
    if row_axes():
        return _of_all_devices(A)
    blocks = _automatic_devices(A)
    if len(A) % blocks or not _is_worth_it(A, blocks):
        return A

    @jax.custom_batching.custom_vmap
    def divided(A: jax.Array) -> jax.Array:
        R = jnp.linalg.qr(A.reshape(blocks, -1, A.shape[1]), mode="r")
        return jnp.linalg.qr(R.reshape(-1, A.shape[1]), mode="r")

    @divided.def_vmap
    def whole(size: int, batched: Any, A: jax.Array) -> tuple[jax.Array, bool]:
        # Of many matrices it is most likely these that are divided.
        del size, batched
        return jnp.linalg.qr(A, mode="r"), True

    return divided(A)


def _of_all_devices(A: jax.Array) -> jax.Array:
    """The triangles of the devices of a named axis; their rows, where these are fewer."""
    m, n = A.shape
    # The factors of the parts stand for the parts, since R^T R is A^T A; but nothing is squared.
    mine = jnp.linalg.qr(A, mode="r") if m > n else A
    missing = n - len(mine) * row_parts()  # zeros, where all devices have too few rows together
    return jnp.pad(rows_gathered(mine), ((0, max(missing, 0)), (0, 0)))


def _triangles(A: jax.Array, mesh: Any, names: tuple[Any, ...]) -> jax.Array:
    rows = PartitionSpec(names)

    def mine(A: jax.Array) -> jax.Array:
        return jnp.linalg.qr(A, mode="r")

    where = {"mesh": mesh, "in_specs": rows, "out_specs": rows}
    return jax.shard_map(mine, axis_names={*names}, **where)(A)


def _is_worth_it(A: jax.Array, parts: int) -> bool:
    """Whether a part has more rows than its triangle."""
    m, n = A.shape
    return parts > 1 and m // parts > n


def _parts(mesh: Any, names: tuple[Any, ...]) -> int:
    return math.prod(mesh.shape[name] for name in names)


def _automatic_devices(A: jax.Array) -> int:
    mesh = jax.typeof(A).sharding.mesh
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    if mesh is None or mesh.empty:
        return 1
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return _parts(mesh, tuple(name for name, kind in kinds if kind == AxisType.Auto))
