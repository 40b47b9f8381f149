"""Dependence rules of reductions, windows, convolutions, matrix products and linear solves."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from fnopt.jacobians.dependence._moves import pad_array
from fnopt.jacobians.dependence._rule import Entry, Operation
from fnopt.jacobians.dependence._sets import EMPTY, Sets

# Largest number of products for which the zeros of a known matrix are used. The indices of as many
# products take 0.4 GB: an int32 and an int64 each.
_MOST_PRODUCTS = 2**25


def mixed(sets: Sets, shapes: list[tuple[int, ...]], inputs: list[Entry]) -> list[np.ndarray]:
    """Fallback rule: every element of the outputs has the union of all sets of the inputs."""
    parts = [entry.ids.ravel() for entry in inputs if entry.ids is not None]
    union = sets.union_along(np.concatenate(parts)[None], (1,))[0]
    return [np.broadcast_to(union, shape) for shape in shapes]


def reduce_sum(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.reduce_sum`: the union along the reduced axes."""
    return [sets.union_along(inputs[0].sets, op.params["axes"])]


def cumsum(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.cumsum`: cumulative unions along an axis."""
    return [cumulative_union(sets, inputs[0].sets, op.params["axis"], op.params["reverse"])]


def cumulative_union(sets: Sets, ids: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    """Cumulative unions along an axis, from the first element or from the last."""
    ids = np.moveaxis(ids, axis, 0)
    ids = (ids[::-1] if reverse else ids).copy()
    # Each round doubles the number of preceding elements that are united in an element.
    step = 1
    while step < ids.shape[0]:
        ids[step:] = sets.union(ids[step:], ids[:-step])
        step *= 2
    return np.moveaxis(ids[::-1] if reverse else ids, 0, axis)


def fft(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.fft`: the union along the transformed axes, which are the last ones."""
    axes = len(op.params["fft_lengths"])
    ids = inputs[0].sets
    union = sets.union_along(ids, tuple(range(ids.ndim - axes, ids.ndim)))
    return [np.broadcast_to(union.reshape(*union.shape, *(1,) * axes), op.shape)]


def dot_general(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.dot_general`: the union over the contracted axes, without zeros of a known factor.

    In a linear program, one factor depends on no input. Inside a solver, both factors may depend
    on inputs.
    """
    (contract_a, contract_b), (batch_a, batch_b) = op.params["dimension_numbers"]
    left, right = inputs
    if left.ids is not None and right.ids is not None:
        rows = sets.union_along(_as_matrices(left.ids, batch_a, contract_a), (2,))
        columns = sets.union_along(_as_matrices(right.ids, batch_b, contract_b), (2,))
        return [sets.union(rows[:, :, None], columns[:, None, :]).reshape(op.shape)]
    is_swapped = left.ids is None
    if is_swapped:
        left, right = right, left
        contract_a, contract_b, batch_a, batch_b = contract_b, contract_a, batch_b, batch_a
    A = _as_matrices(left.sets, batch_a, contract_a)  # [batch, rows, contracted]
    B, columns = _nonzero_mask(right, batch_b, contract_b)
    product = _product(sets, A, B, columns)  # [batch, rows, columns]
    if is_swapped:
        product = product.transpose(0, 2, 1)
    return [product.reshape(op.shape)]


def _nonzero_mask(
    entry: Entry, batch: tuple[int, ...], contract: tuple[int, ...]
) -> tuple[np.ndarray | None, int]:
    """Mask `[batch, columns, contracted]` of nonzeros (None if unknown), and number of columns."""
    free = set(range(len(entry.shape))) - {*batch, *contract}
    columns = math.prod(entry.shape[k] for k in free)
    return (_as_matrices(entry.value() != 0, batch, contract) if entry.known else None), columns


def _as_matrices(a: np.ndarray, batch: tuple[int, ...], contract: tuple[int, ...]) -> np.ndarray:
    """Transpose and reshape an array to `[batch, free, contracted]`."""
    free = [k for k in range(a.ndim) if k not in {*batch, *contract}]
    shape = [math.prod(a.shape[k] for k in axes) for axes in (batch, free, contract)]
    return a.transpose(*batch, *free, *contract).reshape(shape)


def _product(sets: Sets, A: np.ndarray, B: np.ndarray | None, columns: int) -> np.ndarray:
    """Unions `[batch, rows, columns]` of the sets `A` over the contracted axis, masked by `B`."""
    batch, rows, _ = A.shape
    if B is None or B.all() or np.count_nonzero(B) * rows > _MOST_PRODUCTS:
        union = sets.union_along(A, (2,))
        return np.broadcast_to(union[:, :, None], (batch, rows, columns))
    b, column, k = np.nonzero(B)
    ids = A[b, :, k]  # [nonzeros, rows]
    groups = (b[:, None] * rows + np.arange(rows)) * columns + column[:, None]
    product = sets.gather(groups.ravel(), ids.ravel(), batch * rows * columns)
    return product.reshape(batch, rows, columns)


def triangular_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`triangular_solve`: cumulative unions, as in forward or backward substitution."""
    p, (matrix, right) = op.params, inputs
    if matrix.ids is not None:
        return mixed(sets, op.shapes, inputs)
    left = p["left_side"]
    forward = (p["lower"] != p["transpose_a"]) == left
    axis = right.sets.ndim - (2 if left else 1)
    return [cumulative_union(sets, right.sets, axis, not forward)]


def tridiagonal_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`tridiagonal_solve`: the union over each right-hand side."""
    *diagonals, right = inputs
    if any(entry.ids is not None for entry in diagonals):
        return mixed(sets, op.shapes, inputs)
    axis = right.sets.ndim - 2
    union = sets.union_along(right.sets, (axis,))
    return [np.broadcast_to(np.expand_dims(union, axis), op.shape)]


def linear_solve(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """`lax.custom_linear_solve`: the dependence in the program that computes the solution."""
    lengths, solve = op.params["const_lengths"], op.params["jaxprs"].solve
    count = sum(lengths)
    # The constants of the programs are in the order matvec, vecmat, solve, transposed solve.
    start = lengths.matvec + lengths.vecmat
    consts, right = inputs[start : start + lengths.solve], inputs[count:]
    if any(entry.ids is not None for entry in inputs[:count]):
        return mixed(sets, op.shapes, inputs)
    return [entry.sets for entry in op.run(solve, consts + right)]


def conv(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Convolution: the union over a window of the image, and over all channels of a group."""
    p, (image, kernel) = op.params, inputs
    if image.ids is None:
        return [_kernel_dependence(sets, op, kernel.sets)]
    if kernel.ids is not None or p["batch_group_count"] != 1:
        return mixed(sets, op.shapes, inputs)
    numbers, groups = p["dimension_numbers"], p["feature_group_count"]
    ids = image.sets.transpose(numbers.lhs_spec)  # [batch, channels, *space]
    size = tuple(kernel.shape[k] for k in numbers.rhs_spec[2:])
    nonzero = np.ones(size, bool)
    if kernel.known:
        nonzero = np.any(kernel.value().transpose(numbers.rhs_spec) != 0, axis=(0, 1))
    ids = pad_array(ids, [(0, 0, 0)] * 2 + _edges(p["padding"], p["lhs_dilation"]), EMPTY)
    windows = _windows(ids, size, p["window_strides"], p["rhs_dilation"])[nonzero.ravel()]
    channels = kernel.shape[numbers.rhs_spec[0]]
    per_group = ids.shape[1] // groups
    grouped = windows.reshape(len(windows), ids.shape[0], groups, per_group, *windows.shape[3:])
    union = sets.union_along(grouped, (0, 3))  # [batch, groups, *space]
    union = np.repeat(union, channels // groups, axis=1)
    return [union.transpose(np.argsort(numbers.out_spec))]


def _kernel_dependence(sets: Sets, op: Operation, ids: np.ndarray) -> np.ndarray:
    """Dependence on the kernel: an output channel depends on all elements of its filter."""
    numbers = op.params["dimension_numbers"]
    ids = ids.transpose(numbers.rhs_spec)  # [channels, channels of the image, *space]
    shape = [1] * len(op.shape)
    shape[numbers.out_spec[1]] = ids.shape[0]
    union = sets.union_along(ids, tuple(range(1, ids.ndim))).reshape(shape)
    return np.broadcast_to(union, op.shape)


def window_sum(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Sums or maxima over windows: the union over each window of the first input."""
    p = op.params
    if any(entry.ids is not None for entry in inputs[1:]):
        return mixed(sets, op.shapes, inputs)
    ids = pad_array(inputs[0].sets, _edges(p["padding"], p["base_dilation"]), EMPTY)[None, None]
    size = p["window_dimensions"]
    windows = _windows(ids, size, p["window_strides"], p["window_dilation"])
    return [sets.union_along(windows, (0,))[0, 0]]


def window_scatter(sets: Sets, op: Operation, inputs: list[Entry]) -> list[np.ndarray]:
    """Transpose of a maximum over windows: each window may add its source to any element."""
    p, (source, operand) = op.params, inputs
    if operand.ids is not None:
        return mixed(sets, op.shapes, inputs)
    indices = np.arange(math.prod(op.shape)).reshape(op.shape)
    indices = pad_array(indices, [(low, high, 0) for low, high in p["padding"]], -1)
    ones = (1,) * indices.ndim
    windows = _windows(indices[None, None], p["window_dimensions"], p["window_strides"], ones)
    targets = windows[:, 0, 0]
    sources = np.broadcast_to(source.sets, targets.shape)
    in_bounds = targets >= 0
    return [
        sets.gather(targets[in_bounds], sources[in_bounds], math.prod(op.shape)).reshape(op.shape)
    ]


def _edges(padding: Any, dilation: Any) -> list[tuple[int, int, int]]:
    return [(low, high, d - 1) for (low, high), d in zip(padding, dilation, strict=True)]


def _windows(ids: np.ndarray, size: Any, strides: Any, dilation: Any) -> np.ndarray:
    """Extract all windows of an array `[a, b, *space]`.

    The result has shape `[elements, a, b, *windows]`: for each element of a window, the values of
    this element in all windows.
    """
    extent = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    counts = [
        max((n - k) // s + 1, 0) for n, k, s in zip(ids.shape[2:], extent, strides, strict=True)
    ]
    elements = []
    for index in itertools.product(*map(range, size)):
        axes = zip(index, dilation, strides, counts, strict=True)
        parts = [slice(i * d, i * d + max((n - 1) * s + 1, 0), s) for i, d, s, n in axes]
        elements.append(ids[(slice(None), slice(None), *parts)])
    return np.stack(elements)
