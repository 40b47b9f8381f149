"""Inverse p-th roots and the dominant eigenvalue of a matrix, by matrix products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import global_norm
from fnopt.errors import check_count, type_text
from fnopt.numerics import HIGHEST, compute_dtype, default_float, real_dtype
from fnopt.sharding import while_loop


def matrix_inverse_pth_root(
    matrix: Any,
    p: int,
    num_iters: int = 100,
    ridge_epsilon: float = 1e-6,
    error_tolerance: float = 1e-6,
    precision: Any = HIGHEST,
) -> tuple[jax.Array, jax.Array]:
    r"""Compute the inverse p-th root of a positive semidefinite matrix, and its error.

    .. math:: X_{k+1} = X_k T_k, \qquad M_{k+1} = T_k^p M_k, \qquad
              T_k = (1 + \tfrac 1p) I - \tfrac 1p M_k

    from :math:`M_0 = z (A + \epsilon \lambda_{max} I)` and :math:`X_0 = z^{1/p} I`. In this coupled
    Newton iteration, `M` converges to the identity and `X` to :math:`A^{-1/p}`. The iteration ends
    when the largest element of `M - I` is below the tolerance or starts to increase.

    Args:
        matrix: :math:`A`, real, symmetric, positive semidefinite, `[n, n]`.
        p: A positive integer.
        num_iters: The maximum number of iterations.
        ridge_epsilon: The ridge :math:`\epsilon`, relative to the largest eigenvalue.
        error_tolerance: The tolerance for the largest element of `M - I`.
        precision: The precision of the matrix products.

    Returns:
        :math:`A^{-1/p}` in the dtype of the matrix, and the largest element of `M - I`. If this
        element is not small, or is NaN, the root is inaccurate.

    Raises:
        ValueError: If the matrix isn't square, or `p` isn't positive.

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
    matrix = jnp.asarray(matrix)
    A = _check_square(matrix, "matrix_inverse_pth_root")
    largest, _ = power_iteration(A, precision=precision)
    # The defaults and the bound 1e-16 for a matrix of zeros are from optax.
    ridge = jnp.asarray(ridge_epsilon, A.dtype) * jnp.maximum(largest.astype(A.dtype), 1e-16)
    eye = jnp.eye(A.shape[0], dtype=A.dtype)
    A = A + ridge * eye
    # The iteration converges if the eigenvalues of z A are below 1 + p. The Frobenius norm bounds
    # the largest eigenvalue.
    z = (1 + p) / (2 * global_norm(A).astype(A.dtype))

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision=precision)

    def step(state: Any) -> Any:
        M, X, _, error, _, i = state
        T = (1 + 1 / p) * eye - M / p
        new_M = product(_power(T, p, product), M)
        return new_M, product(X, T), X, _max_difference(new_M, eye), error, i + 1

    def unfinished(state: Any) -> jax.Array:
        *_, error, before, i = state
        # The error may grow slightly before it decreases; the factor 1.2 is from optax.
        return (error > error_tolerance) & (error < 1.2 * before) & (i < num_iters)

    M, X = z * A, z ** (1 / p) * eye
    inf = jnp.asarray(jnp.inf, A.dtype)
    first = M, X, X, _max_difference(M, eye), inf, jnp.zeros((), jnp.int32)
    _, X, previous_X, error, before, _ = while_loop(unfinished, step, first)
    grew = error >= 1.2 * before
    root = jnp.where(grew, previous_X, X)
    return root.astype(matrix.dtype), jnp.where(grew, before, error)


def _max_difference(M: jax.Array, eye: jax.Array) -> jax.Array:
    return jnp.max(jnp.abs(M - eye))


def _power(T: jax.Array, p: int, product: Any) -> jax.Array:
    """Return the p-th power of a matrix, by repeated squaring."""
    out = None
    while p:
        if p & 1:
            out = T if out is None else product(out, T)
        p >>= 1
        T = product(T, T) if p else T
    assert out is not None
    return out


