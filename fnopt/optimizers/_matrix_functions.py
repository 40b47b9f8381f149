"""Eigenvectors, orthonormal bases and inverse roots, with derivatives at degenerate matrices.

JAX's derivative rules divide by differences of eigenvalues and by pivots. These are zero for
gradients of low rank and for factors initialized with zeros. Here, eigenvalues that differ only by
rounding errors belong to one eigenspace, whose arbitrary basis is treated as a constant. A matrix
function is still differentiable at such matrices.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.numerics import matmul


def adjoint(x: jax.Array) -> jax.Array:
    """Conjugate transpose of each matrix."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _rounding_error(values: jax.Array) -> jax.Array:
    """Rounding error of a zero eigenvalue, `n eps` times the largest eigenvalue, `[k, 1]`."""
    eps = jnp.finfo(values.dtype).eps
    return values.shape[-1] * eps * jnp.max(jnp.abs(values), axis=-1, keepdims=True, initial=0.0)


def _inverse_differences(values: jax.Array) -> jax.Array:
    """`1 / (values_j - values_i)`, or 0 within an eigenspace, `[k, i, j]`."""
    differences = values[..., None, :] - values[..., :, None]
    is_distinct = jnp.abs(differences) > _rounding_error(values)[..., None]
    inverse = 1 / jnp.where(is_distinct, differences, jnp.ones_like(differences))
    return jnp.where(is_distinct, inverse, jnp.zeros_like(inverse))


@jax.custom_jvp
def eigenvectors_down(A: jax.Array) -> jax.Array:
    """Eigenvectors of symmetric matrices as columns, in decreasing order of the eigenvalues."""
    return jnp.linalg.eigh(A)[1][:, :, ::-1]


@eigenvectors_down.defjvp
def _eigenvectors_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # dV = V (F * (V^T dA V)), with F_ij = 1 / (values_j - values_i).
    values, vectors = (x[..., ::-1] for x in jnp.linalg.eigh(primals[0]))
    rotated = matmul(matmul(adjoint(vectors), tangents[0]), vectors)
    return vectors, matmul(vectors, _inverse_differences(values) * rotated)


@jax.custom_jvp
def orthonormal_columns(X: jax.Array) -> jax.Array:
    """Orthonormal bases of the columns of matrices: the `Q` of their QR factorizations."""
    return jnp.linalg.qr(X)[0]


@orthonormal_columns.defjvp
def _orthonormal_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    r"""Derivative of `Q`: a rotation within its column space, and a change orthogonal to it.

    From :math:`Q^T dX R^{-1} = \Omega + dR\, R^{-1}`, the antisymmetric :math:`\Omega = Q^T dQ` is
    determined by the elements below the diagonal, because :math:`dR\, R^{-1}` is upper triangular.
    """
    Q, R = jnp.linalg.qr(primals[0])
    pivots = jnp.abs(jnp.diagonal(R, axis1=1, axis2=2))
    # Columns of Q with negligible pivots consist of rounding errors, and are treated as constants.
    has_pivot = (pivots > _rounding_error(pivots))[:, None, :]
    eye = jnp.eye(R.shape[-1], dtype=R.dtype)
    R = jnp.where(has_pivot & jnp.swapaxes(has_pivot, 1, 2), R, eye)
    dX = jnp.where(has_pivot, tangents[0], jnp.zeros_like(Q))
    projected = matmul(adjoint(Q), dX)
    projected = jax.lax.linalg.triangular_solve(R, projected, left_side=False, lower=False)
    lower = jnp.tril(projected, -1)
    rotation = matmul(Q, lower - adjoint(lower))
    if Q.shape[1] == Q.shape[2]:
        return Q, rotation
    scaled = jax.lax.linalg.triangular_solve(R, dX, left_side=False, lower=False)
    return Q, rotation + scaled - matmul(Q, projected)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def leading_directions(A: jax.Array, r: int) -> jax.Array:
    """First `r` singular vectors of matrices `[k, m, n]` along their longer side, as columns."""
    return _svd_longer_first(A)[0][:, :, :r]


