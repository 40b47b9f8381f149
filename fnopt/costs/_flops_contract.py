"""FLOPs of matrix products and convolutions: two for every multiply-add."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from fnopt.costs._graph import Op
from fnopt.costs._work import Work


def dot_general(op: Op) -> Work:
    """2 x size of the result x length of the contracted axes."""
    (contracted, _), _ = op.params["dimension_numbers"]
    length = _length(op.avals[0], contracted)
    return _multiply_adds(op, op.out.size * length)


def ragged_dot_general(op: Op) -> Work:
    """Every row of the left side meets one of the groups."""
    numbers = op.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    length = _length(op.avals[0], contracted)
    ragged = set(numbers.lhs_ragged_dimensions) & set(contracted)
    # With the contracted axis split into groups, the result has one matrix for each of them.
    groups = op.avals[2].shape[-1] if ragged else 1
    return _multiply_adds(op, op.out.size * length // groups)


def conv_general_dilated(op: Op) -> Work:
    """2 x batch x features out x features in of a group x taps that meet an element.

    Taps that fall on padding or between the elements of a dilated input don't count.
    """
    p = op.params
    numbers = p["dimension_numbers"]
    lhs, rhs = op.avals[:2]
    windows = zip(
        [lhs.shape[d] for d in numbers.lhs_spec[2:]],
        [rhs.shape[d] for d in numbers.rhs_spec[2:]],
        p["window_strides"],
        p["padding"],
        p["lhs_dilation"],
        p["rhs_dilation"],
        strict=True,
    )
    taps = math.prod(valid_taps(*window) for window in windows)
    batch, features = (op.out.shape[d] for d in numbers.out_spec[:2])
    return _multiply_adds(op, batch * features * rhs.shape[numbers.rhs_spec[1]] * taps)


def valid_taps(
    size: int,
    kernel: int,
    stride: int,
    padding: tuple[int, int],
    lhs_dilation: int,
    rhs_dilation: int,
) -> int:
    """Pairs of an output position and a kernel tap that read an element of the input, in one axis.

    Output `o` and tap `k` look at place `o * stride + k * rhs_dilation - padding[0]` of the input,
    whose elements lie `lhs_dilation` apart.
    """
    low, high = padding
    spread = (size - 1) * lhs_dilation + 1 if size else 0
    window = (kernel - 1) * rhs_dilation + 1
    outputs = max(0, (low + spread + high - window) // stride + 1)
    # Every `period`-th output position meets an element, if one of the first ones does.
    period = lhs_dilation // math.gcd(stride, lhs_dilation)
    count = 0
    for k in range(kernel):
        offset = k * rhs_dilation - low
        first = max(0, -(offset // stride))
        last = min(outputs - 1, (spread - 1 - offset) // stride)
        hits = (
            o for o in range(first, first + period) if (o * stride + offset) % lhs_dilation == 0
        )
        start = next(hits, last + 1)
        count += max(0, (last - start) // period + 1)
    return count


def _length(aval: Any, axes: Any) -> int:
    return math.prod(aval.shape[d] for d in axes)


def _multiply_adds(op: Op, count: int) -> Work:
    # A complex multiply-add is four real ones.
    complex_valued = jnp.issubdtype(op.out.dtype, jnp.complexfloating)
    return Work(matmul_flops=2 * count * (4 if complex_valued else 1))
