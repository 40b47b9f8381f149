"""Gram matrices: the smaller side of a Jacobian, squared."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fnopt.core import matmul, turned

_WIDE = 128  # below that many columns a product in two parts saves nothing


def gram(A: jax.Array) -> jax.Array:
    r"""The symmetric product :math:`A^T A`, for less than the price of a general one.

    .. math:: \begin{pmatrix} A_1^T A_1 & \cdot \\ A_2^T A_1 & A_2^T A_2 \end{pmatrix}

    A general product computes each entry above the diagonal a second time. With the columns in
    two halves a quarter of the work is saved; finer parts were measured and saved no more.

    Args:
        A: A matrix of shape `[m, n]`.

    Returns:
        A symmetric matrix of shape `[n, n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import gram
        >>> print(gram(jnp.asarray([[1.0, 2.0]])))
        [[1. 2.]
         [2. 4.]]
    """
    n = A.shape[1]
    if n < _WIDE:
        return matmul(A.T, A)
    left, right = A[:, : n // 2], A[:, n // 2 :]
    above, right_turned = matmul(turned(left), left), turned(right)
    below = matmul(right_turned, left)
    return jnp.block([[above, below.T], [below, matmul(right_turned, right)]])


def scaled_gram(G: jax.Array, scale: jax.Array) -> jax.Array:
    r"""The Gram matrix of a Jacobian with scaled columns: :math:`D^{-1} G D^{-1}`.

    Args:
        G: A Gram matrix, of shape `[n, n]`.
        scale: The diagonal of `D`, positive, of shape `[n]`.

    Returns:
        A matrix of shape `[n, n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import scaled_gram
        >>> print(scaled_gram(jnp.full((2, 2), 8.0), jnp.asarray([2.0, 4.0])))
        [[2.  1. ]
         [1.  0.5]]
    """
    return G / scale / scale[:, None]
