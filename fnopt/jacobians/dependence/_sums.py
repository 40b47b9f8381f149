"""Linear operations that add elements up: sums, products of matrices, convolutions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from jax.extend import core as jex

from fnopt.jacobians.dependence._entry import Entry
from fnopt.jacobians.dependence._moves import padded
from fnopt.jacobians.dependence._sets import EMPTY, Sets

_MOST_PRODUCTS = 2**25  # beyond, a matrix that is known isn't looked at for zeros


def mixed(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """What holds for every operation: any output may depend on all that its inputs depend on."""
    parts = [entry.ids.ravel() for entry in inputs if entry.ids is not None]
    one = sets.union_along(np.concatenate(parts)[None], (1,))[0]
    return [np.broadcast_to(one, _aval(v).shape) for v in eqn.outvars]


def reduce_sum(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Sums along axes."""
    return [sets.union_along(inputs[0].sets, eqn.params["axes"])]


def cumsum(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Sums of all that come before, in as many rounds as the length has bits."""
    axis, backwards = eqn.params["axis"], eqn.params["reverse"]
    ids = np.moveaxis(inputs[0].sets, axis, 0)
    ids = (ids[::-1] if backwards else ids).copy()
    step = 1
    while step < ids.shape[0]:
        ids[step:] = sets.union(ids[step:], ids[:-step])
        step *= 2
    return [np.moveaxis(ids[::-1] if backwards else ids, 0, axis)]


def last_axes(sets: Sets, ids: np.ndarray, axes: int) -> np.ndarray:
    """Everything along the last axes mixes, the others are a batch."""
    kept = tuple(range(ids.ndim - axes, ids.ndim))
    mixed = sets.union_along(ids, kept)
    return np.broadcast_to(mixed.reshape(*mixed.shape, *(1,) * axes), ids.shape)


def triangular_solve(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Systems of a batch, each by itself; a matrix with a dependence mixes all."""
    matrix, right = inputs
    if matrix.ids is not None:
        return mixed(sets, eqn, inputs)
    return [last_axes(sets, right.sets, 2)]


def fft(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Transforms along the last axes, each of a batch by itself."""
    axes = len(eqn.params["fft_lengths"])
    ids = inputs[0].sets
    one = sets.union_along(ids, tuple(range(ids.ndim - axes, ids.ndim)))
    return [np.broadcast_to(one.reshape(*one.shape, *(1,) * axes), _aval(eqn.outvars[0]).shape)]


def dot_general(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """A product with a matrix, by the places where that isn't zero if it is known."""
    (contract_a, contract_b), (batch_a, batch_b) = eqn.params["dimension_numbers"]
    left, right = inputs
    if left.ids is not None and right.ids is not None:
        return mixed(sets, eqn, inputs)
    swapped = left.ids is None
    if swapped:
        left, right = right, left
        contract_a, contract_b, batch_a, batch_b = contract_b, contract_a, batch_b, batch_a
    A = _laid(left.sets, batch_a, contract_a)  # [batch, rows, contracted]
    B, columns = _nonzero(right, batch_b, contract_b)
    found = _product(sets, A, B, columns)  # [batch, rows, columns]
    if swapped:
        found = found.transpose(0, 2, 1)
    return [found.reshape(_aval(eqn.outvars[0]).shape)]


def _nonzero(
    entry: Entry, batch: tuple[int, ...], contract: tuple[int, ...]
) -> tuple[np.ndarray | None, int]:
    """Where a matrix isn't zero, as `[batch, columns, contracted]`; and how many columns."""
    free = set(range(len(entry.shape))) - {*batch, *contract}
    columns = math.prod(entry.shape[k] for k in free)
    return (_laid(entry.value() != 0, batch, contract) if entry.known else None), columns


def _laid(a: np.ndarray, batch: tuple[int, ...], contract: tuple[int, ...]) -> np.ndarray:
    free = [k for k in range(a.ndim) if k not in {*batch, *contract}]
    shape = [math.prod(a.shape[k] for k in axes) for axes in (batch, free, contract)]
    return a.transpose(*batch, *free, *contract).reshape(shape)


def _product(sets: Sets, A: np.ndarray, B: np.ndarray | None, columns: int) -> np.ndarray:
    batch, rows, _ = A.shape
    if B is None or B.all() or np.count_nonzero(B) * rows > _MOST_PRODUCTS:
        one = sets.union_along(A, (2,))
        return np.broadcast_to(one[:, :, None], (batch, rows, columns))
    b, column, k = np.nonzero(B)
    ids = A[b, :, k]  # [nonzeros, rows]
    groups = (b[:, None] * rows + np.arange(rows)) * columns + column[:, None]
    found = sets.gather(groups.ravel(), ids.ravel(), batch * rows * columns)
    return found.reshape(batch, rows, columns)


def conv(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """A convolution with a kernel: windows of all channels of a group."""
    p, (image, kernel) = eqn.params, inputs
    if kernel.ids is not None or p["batch_group_count"] != 1:
        return mixed(sets, eqn, inputs)
    numbers, groups = p["dimension_numbers"], p["feature_group_count"]
    ids = image.sets.transpose(numbers.lhs_spec)  # [batch, channels, *space]
    size = tuple(kernel.shape[k] for k in numbers.rhs_spec[2:])
    there = np.ones(size, bool)
    if kernel.known:
        there = np.any(kernel.value().transpose(numbers.rhs_spec) != 0, axis=(0, 1))
    ids = padded(ids, [(0, 0, 0)] * 2 + _edges(p["padding"], p["lhs_dilation"]), EMPTY)
    windows = _windows(ids, size, p["window_strides"], p["rhs_dilation"])[there.ravel()]
    grouped = windows.reshape(len(windows), ids.shape[0], groups, -1, *windows.shape[3:])
    found = sets.union_along(grouped, (0, 3))
    channels = kernel.shape[numbers.rhs_spec[0]]
    found = np.repeat(found, channels // groups, axis=1)
    return [found.transpose(np.argsort(numbers.out_spec))]


def reduce_window_sum(sets: Sets, eqn: jex.JaxprEqn, inputs: list[Entry]) -> list[np.ndarray]:
    """Sums over windows."""
    p = eqn.params
    ids = padded(inputs[0].sets, _edges(p["padding"], p["base_dilation"]), EMPTY)[None, None]
    size = p["window_dimensions"]
    windows = _windows(ids, size, p["window_strides"], p["window_dilation"])
    return [sets.union_along(windows, (0,))[0, 0]]


def _edges(padding: Any, dilation: Any) -> list[tuple[int, int, int]]:
    return [(low, high, d - 1) for (low, high), d in zip(padding, dilation, strict=True)]


def _windows(ids: np.ndarray, size: Any, strides: Any, dilation: Any) -> np.ndarray:
    """What each place of a window sees, of ids `[a, b, *space]`: `[places, a, b, *moves]`."""
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    moves = [(n - k) // s + 1 for n, k, s in zip(ids.shape[2:], reach, strides, strict=True)]
    seen = []
    for place in itertools.product(*map(range, size)):
        along = zip(place, dilation, strides, moves, strict=True)
        parts = [slice(i * d, i * d + (n - 1) * s + 1, s) for i, d, s, n in along]
        seen.append(ids[(slice(None), slice(None), *parts)])
    return np.stack(seen)


def _aval(variable: Any) -> Any:
    return variable.aval
