"""One factorisation that answers every damping: the singular values of the smaller side."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class SingularFactors(NamedTuple):
    r"""What is needed of :math:`A = U \,\mathrm{diag}(s)\, V^T` to solve with any damping.

    `k` is `min(m, n)`. `U` is never formed for a tall matrix: only :math:`b = U^T r` is needed.
    """

    s: jax.Array  # [k], descending
    Vt: jax.Array  # [k, n]
    b: jax.Array  # [k]


def singular_factors(A: jax.Array, r: jax.Array) -> SingularFactors:
    r"""Factorises once, so that damped steps for any damping cost no further factorisation.

    A tall matrix (`m >= n`) goes through the QR decomposition of the augmented :math:`[A\; r]`,
    whose triangle holds both :math:`R` and :math:`Q^T r`, so that :math:`Q` is never formed; then
    the singular values of the small :math:`R` are found. A wide one (`m < n`) goes through the
    QR of :math:`A^T`, so that the cost is :math:`m^2 n + m^3` and no `n x n` array exists.
    Neither forms :math:`A^T A`, which would square the condition number.

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
    return _tall(A, r) if m >= n else _wide(A, r)


def _tall(A: jax.Array, r: jax.Array) -> SingularFactors:
    n = A.shape[1]
    triangle = jnp.linalg.qr(jnp.concatenate([A, r[:, None]], axis=1), mode="r")
    R, c = triangle[:n, :n], triangle[:n, n]  # c = Q^T r
    U, s, Vt = jnp.linalg.svd(R)
    return SingularFactors(s, Vt, U.T @ c)


def _wide(A: jax.Array, r: jax.Array) -> SingularFactors:
    Q, R = jnp.linalg.qr(A.T)  # A = R^T Q^T
    U, s, Wt = jnp.linalg.svd(R.T)
    return SingularFactors(s, Wt @ Q.T, U.T @ r)


def numerical_rank(factors: SingularFactors, m: int) -> jax.Array:
    r"""How many directions the data determine: singular values above rounding noise.

    .. math:: \#\{ s_i > \max(m, n)\, \epsilon\, s_1 \}

    Args:
        factors: The factors of a matrix.
        m: Its number of rows.

    Returns:
        An int32 scalar.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import numerical_rank, singular_factors
        >>> print(numerical_rank(singular_factors(jnp.ones((3, 2)), jnp.ones(3)), 3))
        1
    """
    return jnp.sum(determined(factors, m), dtype=jnp.int32)


def determined(factors: SingularFactors, m: int) -> jax.Array:
    """Which singular values are above rounding noise, as a mask of shape `[k]`."""
    s = factors.s
    noise = max(m, factors.Vt.shape[1]) * jnp.finfo(s.dtype).eps
    return s > jnp.asarray(noise, s.dtype) * s[0]
