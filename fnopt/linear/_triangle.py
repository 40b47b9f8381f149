"""Triangular factors and singular values of Jacobians, by QR instead of normal equations."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.linear._divided_rows import with_fewer_residuals, with_fewer_rows
from fnopt.linear._norms import divide
from fnopt.numerics import matmul
from fnopt.sharding import concatenate

# Relative noise of a Jacobian in machine epsilons: its entries may have errors of a few epsilons.
# With 8 and 128, NIST's 54 fits end alike, in float64 and in float32.
_NOISE = 32


class Triangle(NamedTuple):
    r"""The triangular factor of a linear model :math:`A p + r`.

    With :math:`A = Q R`, it consists of :math:`L = R^T` and :math:`c = Q^T r`. Then :math:`A^T A =
    L L^T`, and :math:`\|A p + r\|^2` equals :math:`\|L^T p + c\|^2` up to a constant.
    """

    L: jax.Array  # [k, k]
    c: jax.Array  # [k]


def triangle(A: jax.Array, r: jax.Array, graded: bool = False) -> Triangle:
    r"""Compute the triangular factor of a tall matrix, without :math:`Q` or :math:`A^T A`.

    The QR decomposition of the augmented matrix :math:`[A\; r]` contains both :math:`R` and
    :math:`Q^T r`. It is as accurate as `A` is in its dtype, whereas :math:`A^T A` would lose half
    of the digits.

    Args:
        A: A matrix of shape `[m, n]`; if `m < n` it is padded with rows of zeros.
        r: The residual, of shape `[m]`.
        graded: Whether the norms of rows differ by many orders of magnitude. For example, an
            outlier under a robust loss has a large residual with a derivative near zero.
            Reflections mix all rows into the top row, where a large residual would cancel the
            digits of the other rows. Therefore rows of zeros are inserted at the top, which makes
            the reflections equivalent to modified Gram-Schmidt.

    Returns:
        The triangular factor, with `k = n`.

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
    # LAPACK's compact form stores R on and above the diagonal and reflections below it, so Q is
    # never formed. The signs of R's rows are arbitrary, but Q^T r has the same signs, so they
    # cancel.
    rows = with_fewer_rows(concatenate([A, r[:, None]], axis=1))
    above, below = n if graded else 0, 0 if graded else max(n - len(rows), 0)
    raw, _ = jnp.linalg.qr(jnp.pad(rows, ((above, below), (0, 0))), mode="raw")
    # `raw` contains R^T and the reflections. The mask is a NumPy constant, because `jnp.tril` would
    # compute its mask in additional kernels.
    return Triangle(jnp.where(np.tri(n, dtype=bool), raw[:n, :n], 0), raw[n, :n])


def row_triangle(A: jax.Array, r: jax.Array, graded: bool = False) -> Triangle:
    """Compute the triangular factor of a matrix whose rows may be sharded over devices.

    `graded` has no effect on the factorization of each device's rows.
    """
    rows = with_fewer_residuals(concatenate([A, r[:, None]], axis=1))
    return triangle(rows[:, :-1], rows[:, -1], graded)


def noise_damping(L: jax.Array) -> jax.Array:
    r"""Return a damping for numerically dependent columns.

    If a column depends on the other columns, its pivot is a rounding error of a few machine
    epsilons. Without damping, a step would be as long as :math:`\|r\| / \epsilon`. Damping such a
    column doesn't affect the residuals of the solution, because the column doesn't enlarge the
    range of the other columns.

    Args:
        L: The triangular factor of columns of similar lengths, of shape `[k, k]`.

    Returns:
        The diagonal, of shape `[k]`: the largest entry of `L` for pivots below 32 machine epsilons
        times this entry, and 0 for all other pivots.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import noise_damping, triangle
        >>> print(noise_damping(triangle(jnp.asarray([[1.0, 1.0], [0.0, 0.0]]), jnp.ones(2)).L))
        [0. 1.]

    Reference:
        Golub and Van Loan (2013), Matrix Computations, section 5.5 (numerical rank).
    """
    largest = jnp.max(jnp.abs(L))
    noise = jnp.asarray(_NOISE * float(jnp.finfo(L.dtype).eps), L.dtype) * largest
    return jnp.where(jnp.abs(jnp.diagonal(L)) <= noise, largest, jnp.zeros_like(largest))


def damped_triangle(factors: Triangle, d: jax.Array) -> Triangle:
    r"""Compute the triangular factor of :math:`A` with additional rows, a diagonal matrix.

    .. math:: L_d L_d^T = A^T A + \operatorname{diag}(d)^2, \qquad L_d\, c_d = A^T r

    The diagonal is placed above `A`. Each reflection is then equivalent to modified Gram-Schmidt,
    and preserves the digits of rows of all magnitudes. Below `A`, a diagonal that is
    :math:`1 / \epsilon` times as large would cancel the digits of `A`.

    Args:
        factors: The triangular factor of `A` and `r`.
        d: The diagonal, of shape `[k]`, or a scalar.

    Returns:
        The triangular factor of the damped problem.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import Triangle, damped_triangle
        >>> L, c = damped_triangle(Triangle(3 * jnp.eye(1), jnp.ones(1)), jnp.float32(4))
        >>> print(jnp.abs(L), L @ c)
        [[5.]] [3.]

    Reference:
        Moré (1978), The Levenberg-Marquardt algorithm: implementation and theory, section 3;
        Powell and Reid (1969), On applying Householder transformations to linear least squares
        problems; Cox and Higham (1998), Stability of Householder QR factorization for weighted
        least squares problems.
    """
    L, c = factors
    A = jnp.concatenate([d * np.eye(len(c), dtype=c.dtype), L.T])
    return triangle(A, jnp.concatenate([jnp.zeros_like(c), c]))


