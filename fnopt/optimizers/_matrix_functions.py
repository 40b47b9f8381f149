"""Eigenvectors, orthonormal bases and inverse roots, with derivatives at degenerate matrices.

JAX's derivative rules divide by differences of eigenvalues and by pivots, which are zero for
gradients of low rank and for factors initialized with zeros. In this file, eigenvalues that differ
only by rounding share one eigenspace. A matrix function is smooth at such matrices, and the
arbitrary basis of the eigenspace is treated as a constant.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.numerics import matmul


def adjoint(x: jax.Array) -> jax.Array:
    """The conjugate transposes of matrices."""
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _noise(values: jax.Array) -> jax.Array:
    """Rounding error of a zero eigenvalue, `[k, 1]`: `n eps` times the largest eigenvalue."""
    eps = jnp.finfo(values.dtype).eps
    return values.shape[-1] * eps * jnp.max(jnp.abs(values), axis=-1, keepdims=True, initial=0.0)


def _inverse_differences(values: jax.Array) -> jax.Array:
    """`1 / (values_j - values_i)`, and 0 inside an eigenspace, `[k, i, j]`."""
    differences = values[..., None, :] - values[..., :, None]
    apart = jnp.abs(differences) > _noise(values)[..., None]
    inverse = 1 / jnp.where(apart, differences, jnp.ones_like(differences))
    return jnp.where(apart, inverse, jnp.zeros_like(inverse))


@jax.custom_jvp
def eigenvectors_down(A: jax.Array) -> jax.Array:
    """Eigenvectors of symmetric matrices in columns, in decreasing order of their eigenvalues."""
    return jnp.linalg.eigh(A)[1][:, :, ::-1]


@eigenvectors_down.defjvp
def _eigenvectors_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    values, vectors = (x[..., ::-1] for x in jnp.linalg.eigh(primals[0]))
    inside = matmul(matmul(adjoint(vectors), tangents[0]), vectors)
    return vectors, matmul(vectors, _inverse_differences(values) * inside)


@jax.custom_jvp
def orthonormal_columns(X: jax.Array) -> jax.Array:
    """Orthonormal bases of the columns of matrices, in their order: the `Q` of `QR`."""
    return jnp.linalg.qr(X)[0]


@orthonormal_columns.defjvp
def _orthonormal_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    r"""`Q^T dX = (\Omega + dR R^{-1}) R`: the antisymmetric part below the diagonal."""
    Q, R = jnp.linalg.qr(primals[0])
    pivots = jnp.abs(jnp.diagonal(R, axis1=1, axis2=2))
    known = (pivots > _noise(pivots))[:, None, :]  # other directions consist of rounding errors
    eye = jnp.eye(R.shape[-1], dtype=R.dtype)
    R = jnp.where(known & jnp.swapaxes(known, 1, 2), R, eye)
    moved = jnp.where(known, tangents[0], jnp.zeros_like(Q))
    right = matmul(adjoint(Q), moved)
    right = jax.lax.linalg.triangular_solve(R, right, left_side=False, lower=False)
    below = jnp.tril(right, -1)
    turn = matmul(Q, below - adjoint(below))
    if Q.shape[1] == Q.shape[2]:
        return Q, turn
    outside = jax.lax.linalg.triangular_solve(R, moved, left_side=False, lower=False)
    return Q, turn + outside - matmul(Q, right)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def leading_directions(A: jax.Array, r: int) -> jax.Array:
    """The first singular vectors of matrices `[k, m, n]` along their longer side, `r` columns."""
    return _directions(A)[0][:, :, :r]


def _directions(A: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Singular values, and the singular vectors of the longer and the shorter side."""
    U, s, Vh = jnp.linalg.svd(A, full_matrices=False)
    return (U, s, adjoint(Vh)) if A.shape[1] >= A.shape[2] else (adjoint(Vh), s, U)


@leading_directions.defjvp
def _leading_jvp(r: int, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    (A,), (dA,) = primals, tangents
    U, s, V = _directions(A)
    moved = matmul(dA if A.shape[1] >= A.shape[2] else adjoint(dA), V)
    inside = matmul(adjoint(U), moved)
    sizes = s[:, None, :].astype(U.dtype)
    turn = inside * sizes + adjoint(inside * sizes)
    turn = turn * _inverse_differences(jnp.square(s)).astype(U.dtype)
    known = (s > _noise(s))[:, None, :]
    outside = (moved - matmul(U, inside)) / jnp.where(known, sizes, jnp.ones_like(sizes))
    outside = jnp.where(known, outside, jnp.zeros_like(outside))
    return U[:, :, :r], (matmul(U, turn) + outside)[:, :, :r]


@jax.custom_jvp
def inverse_root(A: jax.Array, eps: jax.Array, exponent: jax.Array) -> jax.Array:
    """`(A + eps lambda_max I)^-exponent`; a large multiple of the identity for `A = 0`."""
    return _inverse_root(A, eps, exponent)[0]


def _inverse_root(A: jax.Array, eps: jax.Array, exponent: jax.Array) -> tuple[Any, ...]:
    values, vectors = jnp.linalg.eigh(A)
    # The rounding error of an eigenvalue 0 could exceed the ridge.
    noise = A.shape[-1] * jnp.finfo(A.dtype).eps * values[:, -1:]
    seen = values > noise
    largest = values[:, -1:]
    values = jnp.where(seen, values, jnp.zeros_like(values))
    values = values + jnp.maximum(eps * largest, jnp.finfo(A.dtype).tiny)
    root = matmul(vectors * (values**-exponent)[:, None, :], jnp.swapaxes(vectors, 1, 2))
    return root, values, vectors, seen, largest


@inverse_root.defjvp
def _inverse_root_jvp(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """The derivative of a matrix function by divided differences (Daleckii and Krein, 1965)."""
    _, eps, exponent = primals
    dA, deps, dexponent = tangents
    root, values, vectors, seen, largest = _inverse_root(*primals)
    inside = matmul(matmul(jnp.swapaxes(vectors, 1, 2), dA), vectors)
    # Zeros have no derivative. Unselected numbers must be finite too, because their products with
    # zero tangents would be NaN.
    some = largest > 0
    values = jnp.where(some, values, jnp.ones_like(values))
    a, b = values[:, :, None], values[:, None, :]
    # The larger number is factored out, so that nothing overflows.
    large, log = jnp.maximum(a, b), -jnp.abs(jnp.log(a) - jnp.log(b))
    same = log == 0
    quotient = jnp.expm1(-exponent * log) / jnp.where(same, -jnp.ones_like(log), jnp.expm1(log))
    slope = jnp.where(same, -exponent, quotient) * large ** (-exponent - 1)
    # Eigenvalues below rounding error count as zero, and stay zero.
    either = seen[:, :, None] | seen[:, None, :]
    change = jnp.where(either, slope, jnp.zeros_like(slope)) * inside
    ridge = eps * inside[:, -1:, -1] + deps * largest  # the change of `eps * largest`
    powers = jnp.where(some, values**-exponent, jnp.zeros_like(values))
    diagonal = -exponent * powers / values * ridge - dexponent * jnp.log(values) * powers
    change = change + diagonal[:, :, None] * jnp.eye(values.shape[-1], dtype=values.dtype)
    return root, matmul(matmul(vectors, change), jnp.swapaxes(vectors, 1, 2))
