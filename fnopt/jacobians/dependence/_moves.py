"""Linear operations element by element, and those that only move elements about."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import lax
from jax.extend import core as jex

from fnopt.jacobians.dependence._entry import Entry
from fnopt.jacobians.dependence._sets import EMPTY, Sets


def elementwise(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Every output element depends on the input elements in its place."""
    ids = np.zeros(_shape(eqn), np.int32)
    for entry in inputs:
        if entry.ids is not None:
            ids = sets.union(ids, entry.ids)
    return [ids]


def each_by_itself(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """As many outputs as inputs, each a copy of its own."""
    return [entry.sets for entry in inputs]


def mul(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """A product with a constant has no dependence where that is zero."""
    (ids,) = elementwise(sets, eqn, inputs)
    for entry in inputs:
        if entry.known:
            ids = np.where(entry.value() != 0, ids, EMPTY).astype(np.int32)
    return [ids]


def select(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """One of the cases where the choice is known, else the union of all."""
    which, *cases = inputs
    if not which.known:
        return elementwise(sets, eqn, cases)
    choice = np.broadcast_to(which.value().astype(np.int32), _shape(eqn))
    stacked = np.stack([np.broadcast_to(case.sets, _shape(eqn)) for case in cases])
    return [np.take_along_axis(stacked, choice[None], 0)[0]]


def pad(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Edges and gaps get the padding value."""
    config = eqn.params["padding_config"]
    mark = padded(np.ones(inputs[0].shape, bool), config, False)
    moved = padded(inputs[0].sets, config, EMPTY)
    return [np.where(mark, moved, inputs[1].sets).astype(np.int32)]


def padded(a: np.ndarray, config: Any, fill: Any) -> np.ndarray:
    """`lax.pad` in NumPy: low and high edges, which may be negative, and gaps."""
    for axis, (low, high, gap) in enumerate(config):
        size = a.shape[axis] + gap * max(a.shape[axis] - 1, 0)
        spread = np.full(_resized(a, axis, size), fill, a.dtype)
        spread[_along(axis, slice(None, None, gap + 1))] = a
        a = spread[_along(axis, slice(max(-low, 0), size - max(-high, 0)))]
        edges = [(0, 0)] * a.ndim
        edges[axis] = (max(low, 0), max(high, 0))
        a = np.pad(a, edges, constant_values=fill)
    return a


def _resized(a: np.ndarray, axis: int, size: int) -> tuple[int, ...]:
    return (*a.shape[:axis], size, *a.shape[axis + 1 :])


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, part)


def reshape(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """The same elements in their order: reshape, squeeze, expand_dims."""
    return [inputs[0].sets.reshape(_shape(eqn))]


def broadcast_in_dim(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Copies along new axes."""
    shape, ids = _shape(eqn), inputs[0].sets
    axes = [1] * len(shape)
    for axis, target in enumerate(eqn.params["broadcast_dimensions"]):
        axes[target] = ids.shape[axis]
    return [np.broadcast_to(ids.reshape(axes), shape)]


def transpose(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Other axes."""
    return [inputs[0].sets.transpose(eqn.params["permutation"])]


def rev(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Axes backwards."""
    return [np.flip(inputs[0].sets, eqn.params["dimensions"])]


def slice_(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """A part."""
    p = eqn.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    bounds = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return [inputs[0].sets[tuple(slice(*bound) for bound in bounds)]]


def concatenate(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Arrays end to end."""
    return [np.concatenate([entry.sets for entry in inputs], eqn.params["dimension"])]


def split(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """An array in pieces."""
    ends = np.cumsum(eqn.params["sizes"])[:-1]
    return np.split(inputs[0].sets, ends, eqn.params["axis"])


def dynamic_slice(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """A part, if it is known where."""
    operand, *starts = inputs
    if not all(start.known for start in starts):
        return [_mixed(sets, operand, _shape(eqn))]
    return [operand.sets[_window(starts, operand.shape, eqn.params["slice_sizes"])]]


def dynamic_update_slice(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """A part is overwritten, if it is known where."""
    operand, update, *starts = inputs
    if not all(start.known for start in starts):
        return [sets.union(operand.sets, _mixed(sets, update, operand.shape))]
    ids = operand.sets.copy()
    ids[_window(starts, operand.shape, update.shape)] = update.sets
    return [ids]


def _mixed(sets: Sets, entry: Entry, shape: tuple[int, ...]) -> np.ndarray:
    """Every element may be any."""
    return np.broadcast_to(sets.union_along(entry.sets.reshape(1, -1), (1,))[0], shape)


def _window(
    starts: list[Entry], shape: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[slice, ...]:
    """Where a part is: JAX moves one that would stick out."""
    at = [int(start.value()) for start in starts]
    firsts = [min(max(a, 0), n - k) for a, n, k in zip(at, shape, sizes, strict=True)]
    return tuple(slice(first, first + k) for first, k in zip(firsts, sizes, strict=True))


def gather(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Elements by index, if that is known; places out of bounds get none."""
    operand, indices = inputs
    if not indices.known:
        return [_mixed(sets, operand, _shape(eqn))]
    names = ("dimension_numbers", "slice_sizes", "mode")
    kept = {name: eqn.params[name] for name in names}
    return [taken(operand.sets, indices.value(), kept)]


def taken(ids: np.ndarray, indices: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    """`lax.gather` of numbers, in NumPy and out again; 0 beyond the bounds."""
    return np.asarray(lax.gather(ids, indices, fill_value=0, **params))


def scatter_add(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Elements are added at indices, if these are known."""
    operand, indices, updates = inputs
    if not indices.known:
        return [sets.union(operand.sets, _mixed(sets, updates, operand.shape))]
    targets, sources = _scattered(eqn, operand.shape, indices, updates.sets)
    size = math.prod(operand.shape)
    groups = np.concatenate([np.arange(size), targets])
    ids = np.concatenate([operand.sets.ravel(), sources])
    return [sets.gather(groups, ids, size).reshape(operand.shape)]


def scatter(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Elements are overwritten at indices that don't repeat, if these are known."""
    operand, indices, updates = inputs
    if not (indices.known and eqn.params["unique_indices"]):
        return [sets.union(operand.sets, _mixed(sets, updates, operand.shape))]
    targets, sources = _scattered(eqn, operand.shape, indices, updates.sets)
    ids = operand.sets.flatten()
    ids[targets] = sources
    return [ids.reshape(operand.shape)]


def _scattered(
    eqn: jex.JaxprEqn, shape: tuple[int, ...], indices: Entry, updates: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The places that updates go to, in an array laid end to end, and the updates."""
    # Where one goes is what a gather with the same indices finds there; 0 beyond the bounds.
    places = np.arange(1, math.prod(shape) + 1, dtype=np.int32).reshape(shape)
    target = taken(places, indices.value(), _as_gather(eqn, shape, updates.shape))
    there = target > 0
    return target[there] - 1, updates[there]


def _as_gather(
    eqn: jex.JaxprEqn, shape: tuple[int, ...], updates: tuple[int, ...]
) -> dict[str, Any]:
    numbers = eqn.params["dimension_numbers"]
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = iter(numbers.update_window_dims)
    sizes = tuple(1 if k in dropped else updates[next(window)] for k in range(len(shape)))
    found = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    return {"dimension_numbers": found, "slice_sizes": sizes, "mode": eqn.params["mode"]}


def _shape(eqn: jex.JaxprEqn) -> tuple[int, ...]:
    aval: Any = eqn.outvars[0].aval
    return tuple(aval.shape)