def power_iteration(
    matrix: Any,
    *,
    v0: Any = None,
    num_iters: int = 100,
    error_tolerance: float = 1e-6,
    precision: Any = HIGHEST,
    key: Any = None,
) -> tuple[jax.Array, Any]:
    r"""Compute the eigenvalue of largest modulus, and its eigenvector.

    .. math:: v \leftarrow \frac{A v}{\lVert A v \rVert}, \qquad \lambda = v^\top A v

    The iteration ends when :math:`\lVert A v - \lambda v \rVert \le \tau |\lambda|`. It converges
    if one eigenvalue is larger in modulus than all others and `A` can be diagonalized.

    Args:
        matrix: A real square matrix `[n, n]`, or a function that returns the product of the matrix
            with a vector (a pytree of arrays).
        v0: The starting vector; required if `matrix` is a function. By default random, uniform in
            `[-1, 1]`.
        num_iters: The maximum number of iterations.
        error_tolerance: :math:`\tau`.
        precision: The precision of the products, if `matrix` is an array.
        key: The PRNG key of the random starting vector.

    Returns:
        The eigenvalue, a real scalar, and the eigenvector of length 1, like `v0`. Both are 0 for a
        matrix of zeros.

    Raises:
        ValueError: If the matrix isn't square, or if it is a function and `v0` is missing.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.linear import power_iteration
        >>> value, vector = power_iteration(jnp.asarray([[2.0, 1.0], [1.0, 2.0]]))
        >>> print(f"{value:.4f} {abs(vector[0]):.4f}")
        3.0000 0.7071

    Reference:
        von Mises and Pollaczek-Geiringer, 1929.
    """
    check_count(num_iters, "num_iters", "power_iteration")
    product = matrix
    if not callable(matrix):
        A = _check_square(matrix, "power_iteration")

        def product(v: Any) -> Any:
            return jnp.matmul(A, v, precision=precision)

        if v0 is None:
            key = jax.random.key(0) if key is None else key
            v0 = jax.random.uniform(key, A.shape[-1:], A.dtype, -1.0, 1.0)
    elif v0 is None:
        raise ValueError(
            "power_iteration: the matrix is a function and v0 is None, expected a starting "
            "vector. Pass v0."
        )
    v, _, value, _ = _iterate(product, v0, num_iters, error_tolerance)
    return value, v


def _check_square(matrix: Any, name: str) -> jax.Array:
    A = jnp.asarray(matrix)
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"{name}: the matrix is {type_text(A)}, expected a square matrix.")
    return A.astype(compute_dtype(A.dtype))


def _iterate(product: Any, v0: Any, steps: int, tolerance: float) -> Any:
    """Return the vector, its product with the matrix, the eigenvalue and the number of steps."""
    dtypes = [jnp.result_type(x) for x in jax.tree.leaves(v0)]
    dtype = real_dtype(compute_dtype(*dtypes)) if dtypes else default_float()

    def normalize(v: Any, i: Any) -> Any:
        length = global_norm(v).astype(dtype)
        inverse = jnp.where(length > 0, 1 / jnp.where(length > 0, length, jnp.ones_like(length)), 0)
        v = jax.tree.map(lambda x: x * inverse.astype(x.dtype), v)
        w = product(v)
        pairs = zip(jax.tree.leaves(v), jax.tree.leaves(w), strict=True)
        value = sum((jnp.sum(x * y).astype(dtype) for x, y in pairs), jnp.zeros((), dtype))
        return v, w, value, i

    def unfinished(state: Any) -> jax.Array:
        v, w, value, i = state
        residual = jax.tree.map(lambda x, y: y - value.astype(x.dtype) * x, v, w)
        limit = jnp.asarray(tolerance, dtype) * jnp.abs(value)
        return ~(global_norm(residual).astype(dtype) <= limit) & (i < steps)

    first = normalize(jax.tree.map(jnp.asarray, v0), jnp.zeros((), jnp.int32))
    return while_loop(unfinished, lambda state: normalize(state[1], state[3] + 1), first)