class SingularFactors(NamedTuple):
    r"""The parts of :math:`A = U \,\mathrm{diag}(s)\, V^T` for the minimum-norm step.

    The number `k` of singular values is `min(m, n)`. A tall `U` isn't formed, because steps need
    only :math:`b = U^T r`.
    """

    s: jax.Array  # [k], singular values, descending
    Vt: jax.Array  # [k, n], right singular vectors
    b: jax.Array  # [k], U^T r


def singular_factors(A: jax.Array, r: jax.Array) -> SingularFactors:
    r"""Compute the SVD of a matrix after a QR decomposition.

    :math:`A^T A` isn't formed, because it would square the condition number. A tall matrix (`m >=
    n`) is reduced to :math:`R` and :math:`Q^T r` by the QR decomposition of the augmented
    :math:`[A\; r]`. :math:`Q` is never formed, and only :math:`R` needs an SVD. A wide matrix (`m <
    n`) is reduced by the QR decomposition of :math:`A^T`. This takes :math:`m^2 n + m^3`
    operations, and no `n x n` array is formed.

    Args:
        A: The scaled Jacobian, of shape `[m, n]`.
        r: The residual, of shape `[m]`.

    Returns:
        Singular values, right singular vectors, and the residual in the basis of the left singular
        vectors.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import singular_factors
        >>> A = jnp.asarray([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
        >>> singular_factors(A, jnp.ones(3)).s
        Array([4., 3.], dtype=float32)

    Reference:
        Golub and Van Loan (2013), Matrix Computations, sections 5.2 and 8.6.
    """
    m, n = A.shape
    return singular_triangle(row_triangle(A, r)) if m >= n else _singular_factors_of_wide(A, r)


def singular_triangle(factors: Triangle) -> SingularFactors:
    """Compute the SVD of a matrix from its triangular factor."""
    U, s, Vt = jnp.linalg.svd(factors.L.T)
    return SingularFactors(s, Vt, matmul(U.T, factors.c))


def _singular_factors_of_wide(A: jax.Array, r: jax.Array) -> SingularFactors:
    Q, R = jnp.linalg.qr(A.T)  # A = R^T Q^T
    U, s, Wt = jnp.linalg.svd(R.T)
    return SingularFactors(s, matmul(Wt, Q.T), matmul(U.T, r))


def numerical_rank(s: jax.Array, size: int) -> jax.Array:
    r"""Return the numerical rank: the number of singular values above rounding noise.

    .. math:: \#\{ s_i > \min(32, \max(m, n))\, \epsilon\, s_1 \}

    Rounding errors of a dependent column hardly grow with the number of rows: they are one or two
    machine epsilons, both for 10 and for 100,000 rows. A tolerance that grows with the number of
    rows would discard directions that the data determine to several digits.

    Args:
        s: The singular values of a matrix in descending order, of shape `[k]`.
        size: The longer side of the matrix, `max(m, n)`.

    Returns:
        An int32 scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import numerical_rank, singular_factors
        >>> print(numerical_rank(singular_factors(jnp.ones((3, 2)), jnp.ones(3)).s, 3))
        1
    """
    return jnp.sum(is_determined(s, size), dtype=jnp.int32)


def gauss_newton_solution(factors: SingularFactors, size: int) -> jax.Array:
    r"""Return the undamped minimum-norm step in the basis of right singular vectors.

    .. math:: z_i = b_i / s_i \text{ where } s_i > \min(32, \max(m, n))\, \epsilon\, s_1
        \text{, else } 0

    Args:
        factors: The factors of `A` and `r`.
        size: The longer side of `A`, `max(m, n)`.

    Returns:
        The coefficients `z`, of shape `[k]`; the step is `-Vt.T @ z`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import gauss_newton_solution, singular_factors
        >>> factors = singular_factors(jnp.diag(jnp.asarray([2.0, 0.0])), jnp.ones(2))
        >>> jnp.abs(gauss_newton_solution(factors, 2))
        Array([0.5, 0. ], dtype=float32)
    """
    z = divide(factors.b, factors.s)
    return jnp.where(is_determined(factors.s, size), z, jnp.zeros_like(z))


def is_determined(s: jax.Array, size: int) -> jax.Array:
    """Whether each singular value is above rounding noise; its direction is then determined."""
    noise = min(size, _NOISE) * jnp.finfo(s.dtype).eps
    return s > jnp.asarray(noise, s.dtype) * s[0]
