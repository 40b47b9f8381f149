"""Dependence rules of the sparse arrays `BCOO` and `BCSR` of JAX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from fnopt.jacobians.dependence._rule import Entry, Operation
from fnopt.jacobians.dependence._sets import Sets
from fnopt.jacobians.dependence._sums import mixed
from fnopt.numerics import per_row


def bcoo_product(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`BCOO @ array`: sums over the entries of the matrix."""
    data, indices, right = inputs
    entries = _bcoo_indices(data, indices, op.params["lhs_spinfo"].shape)
    return mixed(sets, op.shapes, inputs) if entries is None else _product(op, entries, data, right)


def bcsr_product(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`BCSR @ array`: sums over the entries of the matrix."""
    data, columns, starts, right = inputs
    entries = _bcsr_indices(data, columns, starts, op.params["lhs_spinfo"].shape)
    return mixed(sets, op.shapes, inputs) if entries is None else _product(op, entries, data, right)


def bcoo_dense(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`BCOO.todense()`: each entry is added to an element of the array."""
    data, indices = inputs
    entries = _bcoo_indices(data, indices, op.shape)
    return mixed(sets, op.shapes, inputs) if entries is None else _dense(op, entries, data)


def bcsr_dense(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`BCSR.todense()`: each entry is added to an element of the array."""
    data, columns, starts = inputs
    entries = _bcsr_indices(data, columns, starts, op.shape)
    return mixed(sets, op.shapes, inputs) if entries is None else _dense(op, entries, data)


def _bcoo_indices(data: Entry, indices: Entry, shape: tuple[int, ...]) -> np.ndarray | None:
    """Indices `[entries, axes]` of the entries of a BCOO array.

    The result is None if the indices are unknown, or if the array has dense axes, so that its
    entries are arrays.
    """
    batch = len(indices.shape) - 2
    are_numbers = len(data.shape) == batch + 1 and batch + indices.shape[-1] == len(shape)
    return _add_batch_axes(indices.value(), data, shape) if indices.known and are_numbers else None


def _bcsr_indices(
    data: Entry, columns: Entry, starts: Entry, shape: tuple[int, ...]
) -> np.ndarray | None:
    """Indices `[entries, axes]` of the entries of a BCSR array, or None as in `_bcoo_indices`."""
    are_numbers = data.shape == columns.shape and len(columns.shape) + 1 == len(shape)
    if not (columns.known and starts.known and are_numbers):
        return None
    return _add_batch_axes(_row_and_column(columns.value(), starts.value()), data, shape)


def _row_and_column(columns: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Indices `[..., entries, 2]` of a BCSR array, whose padding has a row out of bounds."""
    batch = columns.shape[:-1]
    starts = np.broadcast_to(starts, (*batch, starts.shape[-1])).reshape(-1, starts.shape[-1])
    entries = np.arange(columns.shape[-1])
    rows = [np.searchsorted(row_starts, entries, side="right") - 1 for row_starts in starts]
    return np.stack([np.reshape(rows, columns.shape), columns], axis=-1)


def _add_batch_axes(indices: np.ndarray, data: Entry, shape: tuple[int, ...]) -> np.ndarray:
    """Convert indices `[*batch, n, sparse axes]` to indices `[entries, axes]` along all axes."""
    batch = shape[: indices.ndim - 2]
    entries = data.shape[-1]
    # Batch axes of the index array may have length 1.
    sparse = np.broadcast_to(indices, (*batch, entries, indices.shape[-1]))
    batch_indices = np.indices((*batch, entries))[: len(batch)]
    axes = [*batch_indices, *np.moveaxis(sparse, -1, 0)]
    return np.stack([np.reshape(axis, -1) for axis in axes], axis=-1)


def _product(op: Operation, indices: np.ndarray, data: Entry, right: Entry) -> list[np.ndarray]:
    """Sets of a product, from the interpretation of an equivalent gather and scatter-add."""
    (contracted, right_contracted), (batch, right_batch) = op.params["dimension_numbers"]
    shape = op.params["lhs_spinfo"].shape
    free = [k for k in range(len(shape)) if k not in (*batch, *contracted)]
    in_bounds = np.all(indices < np.asarray(shape), axis=1)  # padding is out of bounds
    sources = tuple(indices[in_bounds][:, k] for k in (*batch, *contracted))
    targets = tuple(indices[in_bounds][:, k] for k in (*batch, *free))

    def product(data: jax.Array, right: jax.Array) -> jax.Array:
        right = jnp.moveaxis(right, (*right_batch, *right_contracted), range(len(sources)))
        rows = (
            right[sources] if sources else jnp.broadcast_to(right, (in_bounds.sum(), *right.shape))
        )
        entries = _entry_values(data, indices, shape)[in_bounds]
        terms = per_row(entries, rows).astype(rows.dtype) * rows
        if not targets:
            return jnp.sum(terms, 0)
        return jnp.zeros(op.shape, rows.dtype).at[targets].add(terms)

    return _interpret(op, product, [data, right])


def _dense(op: Operation, indices: np.ndarray, data: Entry) -> list[np.ndarray]:
    """Sets of a dense array, from the interpretation of an equivalent scatter-add."""

    def dense(data: jax.Array) -> jax.Array:
        entries = _entry_values(data, indices, op.shape)
        return jnp.zeros(op.shape, data.dtype).at[tuple(indices.T)].add(entries, mode="drop")

    return _interpret(op, dense, [data])


def _entry_values(data: jax.Array, indices: np.ndarray, shape: tuple[int, ...]) -> jax.Array:
    """Values of the entries in the order of `indices`."""
    # Batch axes of `data` may have length 1.
    batch = shape[: data.ndim - 1]
    entries = indices.shape[0] // max(math.prod(batch), 1)
    return jnp.broadcast_to(data, (*batch, entries)).reshape(-1)


def _interpret(op: Operation, fn: Callable[..., Any], inputs: list[Entry]) -> list[np.ndarray]:
    """Sets of the outputs of a function that is equivalent to an equation."""
    args = [jax.ShapeDtypeStruct(entry.shape, jnp.float32) for entry in inputs]
    program: jex.ClosedJaxpr = jax.make_jaxpr(fn)(*args)
    return [entry.sets for entry in op.run(program, inputs)]
