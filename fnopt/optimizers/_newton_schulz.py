"""The orthogonal factor of matrices by odd polynomials (Newton-Schulz iterations)."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import check_choice
from fnopt.numerics import add_epsilon, matmul, nonzero, safe_sqrt
from fnopt.optimizers._matrix_functions import adjoint

Triple = tuple[float, float, float]

# After this number of polynomials in the Gram matrix, the matrix is recomputed, because rounding
# errors of its smallest eigenvalues grow by up to 69 in a step, and a negative eigenvalue would
# diverge.
_STEPS_OF_A_GRAM = 3
# A few matrices at a time fit in the cache of a CPU core; this many entries outweigh the loop's
# cost.
_LEAST_AT_A_TIME = 2**14

# Jordan et al., 2024, https://kellerjordan.github.io/posts/muon
STANDARD: Triple = (3.4445, -4.7750, 2.0315)
# Ahn et al., 2025, arXiv:2504.05295
_DION: tuple[Triple, ...] = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
# Amsel et al., 2025, arXiv:2505.16932: minimax polynomials for singular values from 1e-3 to 1.
_POLAR_EXPRESS: tuple[Triple, ...] = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
# Every polynomial except the last is evaluated at x / 1.01, so that rounding can't leave its
# interval.
_SLACK = 1.01

PRESETS = ("standard", "dion", "polar_express")
PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")


def as_coefficients(given: Any) -> Any:
    """Convert a preset's name, three numbers, or a sequence of such triples to a hashable form."""
    if isinstance(given, str):
        check_choice(given, PRESETS, "ns_coeffs", "orthogonalize")
        return given
    try:
        nested = [[*map(float, row)] for row in given]
        if nested and all(len(row) == 3 for row in nested):
            return tuple(map(tuple, nested))
    except TypeError:
        if len(given) == 3:
            return tuple(map(float, given))
    raise ValueError(
        f"ns_coeffs = {given!r}, expected three numbers, a sequence of such triples, or one of "
        f"{', '.join(map(repr, PRESETS))}."
    )


def polynomials(coefficients: Any, steps: int) -> tuple[Triple, ...]:
    """Return the coefficients of every step."""
    if coefficients == "polar_express":
        scaled = [
            tuple(c / _SLACK**i for c, i in zip(t, (1, 3, 5), strict=True))
            for t in _POLAR_EXPRESS[:-1]
        ]
        last = (_POLAR_EXPRESS[-1],) * max(0, steps - len(scaled))
        return (*scaled[:steps], *last)  # pyright: ignore[reportReturnType]
    if coefficients == "dion":
        return _DION[-steps:] if steps < len(_DION) else _DION
    if coefficients == "standard":
        coefficients = STANDARD
    return coefficients if isinstance(coefficients[0], tuple) else (coefficients,) * steps