def _svd_longer_first(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Singular value decomposition, with the vectors of the longer side first: `(U, s, V)`."""
    U, s, Vh = jnp.linalg.svd(A, full_matrices=False)
    return (U, s, adjoint(Vh)) if A.shape[1] >= A.shape[2] else (adjoint(Vh), s, U)


@leading_directions.defjvp
def _leading_jvp(r: int, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # dU = U (F * (C S + S C^H)) + (I - U U^H) dA V S^-1, with C = U^H dA V and F_ij = 1 / (s_j^2 -
    # s_i^2): a rotation within the column space of U, and a change orthogonal to it.
    (A,), (dA,) = primals, tangents
    U, s, V = _svd_longer_first(A)
    dAV = matmul(dA if A.shape[1] >= A.shape[2] else adjoint(dA), V)
    C = matmul(adjoint(U), dAV)
    S = s[:, None, :].astype(U.dtype)
    rotation = C * S + adjoint(C * S)
    rotation = rotation * _inverse_differences(jnp.square(s)).astype(U.dtype)
    is_positive = (s > _rounding_error(s))[:, None, :]
    outside = (dAV - matmul(U, C)) / jnp.where(is_positive, S, jnp.ones_like(S))
    outside = jnp.where(is_positive, outside, jnp.zeros_like(outside))
    return U[:, :, :r], (matmul(U, rotation) + outside)[:, :, :r]


@jax.custom_jvp
def inverse_root(A: jax.Array, eps: jax.Array, exponent: jax.Array) -> jax.Array:
    """Compute `(A + eps lambda_max I)^-exponent`; for `A = 0`, a large multiple of the identity."""
    return _inverse_root(A, eps, exponent)[0]


def _inverse_root(A: jax.Array, eps: jax.Array, exponent: jax.Array) -> tuple[Any, ...]:
    values, vectors = jnp.linalg.eigh(A)
    # Eigenvalues below rounding error are set to zero, because the error of a zero eigenvalue could
    # exceed the ridge `eps lambda_max`.
    rounding_error = A.shape[-1] * jnp.finfo(A.dtype).eps * values[:, -1:]
    is_positive = values > rounding_error
    largest = values[:, -1:]
    values = jnp.where(is_positive, values, jnp.zeros_like(values))
    values = values + jnp.maximum(eps * largest, jnp.finfo(A.dtype).tiny)
    root = matmul(vectors * (values**-exponent)[:, None, :], jnp.swapaxes(vectors, 1, 2))
    return root, values, vectors, is_positive, largest


@inverse_root.defjvp
def _inverse_root_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Derivative of a matrix function by divided differences (Daleckii and Krein, 1965)."""
    # With f(x) = x^-exponent, the change in the eigenbasis is D * (V^T dA V), with the divided
    # differences D_ij = (f(a) - f(b)) / (a - b) of the eigenvalues a and b.
    _, eps, exponent = primals
    dA, deps, dexponent = tangents
    root, values, vectors, is_positive, largest = _inverse_root(*primals)
    rotated = matmul(matmul(jnp.swapaxes(vectors, 1, 2), dA), vectors)
    # A zero matrix has no derivative. Its values must still be finite, because the products of
    # unselected numbers with zero tangents would be NaN.
    is_nonzero = largest > 0
    values = jnp.where(is_nonzero, values, jnp.ones_like(values))
    a, b = values[:, :, None], values[:, None, :]
    # The larger eigenvalue is factored out of D, so that powers don't overflow.
    large, log = jnp.maximum(a, b), -jnp.abs(jnp.log(a) - jnp.log(b))
    is_equal = log == 0
    divisor = jnp.where(is_equal, -jnp.ones_like(log), jnp.expm1(log))
    quotient = jnp.expm1(-exponent * log) / divisor
    slope = jnp.where(is_equal, -exponent, quotient) * large ** (-exponent - 1)
    # Eigenvalues below rounding error are constant zeros.
    has_slope = is_positive[:, :, None] | is_positive[:, None, :]
    change = jnp.where(has_slope, slope, jnp.zeros_like(slope)) * rotated
    ridge = eps * rotated[:, -1:, -1] + deps * largest  # the change of `eps * largest`
    powers = jnp.where(is_nonzero, values**-exponent, jnp.zeros_like(values))
    diagonal = -exponent * powers / values * ridge - dexponent * jnp.log(values) * powers
    change = change + diagonal[:, :, None] * jnp.eye(values.shape[-1], dtype=values.dtype)
    return root, matmul(matmul(vectors, change), jnp.swapaxes(vectors, 1, 2))
