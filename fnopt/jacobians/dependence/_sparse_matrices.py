"""Dependence rules of `BCOO` and `BCSR` of `jax.experimental.sparse`."""

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
    """`BCOO @ array`, from the entries of the matrix."""
    data, indices, right = inputs
    places = _places(data, indices, op.params["lhs_spinfo"].shape)
    return mixed(sets, op.shapes, inputs) if places is None else _product(op, places, data, right)


def bcsr_product(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`BCSR @ array`, from the entries of the matrix."""
    data, columns, starts, right = inputs
    places = _places_of_rows(data, columns, starts, op.params["lhs_spinfo"].shape)
    return mixed(sets, op.shapes, inputs) if places is None else _product(op, places, data, right)


def bcoo_dense(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`BCOO.todense()`."""
    data, indices = inputs
    places = _places(data, indices, op.shape)
    return mixed(sets, op.shapes, inputs) if places is None else _dense(op, places, data)


def bcsr_dense(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`BCSR.todense()`."""
    data, columns, starts = inputs
    places = _places_of_rows(data, columns, starts, op.shape)
    return mixed(sets, op.shapes, inputs) if places is None else _dense(op, places, data)


def _places(data: Entry, indices: Entry, shape: tuple[int, ...]) -> np.ndarray | None:
    """The indices of the entries of a BCOO array, `[entries, axes]`; None if unknown."""
    batch = len(indices.shape) - 2
    is_number = len(data.shape) == batch + 1 and batch + indices.shape[-1] == len(shape)
    return _by_batch(indices.value(), data, shape) if indices.known and is_number else None


def _places_of_rows(
    data: Entry, columns: Entry, starts: Entry, shape: tuple[int, ...]
) -> np.ndarray | None:
    """The indices of the entries of a BCSR array, `[entries, axes]`; None if unknown."""
    is_number = data.shape == columns.shape and len(columns.shape) + 1 == len(shape)
    if not (columns.known and starts.known and is_number):
        return None
    return _by_batch(_of_rows(columns.value(), starts.value()), data, shape)


def _of_rows(columns: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The indices `[..., entries, 2]` of a BCSR array; out of bounds for padding."""
    batch = columns.shape[:-1]
    starts = np.broadcast_to(starts, (*batch, starts.shape[-1])).reshape(-1, starts.shape[-1])
    entries = np.arange(columns.shape[-1])
    rows = [np.searchsorted(row_starts, entries, side="right") - 1 for row_starts in starts]
    return np.stack([np.reshape(rows, columns.shape), columns], axis=-1)


def _by_batch(indices: np.ndarray, data: Entry, shape: tuple[int, ...]) -> np.ndarray:
    """The indices of all entries along all axes, batch axes included: `[all entries, axes]`."""
    batch = shape[: indices.ndim - 2]
    entries = data.shape[-1]
    found = np.broadcast_to(indices, (*batch, entries, indices.shape[-1]))
    places = np.indices((*batch, entries))[: len(batch)]
    both = [*places, *np.moveaxis(found, -1, 0)]
    return np.stack([np.reshape(axis, -1) for axis in both], axis=-1)


def _product(op: Operation, indices: np.ndarray, data: Entry, right: Entry) -> list[np.ndarray]:
    """A product, from the indices of the entries."""
    (contracted, others_contracted), (batch, others_batch) = op.params["dimension_numbers"]
    shape = op.params["lhs_spinfo"].shape
    free = [k for k in range(len(shape)) if k not in (*batch, *contracted)]
    inside = np.all(indices < np.asarray(shape), axis=1)
    met = tuple(indices[inside][:, k] for k in (*batch, *contracted))
    kept = tuple(indices[inside][:, k] for k in (*batch, *free))

    def product(data: jax.Array, right: jax.Array) -> jax.Array:
        """The product with a sparse matrix, entry by entry."""
        right = jnp.moveaxis(right, (*others_batch, *others_contracted), range(len(met)))
        rows = right[met] if met else jnp.broadcast_to(right, (inside.sum(), *right.shape))
        entries = _in_order(data, indices, shape)[inside]
        terms = per_row(entries, rows).astype(rows.dtype) * rows
        if not kept:
            return jnp.sum(terms, 0)
        return jnp.zeros(op.shape, rows.dtype).at[kept].add(terms)

    return _walked(op, product, [data, right])


def _dense(op: Operation, indices: np.ndarray, data: Entry) -> list[np.ndarray]:
    """The dense array from the entries."""

    def dense(data: jax.Array) -> jax.Array:
        entries = _in_order(data, indices, op.shape)
        return jnp.zeros(op.shape, data.dtype).at[tuple(indices.T)].add(entries, mode="drop")

    return _walked(op, dense, [data])


def _in_order(data: jax.Array, indices: np.ndarray, shape: tuple[int, ...]) -> jax.Array:
    """The entries, sorted by their indices; batch axes may have length 1."""
    batch = shape[: data.ndim - 1]
    entries = indices.shape[0] // max(math.prod(batch), 1)
    return jnp.broadcast_to(data, (*batch, entries)).reshape(-1)


def _walked(op: Operation, fn: Callable[..., Any], inputs: list[Entry]) -> list[np.ndarray]:
    """The sets of the outputs of an equation, from an equivalent function."""
    given = [jax.ShapeDtypeStruct(entry.shape, jnp.float32) for entry in inputs]
    program: jex.ClosedJaxpr = jax.make_jaxpr(fn)(*given)
    return [entry.sets for entry in op.run(program, inputs)]