def orthogonalize_matrices(
    x: jax.Array, coefficients: tuple[Triple, ...], eps: Any, preconditioning: str = "frobenius"
) -> jax.Array:
    r"""Approximate the polar factor `U V^T` of every matrix `U S V^T`.

    .. math:: X_{k+1} = (a_k I + b_k A_k + c_k A_k^2)\, X_k, \qquad A_k = X_k X_k^\top

    For wide matrices, several polynomials are multiplied before they are applied to `X`.
    :math:`A_{k+1} = P_k A_k P_k` doesn't need `X`, and products of `m` by `m` matrices are cheaper
    than products of `m` by `n` matrices.

    Args:
        x: Real or complex matrices `[k, m, n]` with `m <= n`.
        coefficients: `(a, b, c)` for every step.
        eps: A lower bound of the norms, a scalar of the real dtype.
        preconditioning: The method of scaling singular values below 1 before the first step.

    Returns:
        Matrices like `x`.
    """
    several = functools.partial(
        _orthogonalize_batch, coefficients=coefficients, eps=eps, preconditioning=preconditioning
    )
    count = _batch_size(x.shape)
    if count == len(x):
        return several(x)

    def write(i: Any, x: jax.Array) -> jax.Array:  # in place: the loop needs no second stack
        part = jax.lax.dynamic_slice_in_dim(x, count * i, count)
        return jax.lax.dynamic_update_slice_in_dim(x, several(part), count * i, 0)

    return jax.lax.fori_loop(0, len(x) // count, write, x)


def _batch_size(shape: tuple[int, ...]) -> int:
    """Number of matrices in one batched product: all of them on accelerators."""
    k, m, n = shape
    if jax.default_backend() != "cpu":
        return k
    # A batch has at least two matrices, because a single matrix is slower.
    enough = (c for c in range(2, k) if k % c == 0 and c * m * n >= _LEAST_AT_A_TIME)
    return next(enough, k)


def _orthogonalize_batch(
    x: jax.Array, coefficients: tuple[Triple, ...], eps: Any, preconditioning: str
) -> jax.Array:
    # Values are divided by the largest element, because squares of 1e-24 would be 0, and squares of
    # 1e20 infinite.
    largest = jnp.max(jnp.abs(x), axis=(1, 2), keepdims=True)
    unit = jax.lax.stop_gradient(nonzero(largest))
    x, A = _precondition(x / unit.astype(x.dtype), eps / unit, preconditioning)
    if _cheaper_by_gram(x, len(coefficients)):
        return _iterate_gram(x, A, coefficients)
    for i, (a, b, c) in enumerate(coefficients):
        A = gram(x) if i else A
        x = a * x + matmul(b * A + c * matmul(A, A), x)
    return x


def gram(x: jax.Array) -> jax.Array:
    """`X X^H` of each matrix."""
    return matmul(x, adjoint(x))


def _precondition(x: jax.Array, eps: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
    """Scale matrices to singular values of at most about 1; also return their Gram matrices."""
    A = gram(x)
    if kind == "aol":
        # Almost-orthogonal layers (AOL): rows and columns of X X^H are divided by the roots of
        # these sums, so that no eigenvalue is above 1.
        rows = jnp.sum(jnp.abs(A), axis=2, keepdims=True)
        rows = jnp.where(rows == 0, jnp.ones_like(rows), jnp.maximum(rows, eps * eps))
        factor = jax.lax.rsqrt(rows).astype(x.dtype)
        return x * factor, A * factor * jnp.swapaxes(factor, 1, 2)
    if kind == "schatten":
        # The norm is the fourth root of the sum of the fourth powers of the singular values. It is
        # never below the largest one, and nearer to it than the Frobenius norm.
        norm = safe_sqrt(safe_sqrt(jnp.sum(jnp.square(jnp.abs(A)), axis=(1, 2), keepdims=True)))
        norm = jnp.where(norm == 0, jnp.ones_like(norm), jnp.maximum(norm, eps))
    elif kind == "spectral":
        norm = add_epsilon(safe_sqrt(jnp.linalg.eigvalsh(A)[:, -1:, None]), eps)
    else:
        norm = safe_sqrt(jnp.real(jnp.trace(A, axis1=1, axis2=2))[:, None, None])
        norm = add_epsilon(norm, eps)
    factor = (1 / norm).astype(x.dtype)
    return x * factor, A * factor * factor


def _cheaper_by_gram(x: jax.Array, steps: int) -> bool:
    """Whether the Gram matrix is cheaper and accurate enough (not in 16 bits)."""
    _, m, n = x.shape
    restarts = math.ceil(steps / _STEPS_OF_A_GRAM)
    plain = steps * (2 * n + m)
    return (
        jnp.finfo(x.dtype).bits >= 32 and restarts * 2 * n + (4 * steps - 3 * restarts) * m < plain
    )


def _iterate_gram(x: jax.Array, A: jax.Array, coefficients: tuple[Triple, ...]) -> jax.Array:
    eye = jnp.eye(x.shape[1], dtype=x.dtype)
    for start in range(0, len(coefficients), _STEPS_OF_A_GRAM):
        (a, b, c), *others = coefficients[start : start + _STEPS_OF_A_GRAM]
        A = gram(x) if start else A
        Q = P = a * eye + b * A + c * matmul(A, A)
        for a, b, c in others:
            A = matmul(matmul(P, A), P)
            P = a * eye + b * A + c * matmul(A, A)
            Q = matmul(P, Q)
        x = matmul(Q, x)
    return x
