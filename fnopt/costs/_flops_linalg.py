"""FLOPs of factorisations and transforms: the leading terms of the textbook counts."""

from __future__ import annotations

import math

import jax.numpy as jnp

from fnopt.costs._graph import Op
from fnopt.costs._work import Work


def _count(op: Op, per_matrix: float, batch: int) -> Work:
    factor = 4 if jnp.issubdtype(op.avals[0].dtype, jnp.complexfloating) else 1
    return Work(elementwise_flops=round(factor * batch * per_matrix))


def _matrix(op: Op) -> tuple[int, int, int]:
    """Batch size, rows and columns of the first operand."""
    *batch, m, n = op.avals[0].shape
    return math.prod(batch), m, n


def cholesky(op: Op) -> Work:
    """n³/3."""
    batch, n, _ = _matrix(op)
    return _count(op, n**3 / 3, batch)


def triangular_solve(op: Op) -> Work:
    """n² for every right-hand side."""
    *_, n, _ = op.avals[0].shape
    return _count(op, n * op.avals[1].size, 1)


def lu(op: Op) -> Work:
    """k² (max - k/3) with k = min(m, n): 2n³/3 for a square matrix."""
    batch, m, n = _matrix(op)
    k = min(m, n)
    return _count(op, k**2 * (max(m, n) - k / 3), batch)


def geqrf(op: Op) -> Work:
    """2 k² (max - k/3): the Householder reflections of a QR factorisation."""
    batch, m, n = _matrix(op)
    k = min(m, n)
    return _count(op, 2 * k**2 * (max(m, n) - k / 3), batch)


def householder_product(op: Op) -> Work:
    """4mnk - 2(m + n)k² + 4k³/3: Q from k reflections."""
    batch, m, n = _matrix(op)
    k = op.avals[1].shape[-1]
    return _count(op, 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3, batch)


def qr(op: Op) -> Work:
    """The reflections, and Q from them if it is used."""
    batch, m, n = _matrix(op)
    k = min(m, n)
    columns = m if op.params.get("full_matrices") else k
    reflections = 2 * k**2 * (max(m, n) - k / 3)
    product = 4 * m * columns * k - 2 * (m + columns) * k**2 + 4 * k**3 / 3
    return _count(op, reflections + (product if op.used[0] else 0), batch)


def tridiagonal_solve(op: Op) -> Work:
    """3n for the elimination and 5n for every right-hand side."""
    n, b = op.avals[0].shape[-1], op.avals[3]
    batch = op.avals[0].size // max(n, 1)
    return _count(op, 3 * n * batch + 5 * b.size, 1)


def fft(op: Op) -> Work:
    """The usual 5 n log2 n for a complex transform of n points, half of it for a real one."""
    n = math.prod(op.params["fft_lengths"])
    sides = (op.avals[0], op.out)
    real = [a for a in sides if not jnp.issubdtype(a.dtype, jnp.complexfloating)]
    points = real[0].size / 2 if real else op.out.size
    return Work(elementwise_flops=round(5 * points * math.log2(max(n, 1))))


def sort(op: Op) -> Work:
    """N ceil(log2 n) comparisons a row."""
    n = op.avals[0].shape[op.params["dimension"]]
    return Work(elementwise_flops=op.avals[0].size * max(n - 1, 0).bit_length())


def top_k(op: Op) -> Work:
    """One comparison of every element with each level of a heap of k."""
    return Work(elementwise_flops=op.avals[0].size * max(op.params["k"], 1).bit_length())
