"""Dependence rules of elementwise operations and of operations that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from fnopt.jacobians.dependence._rule import Entry, Operation
from fnopt.jacobians.dependence._sets import EMPTY, Sets


def elementwise(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Every output element depends on the elements with the same index in all inputs."""
    ids = np.zeros(op.shape, np.int32)
    for entry in inputs:
        if entry.ids is not None:
            ids = sets.union(ids, entry.ids)
    return [ids]


def each_by_itself(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Operations that return their inputs: output `k` has the sets of input `k`."""
    return [entry.sets for entry in inputs]


def mul(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.mul` by a constant, where products with a zero depend on no input."""
    (ids,) = elementwise(sets, op, inputs)
    for entry in inputs:
        if entry.known:
            ids = np.where(entry.value() != 0, ids, EMPTY).astype(np.int32)
    return [ids]


def select(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.select_n`: the selected case if the selector is known, else the union of all cases."""
    selector, *cases = inputs
    if not selector.known:
        return elementwise(sets, op, cases)
    index = np.broadcast_to(selector.value().astype(np.int32), op.shape)
    stacked = np.stack([np.broadcast_to(case.sets, op.shape) for case in cases])
    return [np.take_along_axis(stacked, index[None], 0)[0]]


def pad(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.pad`: new elements have the set of the padding value."""
    config = op.params["padding_config"]
    is_element = pad_array(np.ones(inputs[0].shape, bool), config, False)
    ids = pad_array(inputs[0].sets, config, EMPTY)
    return [np.where(is_element, ids, inputs[1].sets).astype(np.int32)]


def pad_array(a: np.ndarray, config: Any, fill: Any) -> np.ndarray:
    """`lax.pad` in NumPy, with negative edge padding and interior padding."""
    for axis, (low, high, interior) in enumerate(config):
        size = a.shape[axis] + interior * max(a.shape[axis] - 1, 0)
        dilated = np.full((*a.shape[:axis], size, *a.shape[axis + 1 :]), fill, a.dtype)
        dilated[_slice_axis(axis, slice(None, None, interior + 1))] = a
        a = dilated[_slice_axis(axis, slice(max(-low, 0), size - max(-high, 0)))]
        edges = [(0, 0)] * a.ndim
        edges[axis] = (max(low, 0), max(high, 0))
        a = np.pad(a, edges, constant_values=fill)
    return a


def _slice_axis(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None),) * axis, part)


def reshape(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.reshape` to the sets, after a transposition if `dimensions` isn't None."""
    ids, dimensions = inputs[0].sets, op.params["dimensions"]
    return [(ids if dimensions is None else ids.transpose(dimensions)).reshape(op.shape)]


def squeeze(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.squeeze` or `lax.expand_dims`, which change axes of length one, to the sets."""
    return [inputs[0].sets.reshape(op.shape)]


def broadcast_in_dim(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.broadcast_in_dim` to the sets."""
    shape, ids = op.shape, inputs[0].sets
    axes = [1] * len(shape)
    for axis, target in enumerate(op.params["broadcast_dimensions"]):
        axes[target] = ids.shape[axis]
    return [np.broadcast_to(ids.reshape(axes), shape)]


def transpose(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.transpose` to the sets."""
    return [inputs[0].sets.transpose(op.params["permutation"])]


def rev(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.rev` to the sets."""
    return [np.flip(inputs[0].sets, op.params["dimensions"])]


def slice_(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.slice` to the sets."""
    p = op.params
    strides = p["strides"] or (1,) * len(p["start_indices"])
    bounds = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return [inputs[0].sets[tuple(slice(*bound) for bound in bounds)]]


def concatenate(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.concatenate` to the sets."""
    return [np.concatenate([entry.sets for entry in inputs], op.params["dimension"])]


def split(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.split` to the sets."""
    ends = np.cumsum(op.params["sizes"])[:-1]
    return np.split(inputs[0].sets, ends, op.params["axis"])


def stack(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Stack the sets along a new axis."""
    return [np.stack([entry.sets for entry in inputs], op.params["axis"])]


def unstack(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Split the sets along an axis, which is removed."""
    return list(np.moveaxis(inputs[0].sets, op.params["axis"], 0))


def tile(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Apply `lax.tile` to the sets."""
    return [np.tile(inputs[0].sets, op.params["reps"])]
