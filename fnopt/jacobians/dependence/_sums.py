"""Dependence rules of sums: reductions, windows, products of matrices, linear solves."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from fnopt.jacobians.dependence._moves import padded
from fnopt.jacobians.dependence._rule import Entry, Operation
from fnopt.jacobians.dependence._sets import EMPTY, Sets

_MOST_PRODUCTS = 2**25  # above, zeros of a known matrix are ignored


def mixed(sets: Sets, shapes: list[tuple[int, ...]], inputs: list[Entry]) -> list[np.ndarray]:
    """The fallback rule: each output depends on everything on which any input depends."""
    parts = [entry.ids.ravel() for entry in inputs if entry.ids is not None]
    union = sets.union_along(np.concatenate(parts)[None], (1,))[0]
    return [np.broadcast_to(union, shape) for shape in shapes]


def reduce_sum(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Reductions along axes."""
    return [sets.union_along(inputs[0].sets, op.params["axes"])]


def cumsum(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Cumulative sums along an axis, in a logarithmic number of unions."""
    return [cumulated(sets, inputs[0].sets, op.params["axis"], op.params["reverse"])]


def cumulated(sets: Sets, ids: np.ndarray, axis: int, backwards: bool) -> np.ndarray:
    """Cumulative unions along an axis, forward or backward."""
    ids = np.moveaxis(ids, axis, 0)
    ids = (ids[::-1] if backwards else ids).copy()
    step = 1
    while step < ids.shape[0]:
        ids[step:] = sets.union(ids[step:], ids[:-step])
        step *= 2
    return np.moveaxis(ids[::-1] if backwards else ids, 0, axis)


def fft(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.fft`: the union over the last axes."""
    axes = len(op.params["fft_lengths"])
    ids = inputs[0].sets
    union = sets.union_along(ids, tuple(range(ids.ndim - axes, ids.ndim)))
    return [np.broadcast_to(union.reshape(*union.shape, *(1,) * axes), op.shape)]


def dot_general(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.dot_general`, by the nonzero entries of a factor if it is known.

    In the linear program of a derivative one factor is constant; inside a solver both may
    depend on the inputs.
    """
    (contract_a, contract_b), (batch_a, batch_b) = op.params["dimension_numbers"]
    left, right = inputs
    if left.ids is not None and right.ids is not None:
        rows = sets.union_along(_as_matrices(left.ids, batch_a, contract_a), (2,))
        columns = sets.union_along(_as_matrices(right.ids, batch_b, contract_b), (2,))
        return [sets.union(rows[:, :, None], columns[:, None, :]).reshape(op.shape)]
    swapped = left.ids is None
    if swapped:
        left, right = right, left
        contract_a, contract_b, batch_a, batch_b = contract_b, contract_a, batch_b, batch_a
    A = _as_matrices(left.sets, batch_a, contract_a)  # [batch, rows, contracted]
    B, columns = _nonzero(right, batch_b, contract_b)
    found = _product(sets, A, B, columns)  # [batch, rows, columns]
    if swapped:
        found = found.transpose(0, 2, 1)
    return [found.reshape(op.shape)]


def _nonzero(
    entry: Entry, batch: tuple[int, ...], contract: tuple[int, ...]
) -> tuple[np.ndarray | None, int]:
    """The nonzero entries of a matrix, `[batch, columns, contracted]`; its number of columns."""
    free = set(range(len(entry.shape))) - {*batch, *contract}
    columns = math.prod(entry.shape[k] for k in free)
    return (_as_matrices(entry.value() != 0, batch, contract) if entry.known else None), columns


def _as_matrices(a: np.ndarray, batch: tuple[int, ...], contract: tuple[int, ...]) -> np.ndarray:
    free = [k for k in range(a.ndim) if k not in {*batch, *contract}]
    shape = [math.prod(a.shape[k] for k in axes) for axes in (batch, free, contract)]
    return a.transpose(*batch, *free, *contract).reshape(shape)


def _product(sets: Sets, A: np.ndarray, B: np.ndarray | None, columns: int) -> np.ndarray:
    batch, rows, _ = A.shape
    if B is None or B.all() or np.count_nonzero(B) * rows > _MOST_PRODUCTS:
        union = sets.union_along(A, (2,))
        return np.broadcast_to(union[:, :, None], (batch, rows, columns))
    b, column, k = np.nonzero(B)
    ids = A[b, :, k]  # [nonzeros, rows]
    groups = (b[:, None] * rows + np.arange(rows)) * columns + column[:, None]
    found = sets.gather(groups.ravel(), ids.ravel(), batch * rows * columns)
    return found.reshape(batch, rows, columns)


def triangular_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`triangular_solve`: forward or backward substitution for every right-hand side."""
    p, (matrix, right) = op.params, inputs
    if matrix.ids is not None:
        return mixed(sets, op.shapes, inputs)
    left = p["left_side"]
    forward = (p["lower"] != p["transpose_a"]) == left
    return [cumulated(sets, right.sets, right.sets.ndim - (2 if left else 1), not forward)]


def tridiagonal_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`tridiagonal_solve`: each right-hand side separately."""
    *diagonals, right = inputs
    if any(entry.ids is not None for entry in diagonals):
        return mixed(sets, op.shapes, inputs)
    axis = right.sets.ndim - 2
    union = sets.union_along(right.sets, (axis,))
    return [np.broadcast_to(np.expand_dims(union, axis), op.shape)]


def linear_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.custom_linear_solve`: the dependence of its program for the solution."""
    lengths, solve = op.params["const_lengths"], op.params["jaxprs"].solve
    count = sum(lengths)
    before = lengths.matvec + lengths.vecmat
    consts, right = inputs[before : before + lengths.solve], inputs[count:]
    if any(entry.ids is not None for entry in inputs[:count]):
        return mixed(sets, op.shapes, inputs)
    return [entry.sets for entry in op.run(solve, consts + right)]


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
    """Set indices at each window position, from `[a, b, *space]`: `[positions, a, b, *moves]`."""
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
