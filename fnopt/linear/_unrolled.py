"""Batched normal equations of many small problems, in unrolled arithmetic.

The last axis is the batch of problems. A *lane* is one problem of the batch, as in a vector
register. A scalar of the algebra is an array of shape `[lanes]`, so each operation is a vector
instruction for many problems. Loops over unknowns are unrolled in Python, which is suitable for up
to a dozen unknowns.

For 1,000 problems of 1 to 10 unknowns, factorization and solution took 0.27 to 0.41 of the CPU time
of a batched `jnp.linalg.cholesky` (LAPACK). Compilation took 0.4 times (1 unknown) to 5 times (6
unknowns) as long.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Rows = tuple[tuple[jax.Array, ...], ...]
"""A lower triangle: row `i` contains entries 0 to `i`, each of shape `[lanes]`."""

# On a CPU, XLA vectorizes a sum over points across the lanes only if it unrolls the loop over the
# points. It unrolls only small loops: a few points of a few terms. Without stages a fit took up to
# three times as long; with more points or terms in a stage, up to five times as long. Stages of
# short sums also have smaller rounding errors in float32.
_POINTS, _TERMS = 5, 11
_PARTIAL = 10  # block size for sums of partial sums, which don't evaluate the model


class NormalEquations(NamedTuple):
    """The sums over points in the normal equations, each of shape `[lanes]`."""

    square: jax.Array  # r^T r
    g: tuple[jax.Array, ...]  # J^T r
    A: Rows  # J^T J


class Factor(NamedTuple):
    r"""Cholesky factors :math:`L L^T` of many small matrices."""

    L: Rows  # strictly lower triangle; row i has i entries
    diagonal: tuple[jax.Array, ...]  # L_ii, infinite without a positive pivot


def normal_equations(columns: Sequence[jax.Array], r: jax.Array) -> NormalEquations:
    r"""Compute the sums :math:`r^T r`, :math:`J^T r` and :math:`J^T J` of every problem.

    Args:
        columns: The columns of the Jacobians: `n` arrays of shape `[m, lanes]`.
        r: The residuals, of shape `[m, lanes]`.

    Returns:
        The sums.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import normal_equations
        >>> one = normal_equations([jnp.ones((3, 2))], jnp.asarray([[1.0, 2.0]] * 3))
        >>> print(one.square, one.g[0], one.A[0][0])
        [ 3. 12.] [3. 6.] [3. 3.]
    """
    n = len(columns)
    # Without the barrier XLA would evaluate the model again for each of the sums.
    *J, r = lax.optimization_barrier((*columns, r))
    products = [r * r, *(c * r for c in J)]
    products += [J[i] * J[j] for i in range(n) for j in range(i + 1)]
    square, *sums = sum_points(products)
    g, entries = tuple(sums[:n]), iter(sums[n:])
    A = tuple(tuple(next(entries) for _ in range(i + 1)) for i in range(n))
    return NormalEquations(square, g, A)


def sum_points(terms: list[jax.Array]) -> list[jax.Array]:
    """Sum arrays over their first axis, several arrays in one reduction."""
    groups = [terms[i : i + _TERMS] for i in range(0, len(terms), _TERMS)]
    return [total for group in groups for total in _sum_in_stages(group, _POINTS)]


def _sum_in_stages(terms: Sequence[jax.Array], block: int) -> Sequence[jax.Array]:
    """Sum over the first axis in blocks of rows; then sum the partial sums."""
    m = terms[0].shape[0]
    if m <= block:
        return _sum_together(tuple(terms), 0)
    end = m - m % block
    blocks = tuple(t[:end].reshape(-1, block, *t.shape[1:]) for t in terms)
    partial = _sum_together(blocks, 1)
    if end < m:
        last = _sum_together(tuple(t[end:] for t in terms), 0)
        partial = tuple(jnp.concatenate([p, e[None]]) for p, e in zip(partial, last, strict=True))
    return _sum_in_stages(partial, _PARTIAL)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _sum_together(terms: tuple[jax.Array, ...], axis: int) -> tuple[jax.Array, ...]:
    """Sum several terms over an axis in one loop."""
    zeros = (jnp.zeros((), terms[0].dtype),) * len(terms)

    def add(a: tuple[jax.Array, ...], b: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        return tuple(x + y for x, y in zip(a, b, strict=True))

    return tuple(lax.reduce(terms, zeros, add, (axis,)))


@_sum_together.defjvp
def _sums_of_tangents(axis: int, primals: Any, tangents: Any) -> Any:
    # Since JAX 0.12, the derivative rule of `lax.reduce` fails if the tangent of a term is zero.
    (terms,), (terms_dot,) = primals, tangents
    return _sum_together(terms, axis), tuple(jnp.sum(t_dot, axis) for t_dot in terms_dot)


def unrolled_cholesky(A: Rows, damping: jax.Array, least: float | jax.Array = 0.0) -> Factor:
    r"""Factor :math:`A + \lambda I = L L^T` for every problem.

    If a pivot isn't above `least`, its row and column are treated as zero. For a semidefinite
    matrix, the result is a factor of the submatrix of the remaining rows and columns.

    Args:
        A: The lower triangles.
        damping: The number added to the diagonal, of shape `[lanes]`.
        least: The number that a pivot must exceed.

    Returns:
        The factors.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import unrolled_cholesky
        >>> A = ((jnp.asarray([4.0, 1.0]),), (jnp.asarray([2.0, 1.0]), jnp.asarray([5.0, 1.0])))
        >>> factor = unrolled_cholesky(A, jnp.zeros(2))
        >>> print(factor.L[1][0], factor.diagonal[1])
        [1. 1.] [ 2. inf]
    """
    L: list[list[jax.Array]] = []
    diagonal: list[jax.Array] = []
    for i, row in enumerate(A):
        L.append([])
        for j in range(i):
            L[i].append((row[j] - _dot(L[i][:j], L[j][:j])) / diagonal[j])
        pivot = row[i] + damping - _dot(L[i], L[i])
        # Without a positive pivot, the diagonal is infinite. Quotients by it are zero, so the
        # unknown is 0 in this problem, without a branch.
        diagonal.append(jnp.sqrt(jnp.where(pivot > least, pivot, jnp.full_like(pivot, jnp.inf))))
    return Factor(tuple(map(tuple, L)), tuple(diagonal))


def _dot(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> Any:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unrolled_solve(factor: Factor, b: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    r"""Solve :math:`L L^T x = b` for every problem; an unknown without a pivot is set to 0.

    Args:
        factor: The factors.
        b: The right-hand sides: `n` arrays of shape `[lanes]`.

    Returns:
        The solutions: `n` arrays of shape `[lanes]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import unrolled_cholesky, unrolled_solve
        >>> factor = unrolled_cholesky(((jnp.asarray([4.0, 2.0]),),), jnp.zeros(2))
        >>> print(unrolled_solve(factor, [jnp.ones(2)])[0])
        [0.25 0.5 ]
    """
    return unrolled_backward(factor, unrolled_forward(factor, b))


def unrolled_forward(factor: Factor, b: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    r"""Solve :math:`L y = b` for every problem; an unknown without a pivot is set to 0."""
    # XLA recomputes cheap products in every fusion that uses them, but not divisions. Therefore
    # divisions are faster than products with inverses.
    y: list[jax.Array] = []
    for row, b_i, pivot in zip(factor.L, b, factor.diagonal, strict=True):
        y.append((b_i - _dot(row, y)) / pivot)
    return tuple(y)


def unrolled_backward(factor: Factor, y: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    r"""Solve :math:`L^T x = y` for every problem; an unknown without a pivot is set to 0."""
    L, diagonal = factor.L, factor.diagonal
    n = len(diagonal)
    x: list[jax.Array] = [y[-1]] * n
    for i in reversed(range(n)):
        above = [L[k][i] for k in range(i + 1, n)]
        x[i] = (y[i] - _dot(above, x[i + 1 :])) / diagonal[i]
    return tuple(x)


def unrolled_inverse(factor: Factor) -> Rows:
    """Compute the inverses of the factorized matrices.

    Args:
        factor: The factors.

    Returns:
        The lower triangles; rows and columns without a pivot are zero.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import unrolled_cholesky, unrolled_inverse
        >>> print(unrolled_inverse(unrolled_cholesky(((jnp.asarray([4.0]),),), jnp.zeros(1)))[0][0])
        [0.25]
    """
    L, diagonal = factor.L, factor.diagonal
    n = len(diagonal)
    M: list[list[jax.Array]] = []  # L^-1
    for i in range(n):
        row = [-_dot(L[i][j:], [M[k][j] for k in range(j, i)]) for j in range(i)]
        M.append([entry / diagonal[i] for entry in [*row, jnp.ones_like(diagonal[i])]])
    return tuple(
        tuple(
            _dot([M[k][i] for k in range(i, n)], [M[k][j] for k in range(i, n)])
            for j in range(i + 1)
        )
        for i in range(n)
    )


def unrolled_rank(factor: Factor) -> jax.Array:
    """Return the number of positive pivots of every problem, int32 `[lanes]`."""
    has_pivot = [jnp.isfinite(d).astype(jnp.int32) for d in factor.diagonal]
    return sum(has_pivot[1:], has_pivot[0])
