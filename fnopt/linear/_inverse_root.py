"""Inverse roots of positive matrices by products only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import HIGHEST, check_count, norm_of_leaves
from fnopt.linear._power_iteration import _square, power_iteration
from fnopt.sharding import while_loop


def matrix_inverse_pth_root(
    matrix: Any,
    p: int,
    num_iters: int = 100,
    ridge_epsilon: float = 1e-6,
    error_tolerance: float = 1e-6,
    precision: Any = HIGHEST,
) -> tuple[jax.Array, jax.Array]:
    r"""The inverse p-th root of a positive matrix, and its error.

    .. math:: X_{k+1} = X_k T_k, \qquad M_{k+1} = T_k^p M_k, \qquad
              T_k = (1 + \tfrac 1p) I - \tfrac 1p M_k

    from :math:`M_0 = z (A + \epsilon \lambda_{max} I)` and :math:`X_0 = z^{1/p} I`: the coupled
    Newton iteration, in which `M` goes to the identity and `X` to :math:`A^{-1/p}`. It ends when
    the largest element of `M - I` is below the tolerance, or begins to grow.

    Args:
        matrix: :math:`A`, real, symmetric, positive semidefinite, `[n, n]`.
        p: A positive whole number.
        num_iters: The most iterations.
        ridge_epsilon: :math:`\epsilon`, what is added to the eigenvalues in units of the largest.
        error_tolerance: Where to end.
        precision: That of the products.

    Returns:
        :math:`A^{-1/p}` in the dtype of the matrix, and the largest element of `M - I`: a number
        that is not small (or NaN) says that the root is not to be trusted.

    Raises:
        ValueError: If the matrix isn't square, or `p` isn't a positive number.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import matrix_inverse_pth_root
        >>> root, error = matrix_inverse_pth_root(jnp.diag(jnp.asarray([16.0, 1.0])), 4)
        >>> print(jnp.diag(root).round(3), bool(error < 1e-5))
        [0.5 1. ] True

    Reference:
        Higham, 2008, Functions of Matrices, equation 7.18.
    """
    check_count(p, "p", "matrix_inverse_pth_root")
    given = jnp.asarray(matrix)
    A = _square(given, "matrix_inverse_pth_root")
    largest, _ = power_iteration(A, precision=precision)
    ridge = jnp.asarray(ridge_epsilon, A.dtype) * jnp.maximum(largest.astype(A.dtype), 1e-16)
    eye = jnp.eye(A.shape[0], dtype=A.dtype)
    A = A + ridge * eye
    z = (1 + p) / (2 * norm_of_leaves([A]).astype(A.dtype))

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision=precision)

    def step(state: Any) -> Any:
        M, X, _, error, _, i = state
        T = (1 + 1 / p) * eye - M / p
        new = product(_power(T, p, product), M)
        return new, product(X, T), X, _distance(new, eye), error, i + 1

    def goes_on(state: Any) -> jax.Array:
        *_, error, before, i = state
        # An error may grow a little before it falls.
        return (error > error_tolerance) & (error < 1.2 * before) & (i < num_iters)

    M, X = z * A, z ** (1 / p) * eye
    far = jnp.asarray(jnp.inf, A.dtype)
    first = M, X, X, _distance(M, eye), far, jnp.zeros((), jnp.int32)
    _, X, older, error, before, _ = while_loop(goes_on, step, first)
    grew = error >= 1.2 * before
    root = jnp.where(grew, older, X)
    return root.astype(given.dtype), jnp.where(grew, before, error)


def _distance(M: jax.Array, eye: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(M - eye))


def _power(T: jax.Array, p: int, product: Any) -> jax.Array:
    """The p-th power, by squaring."""
    out = None
    while p:
        if p & 1:
            out = T if out is None else product(out, T)
        p >>= 1
        T = product(T, T) if p else T
    assert out is not None
    return out
