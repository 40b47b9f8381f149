"""Dependence rules of windows: convolutions, pooling, and their transposes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from fnopt.jacobians.dependence._moves import padded
from fnopt.jacobians.dependence._rule import Entry, Operation
from fnopt.jacobians.dependence._sets import EMPTY, Sets
from fnopt.jacobians.dependence._sums import mixed


def conv(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """A convolution with a kernel: windows of all channels of a group."""
    p, (image, kernel) = op.params, inputs
    if image.ids is None:
        return [_by_kernel(sets, op, kernel.sets)]
    if kernel.ids is not None or p["batch_group_count"] != 1:
        return mixed(sets, op.shapes, inputs)
    numbers, groups = p["dimension_numbers"], p["feature_group_count"]
    ids = image.sets.transpose(numbers.lhs_spec)  # [batch, channels, *space]
    size = tuple(kernel.shape[k] for k in numbers.rhs_spec[2:])
    nonzero = np.ones(size, bool)
    if kernel.known:
        nonzero = np.any(kernel.value().transpose(numbers.rhs_spec) != 0, axis=(0, 1))
    ids = padded(ids, [(0, 0, 0)] * 2 + _edges(p["padding"], p["lhs_dilation"]), EMPTY)
    windows = _windows(ids, size, p["window_strides"], p["rhs_dilation"])[nonzero.ravel()]
    channels = kernel.shape[numbers.rhs_spec[0]]
    per_group = ids.shape[1] // groups
    grouped = windows.reshape(len(windows), ids.shape[0], groups, per_group, *windows.shape[3:])
    found = sets.union_along(grouped, (0, 3))
    found = np.repeat(found, channels // groups, axis=1)
    return [found.transpose(np.argsort(numbers.out_spec))]


def _by_kernel(sets: Sets, op: Operation, ids: np.ndarray) -> np.ndarray:
    """Dependence on the kernel: every output channel depends on all of its filter."""
    numbers = op.params["dimension_numbers"]
    ids = ids.transpose(numbers.rhs_spec)  # [channels, channels of the image, *space]
    shape = [1] * len(op.shape)
    shape[numbers.out_spec[1]] = ids.shape[0]
    union = sets.union_along(ids, tuple(range(1, ids.ndim))).reshape(shape)
    return np.broadcast_to(union, op.shape)


def window_sum(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Sums or maxima over windows: the union over each window."""
    p = op.params
    if any(entry.ids is not None for entry in inputs[1:]):
        return mixed(sets, op.shapes, inputs)
    ids = padded(inputs[0].sets, _edges(p["padding"], p["base_dilation"]), EMPTY)[None, None]
    size = p["window_dimensions"]
    windows = _windows(ids, size, p["window_strides"], p["window_dilation"])
    return [sets.union_along(windows, (0,))[0, 0]]


def window_scatter(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Transpose of a maximum over windows: a source goes to one element of its window."""
    p, (source, operand) = op.params, inputs
    if operand.ids is not None:
        return mixed(sets, op.shapes, inputs)
    places = np.arange(math.prod(op.shape)).reshape(op.shape)
    places = padded(places, [(low, high, 0) for low, high in p["padding"]], -1)
    ones = (1,) * places.ndim
    windows = _windows(places[None, None], p["window_dimensions"], p["window_strides"], ones)
    targets = windows[:, 0, 0]
    sources = np.broadcast_to(source.sets, targets.shape)
    inside = targets >= 0
    return [sets.gather(targets[inside], sources[inside], math.prod(op.shape)).reshape(op.shape)]


def _edges(padding: Any, dilation: Any) -> list[tuple[int, int, int]]:
    return [(low, high, d - 1) for (low, high), d in zip(padding, dilation, strict=True)]


def _windows(ids: np.ndarray, size: Any, strides: Any, dilation: Any) -> np.ndarray:
    """The ids that each place of a window sees, of `[a, b, *space]`: `[places, a, b, *moves]`."""
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    moves = [
        max((n - k) // s + 1, 0) for n, k, s in zip(ids.shape[2:], reach, strides, strict=True)
    ]
    seen = []
    for place in itertools.product(*map(range, size)):
        along = zip(place, dilation, strides, moves, strict=True)
        parts = [slice(i * d, i * d + max((n - 1) * s + 1, 0), s) for i, d, s, n in along]
        seen.append(ids[(slice(None), slice(None), *parts)])
    return np.stack(seen)
