"""The singular values of the smaller side of a matrix: its rank, and steps of least norm."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear._divide import divide
from fnopt.linear._triangle import Triangle, row_triangle

_ROUNDED = 32  # rounding units, of a Jacobian whose entries are good to a few


class SingularFactors(NamedTuple):
    r"""The parts of :math:`A = U \,\mathrm{diag}(s)\, V^T` for the step of least norm.

    `k` is `min(m, n)`. `U` is never formed for a tall matrix: only :math:`b = U^T r` is needed.
    """

    s: jax.Array  # [k], descending
    Vt: jax.Array  # [k, n]
    b: jax.Array  # [k]


def singular_factors(A: jax.Array, r: jax.Array) -> SingularFactors:
    r"""Singular values, without forming :math:`A^T A`, which would square the condition number.

    A tall matrix (`m >= n`) goes through the QR decomposition of the augmented :math:`[A\; r]`,
    whose triangle holds both :math:`R` and :math:`Q^T r`, so that :math:`Q` is never formed; then
    the singular values of the small :math:`R` are found. A wide one (`m < n`) goes through the
    QR of :math:`A^T`, so that the cost is :math:`m^2 n + m^3` and no `n x n` array exists.

    Args:
        A: The scaled Jacobian, of shape `[m, n]`.
        r: The residual, of shape `[m]`.

    Returns:
        Singular values, right singular vectors, and the residual in the left ones.

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
    return singular_triangle(row_triangle(A, r)) if m >= n else _wide(A, r)


def singular_triangle(factors: Triangle) -> SingularFactors:
    """The singular values of a matrix whose triangle is known."""
    U, s, Vt = jnp.linalg.svd(factors.L.T)
    return SingularFactors(s, Vt, matmul(U.T, factors.c))


def _wide(A: jax.Array, r: jax.Array) -> SingularFactors:
    Q, R = jnp.linalg.qr(A.T)  # A = R^T Q^T
    U, s, Wt = jnp.linalg.svd(R.T)
    return SingularFactors(s, matmul(Wt, Q.T), matmul(U.T, r))


def numerical_rank(s: jax.Array, size: int) -> jax.Array:
    r"""The numerical rank: the number of singular values above rounding noise.

    .. math:: \#\{ s_i > \min(32, \max(m, n))\, \epsilon\, s_1 \}

    What rounding leaves of a column that depends on others hardly grows with the number of rows:
    it is one or two units for 10 rows and for 100,000. A tolerance that grows with them would take
    directions for noise that the data determine to several digits.

    Args:
        s: The singular values of a matrix, descending, of shape `[k]`.
        size: Its longer side, `max(m, n)`.

    Returns:
        An int32 scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import numerical_rank, singular_factors
        >>> print(numerical_rank(singular_factors(jnp.ones((3, 2)), jnp.ones(3)).s, 3))
        1
    """
    return jnp.sum(_determined(s, size), dtype=jnp.int32)


def gauss_newton_solution(factors: SingularFactors, size: int) -> jax.Array:
    r"""The undamped step of least norm in the singular basis.

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
    return jnp.where(_determined(factors.s, size), z, jnp.zeros_like(z))


def _determined(s: jax.Array, size: int) -> jax.Array:
    """Which singular values are above rounding noise, as a mask of shape `[k]`."""
    noise = min(size, _ROUNDED) * jnp.finfo(s.dtype).eps
    return s > jnp.asarray(noise, s.dtype) * s[0]
