"""The triangle of a QR decomposition: all of a Jacobian that steps depend on."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import joined
from fnopt.linear._divided_rows import with_fewer_residuals, with_fewer_rows

_FEW = 6  # rows that are written out


class Triangle(NamedTuple):
    r"""The lower factor of :math:`A^T A = L L^T`, and the residual as it sees it.

    With :math:`A = Q R` it is :math:`L = R^T`, and :math:`\|A p + r\|^2 = \|L^T p + c\|^2` but
    for a constant, with :math:`c = Q^T r`.
    """

    L: jax.Array  # [k, k]
    c: jax.Array  # [k]


def triangle(A: jax.Array, r: jax.Array, graded: bool = False) -> Triangle:
    r"""The triangle of a tall matrix, without :math:`Q` and without :math:`A^T A`.

    The QR decomposition of the augmented :math:`[A\; r]` holds both :math:`R` and
    :math:`Q^T r`. It is as accurate as `A` itself; its square would lose half of the digits.

    Args:
        A: A matrix of shape `[m, n]` with `m >= n`.
        r: The residual, of shape `[m]`.
        graded: Whether rows differ in size by many digits, as an outlier's under a robust loss
            does: a large residual beside next to no derivative. Reflections write every column onto
            a row at the top, and there the digits of the others would drown in such a residual. So
            these rows are zeros, which makes them modified Gram-Schmidt.

    Returns:
        The triangle, with `k = n`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import triangle
        >>> L, c = triangle(jnp.asarray([[3.0], [4.0]]), jnp.asarray([1.0, 2.0]))
        >>> print(L @ L.T, L @ c)  # A^T A and A^T r
        [[25.]] [11.]

    Reference:
        Golub and Van Loan (2013), Matrix Computations, section 5.3; Björck (1996), Numerical
        methods for least squares problems, section 2.4 (the rows of zeros).
    """
    n = A.shape[1]
    # LAPACK's own form, R above and reflections below: Q is never built. The signs of R's rows are
    # arbitrary, but those of Q^T r go with them, and they cancel in all that is made of both.
    rows = with_fewer_rows(joined([A, r[:, None]], axis=1))
    raw, _ = jnp.linalg.qr(jnp.pad(rows, ((n, 0), (0, 0))) if graded else rows, mode="raw")
    return Triangle(jnp.tril(raw[:n, :n]), raw[n, :n])  # the transpose of R, and reflections


def row_triangle(A: jax.Array, r: jax.Array, graded: bool = False) -> Triangle:
    """The triangle of a matrix of residuals' rows, which may be divided over devices.

    Then each part is factorised as if its rows were alike.
    """
    rows = with_fewer_residuals(joined([A, r[:, None]], axis=1))
    return triangle(rows[:, :-1], rows[:, -1], graded)


def damped_triangle(factors: Triangle, d: jax.Array, rows: jax.Array | None = None) -> Triangle:
    r"""The triangle of :math:`A` with a diagonal below it, and any more rows.

    .. math:: L_d L_d^T = A^T A + \operatorname{diag}(d)^2 + W^T W, \qquad L_d\, c_d = A^T r

    Args:
        factors: The triangle of `A` and `r`.
        d: The diagonal, of shape `[k]`.
        rows: `W`, of shape `[j, k]`, if there are any.

    Returns:
        The triangle for the damped problem.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import Triangle, damped_triangle
        >>> L, c = damped_triangle(Triangle(3 * jnp.eye(1), jnp.ones(1)), jnp.asarray([4.0]))
        >>> print(jnp.abs(L), L @ c)
        [[5.]] [3.]

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 3.
    """
    L, c = factors
    below = [jnp.diag(d)] if rows is None else [rows, jnp.diag(d)]
    A = jnp.concatenate([L.T, *below])
    return triangle(A, jnp.concatenate([c, jnp.zeros(len(A) - len(c), c.dtype)]))


def inverse_triangle(L: jax.Array) -> jax.Array:
    """The inverse of a lower triangle, by forward substitution.

    That of a handful of rows is written out: there a call of LAPACK takes longer than its work.

    Args:
        L: The triangle, of shape `[k, k]`, without a zero on its diagonal.

    Returns:
        The inverse, of the same shape.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import inverse_triangle
        >>> print(inverse_triangle(jnp.asarray([[2.0, 0.0], [1.0, 4.0]])))
        [[ 0.5    0.   ]
         [-0.125  0.25 ]]
    """
    k, one = L.shape[0], jnp.eye(L.shape[0], dtype=L.dtype)
    if k > _FEW:
        return lax.linalg.triangular_solve(L, one, left_side=True, lower=True)
    rows: list[jax.Array] = []
    pivots = 1 / jnp.diagonal(L)
    for i in range(k):
        rest = one[i]
        for j, row in enumerate(rows):
            rest = rest - L[i, j] * row
        rows.append(rest * pivots[i])
    return jnp.stack(rows)


class Guarded(NamedTuple):
    """A triangle, what is below it, and what its diagonal needs so that it can be solved with."""

    triangle: Triangle
    rows: jax.Array  # [j, k], W: more rows of the model, where the residual is zero
    own: jax.Array  # [k], the diagonal of k more of them; [0] for none
    diagonal: jax.Array  # [k], zeros almost always
    needed: jax.Array  # bool, whether any of these isn't zero


def guarded(
    factors: Triangle, rows: jax.Array | None = None, own: jax.Array | None = None
) -> Guarded:
    r"""Looks for what can't be solved with, without any damping.

    A column of zeros gets 1 on its diagonal: nothing moves along it, as in the solution of least
    norm. Where others leave nothing of a column, it gets the rounding unit: what is left of it
    is noise, and is treated as noise anywhere.

    Args:
        factors: The triangle, of columns with lengths about 1.
        rows: More rows of the model, of shape `[j, k]`, if there are any.
        own: The diagonal of `k` more rows, if there are any.

    Returns:
        The triangle with its guard.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import guarded, triangle
        >>> print(guarded(triangle(jnp.asarray([[1.0, 0.0], [1.0, 0.0]]), jnp.ones(2))).diagonal)
        [0. 1.]
    """
    L = factors.L
    eps = jnp.finfo(L.dtype).eps
    dead = ~jnp.any(L != 0, axis=1)
    hidden = jnp.abs(jnp.diagonal(L)) <= jnp.asarray(eps * eps, L.dtype)
    noise = jnp.where(hidden, jnp.asarray(eps, L.dtype), jnp.zeros((), L.dtype))
    diagonal = jnp.where(dead, jnp.ones_like(noise), noise)
    rows = jnp.zeros((0, noise.size), L.dtype) if rows is None else rows
    needed = jnp.any((diagonal > 0) | jnp.any(rows != 0, axis=0))
    own = jnp.zeros((0,), L.dtype) if own is None else own
    return Guarded(factors, rows, own, diagonal, needed | jnp.any(own != 0))
