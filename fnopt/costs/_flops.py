"""FLOPs of matrix products, convolutions, factorizations and Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from fnopt.costs._graph import Op
from fnopt.costs._roofline import Work


def _count(op: Op, per_matrix: float, batch: int) -> Work:
    # A complex multiply-add takes four real multiply-adds.
    factor = 4 if jnp.issubdtype(op.avals[0].dtype, jnp.complexfloating) else 1
    return Work(elementwise_flops=round(factor * batch * per_matrix))


def _matrix(op: Op) -> tuple[int, int, int]:
    """Batch size, rows and columns of the first operand."""
    *batch, m, n = op.avals[0].shape
    return math.prod(batch), m, n


def cholesky(op: Op) -> Work:
    """FLOPs n³/3 of a Cholesky factorization."""
    batch, n, _ = _matrix(op)
    return _count(op, n**3 / 3, batch)


def triangular_solve(op: Op) -> Work:
    """FLOPs n² per right-hand side of a triangular solve."""
    *_, n, _ = op.avals[0].shape
    return _count(op, n * op.avals[1].size, 1)


def lu(op: Op) -> Work:
    """FLOPs k² (max(m, n) - k/3) of an LU factorization, with k = min(m, n).

    For a square matrix this is 2n³/3.
    """
    batch, m, n = _matrix(op)
    k = min(m, n)
    return _count(op, k**2 * (max(m, n) - k / 3), batch)


def geqrf(op: Op) -> Work:
    """FLOPs 2 k² (max(m, n) - k/3) of the Householder reflections of a QR factorization."""
    batch, m, n = _matrix(op)
    k = min(m, n)
    return _count(op, 2 * k**2 * (max(m, n) - k / 3), batch)


def householder_product(op: Op) -> Work:
    """FLOPs 4mnk - 2(m + n)k² + 4k³/3 of Q from k reflections."""
    batch, m, n = _matrix(op)
    k = op.avals[1].shape[-1]
    return _count(op, 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3, batch)


def qr(op: Op) -> Work:
    """FLOPs of the Householder reflections, and of Q if it is used."""
    batch, m, n = _matrix(op)
    k = min(m, n)
    columns = m if op.params.get("full_matrices") else k
    reflections = 2 * k**2 * (max(m, n) - k / 3)
    product = 4 * m * columns * k - 2 * (m + columns) * k**2 + 4 * k**3 / 3
    return _count(op, reflections + (product if op.used[0] else 0), batch)


def tridiagonal_solve(op: Op) -> Work:
    """FLOPs of the Thomas algorithm: 3n for the elimination and 5n per right-hand side."""
    n, b = op.avals[0].shape[-1], op.avals[3]
    batch = op.avals[0].size // max(n, 1)
    return _count(op, 3 * n * batch + 5 * b.size, 1)


def fft(op: Op) -> Work:
    """FLOPs 5 n log2 n of a complex transform of n points; half for a real transform."""
    n = math.prod(op.params["fft_lengths"])
    sides = (op.avals[0], op.out)
    real = [a for a in sides if not jnp.issubdtype(a.dtype, jnp.complexfloating)]
    points = real[0].size / 2 if real else op.out.size
    return Work(elementwise_flops=round(5 * points * math.log2(max(n, 1))))


def sort(op: Op) -> Work:
    """Comparisons of a merge sort: ceil(log2 n) per element of an axis of length n."""
    n = op.avals[0].shape[op.params["dimension"]]
    return Work(elementwise_flops=op.avals[0].size * max(n - 1, 0).bit_length())


def top_k(op: Op) -> Work:
    """Comparisons of every element with the levels of a heap of size k."""
    return Work(elementwise_flops=op.avals[0].size * max(op.params["k"], 1).bit_length())


def dot_general(op: Op) -> Work:
    """FLOPs 2 x size of the result x length of the contracted axes."""
    (contracted, _), _ = op.params["dimension_numbers"]
    length = _length(op.avals[0], contracted)
    return _multiply_adds(op, op.out.size * length)


def ragged_dot_general(op: Op) -> Work:
    """FLOPs of the product of every row of the left operand with the matrix of its group."""
    numbers = op.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    length = _length(op.avals[0], contracted)
    ragged = set(numbers.lhs_ragged_dimensions) & set(contracted)
    # If the contracted axis is divided into groups, the result has one matrix per group.
    groups = op.avals[2].shape[-1] if ragged else 1
    return _multiply_adds(op, op.out.size * length // groups)


def conv_general_dilated(op: Op) -> Work:
    """FLOPs 2 x batch x output features x input features of a group x valid taps.

    Kernel taps that read padding, or gaps between the elements of a dilated input, aren't counted.
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
    """Number of pairs of an output position and a kernel tap that read an input element.

    In one axis, output `o` and tap `k` read position `o * stride + k * rhs_dilation - padding[0]`
    of the input, whose elements are `lhs_dilation` apart.
    """
    low, high = padding
    extent = (size - 1) * lhs_dilation + 1 if size else 0
    window = (kernel - 1) * rhs_dilation + 1
    outputs = max(0, (low + extent + high - window) // stride + 1)
    # The outputs that read an element with tap `k` are `period` apart, from the first on.
    period = lhs_dilation // math.gcd(stride, lhs_dilation)
    count = 0
    for k in range(kernel):
        offset = k * rhs_dilation - low
        first = max(0, -(offset // stride))
        last = min(outputs - 1, (extent - 1 - offset) // stride)
        hits = (
            o for o in range(first, first + period) if (o * stride + offset) % lhs_dilation == 0
        )
        start = next(hits, last + 1)
        count += max(0, (last - start) // period + 1)
    return count


def _length(aval: Any, axes: Any) -> int:
    return math.prod(aval.shape[d] for d in axes)


def _multiply_adds(op: Op, count: int) -> Work:
    # A complex multiply-add takes four real multiply-adds.
    complex_valued = jnp.issubdtype(op.out.dtype, jnp.complexfloating)
    return Work(matmul_flops=2 * count * (4 if complex_valued else 1))
