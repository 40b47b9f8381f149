"""Dependence rules of gathers, scatters and slices, with known or unknown indices per axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import lax

from fnopt.jacobians.dependence._rule import Entry, Operation
from fnopt.jacobians.dependence._sets import EMPTY, Sets


def dynamic_slice(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.dynamic_slice`: the union along the axes with an unknown start."""
    operand, *starts = inputs
    sizes = op.params["slice_sizes"]
    ids = union_along_axes(sets, operand.sets, _axes_of_unknown_start(starts, operand.shape, sizes))
    return [ids[_window(starts, operand.shape, sizes)]]


def dynamic_update_slice(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.dynamic_update_slice`: a union with the operand along axes with an unknown start."""
    operand, update, *starts = inputs
    unknown = _axes_of_unknown_start(starts, operand.shape, update.shape)
    window = _window(starts, operand.shape, update.shape)
    if not unknown:
        ids = operand.sets.copy()
        ids[window] = update.sets
        return [ids]
    ids = np.full(operand.shape, EMPTY, np.int32)
    ids[window] = update.sets
    return [sets.union(operand.sets, union_along_axes(sets, ids, unknown))]


def _axes_of_unknown_start(
    starts: list[Entry], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """Axes along which the start of a slice is unknown."""
    # A slice of a whole axis starts at 0, because JAX clamps the start.
    axes = enumerate(zip(starts, shape, sizes, strict=True))
    return tuple(k for k, (start, n, size) in axes if not start.known and size < n)


def union_along_axes(sets: Sets, ids: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Replace every set by the union along axes, without a change of shape."""
    if not axes:
        return ids
    return np.broadcast_to(np.expand_dims(sets.union_along(ids, axes), axes), ids.shape)


def _window(
    starts: list[Entry], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[slice, ...]:
    """Slices from the starts, or from 0 if a start is unknown, clamped to the array as in JAX."""
    first_indices = [int(start.value()) if start.known else 0 for start in starts]
    firsts = [min(max(a, 0), n - k) for a, n, k in zip(first_indices, shape, sizes, strict=True)]
    return tuple(slice(first, first + k) for first, k in zip(firsts, sizes, strict=True))


def gather(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.gather`: the union along axes with unknown indices, and empty sets out of bounds."""
    operand, indices = inputs
    p = op.params
    positions, unknown = _known_indices(indices, p["dimension_numbers"].start_index_map)
    unknown = tuple(k for k in unknown if p["slice_sizes"][k] < operand.shape[k])
    names = ("dimension_numbers", "slice_sizes", "mode")
    ids = union_along_axes(sets, operand.sets, unknown)
    return [gather_numbers(ids, positions, {name: p[name] for name in names})]


def _known_indices(indices: Entry, axes: tuple[int, ...]) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the indices, with zeros for unknown indices, and the axes with unknown indices."""
    value, mask = indices.partly()
    unknown = tuple(axis for k, axis in enumerate(axes) if not mask[..., k].all())
    return np.where(mask, value, 0) if unknown else value, unknown


def gather_numbers(ids: np.ndarray, indices: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """`lax.gather` of a NumPy array, with 0 for indices out of bounds."""
    return np.asarray(lax.gather(ids, indices, fill_value=0, **params))


def scatter_add(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.scatter_add` and others that combine updates with the operand: the union of both."""
    operand, indices, updates = inputs
    return [
        sets.union(operand.sets, _scatter_union(sets, op, operand.shape, indices, updates.sets))
    ]


def scatter(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.scatter`, which overwrites elements if the indices are known and unique."""
    operand, indices, updates = inputs
    if not (indices.known and op.params["unique_indices"]):
        return scatter_add(sets, op, inputs)
    targets, sources = _targets_and_updates(op, operand.shape, indices.value(), updates.sets)
    ids = operand.sets.flatten()
    ids[targets] = sources
    return [ids.reshape(operand.shape)]


def _scatter_union(
    sets: Sets, op: Operation, shape: tuple[int, ...], indices: Entry, updates: np.ndarray
) -> np.ndarray:
    """Union of the updates that are written to every element of an array."""
    axes = op.params["dimension_numbers"].scatter_dims_to_operand_dims
    positions, unknown = _known_indices(indices, axes)
    targets, sources = _targets_and_updates(op, shape, positions, updates)
    ids = sets.gather(targets, sources, math.prod(shape)).reshape(shape)
    return union_along_axes(sets, ids, unknown)


def _targets_and_updates(
    op: Operation, shape: tuple[int, ...], indices: np.ndarray, updates: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Flat indices of the elements to which updates are written, and the updates within bounds."""
    # A gather is the transpose of a scatter, so a gather of flat indices returns the targets. The
    # flat indices start at 1, because the gather returns 0 out of bounds.
    flat_indices = np.arange(1, math.prod(shape) + 1, dtype=np.int32).reshape(shape)
    target = gather_numbers(flat_indices, indices, _gather_params(op, shape, updates.shape))
    in_bounds = target > 0
    return target[in_bounds] - 1, updates[in_bounds]


def _gather_params(
    op: Operation, shape: tuple[int, ...], updates: tuple[int, ...]
) -> dict[str, Any]:
    """Parameters of the gather that reads the elements to which a scatter writes."""
    numbers = op.params["dimension_numbers"]
    absent = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = iter(numbers.update_window_dims)
    sizes = tuple(1 if k in absent else updates[next(window)] for k in range(len(shape)))
    gather_dims = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    return {"dimension_numbers": gather_dims, "slice_sizes": sizes, "mode": op.params["mode"]}
