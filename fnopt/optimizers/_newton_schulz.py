"""Orthogonal polar factors of matrices, by odd polynomials (Newton-Schulz iterations)."""

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

# Number of steps after which the Gram matrix is recomputed. A step multiplies rounding errors of
# the smallest eigenvalues by up to 69, and the iteration would diverge for a negative eigenvalue.
_STEPS_PER_GRAM = 3
# Smallest number of entries of a batch on a CPU. Small batches fit in the cache of a core, but
# smaller batches than this are slower because of the loop's overhead.
_MIN_BATCH_ENTRIES = 2**14

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
# Every polynomial except the last is evaluated at x / 1.01, because rounding errors could otherwise
# move singular values out of the polynomial's interval.
_SAFETY_FACTOR = 1.01

PRESETS = ("standard", "dion", "polar_express")
PRECONDITIONINGS = ("frobenius", "spectral", "aol", "schatten")


def as_coefficients(coefficients: Any) -> Any:
    """Convert a preset's name, three numbers, or a sequence of triples to a hashable form."""
    if isinstance(coefficients, str):
        check_choice(coefficients, PRESETS, "ns_coeffs", "orthogonalize")
        return coefficients
    try:
        triples = [[*map(float, row)] for row in coefficients]
        if triples and all(len(row) == 3 for row in triples):
            return tuple(map(tuple, triples))
    except TypeError:
        if len(coefficients) == 3:
            return tuple(map(float, coefficients))
    raise ValueError(
        f"ns_coeffs = {coefficients!r}, expected three numbers, a sequence of triples of numbers, "
        f"or one of {', '.join(map(repr, PRESETS))}."
    )


def polynomials(coefficients: Any, steps: int) -> tuple[Triple, ...]:
    """Return the coefficients `(a, b, c)` of every step."""
    if coefficients == "polar_express":
        scaled = [
            tuple(c / _SAFETY_FACTOR**i for c, i in zip(t, (1, 3, 5), strict=True))
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

    For wide matrices, the polynomials :math:`P_k = a_k I + b_k A_k + c_k A_k^2` of several steps
    are multiplied before they are applied to `X`. Since :math:`A_{k+1} = P_k A_k P_k` doesn't
    depend on `X`, this replaces products of `m` by `n` matrices by cheaper products of `m` by `m`
    matrices.

    Args:
        x: Real or complex matrices `[k, m, n]` with `m <= n`.
        coefficients: `(a, b, c)` of every step.
        eps: The constant added to norms, or their lower bound; a scalar of the real dtype.
        preconditioning: The method of scaling singular values below 1 before the first step.

    Returns:
        Matrices like `x`.
    """
    orthogonalize_batch = functools.partial(
        _orthogonalize_batch, coefficients=coefficients, eps=eps, preconditioning=preconditioning
    )
    size = _batch_size(x.shape)
    if size == len(x):
        return orthogonalize_batch(x)

    # The loop overwrites `x` in place, so it needs no second stack.
    def update_batch(i: Any, x: jax.Array) -> jax.Array:
        batch = jax.lax.dynamic_slice_in_dim(x, size * i, size)
        return jax.lax.dynamic_update_slice_in_dim(x, orthogonalize_batch(batch), size * i, 0)

    return jax.lax.fori_loop(0, len(x) // size, update_batch, x)


def _batch_size(shape: tuple[int, ...]) -> int:
    """Number of matrices in one batched product; on accelerators, all matrices."""
    k, m, n = shape
    if jax.default_backend() != "cpu":
        return k
    # At least two, because a product of single matrices is slower than a batched product.
    sizes = (c for c in range(2, k) if k % c == 0 and c * m * n >= _MIN_BATCH_ENTRIES)
    return next(sizes, k)


def _orthogonalize_batch(
    x: jax.Array, coefficients: tuple[Triple, ...], eps: Any, preconditioning: str
) -> jax.Array:
    # Divide by the largest element, because in float32 the square of 1e-24 is 0, and the square of
    # 1e20 is infinite.
    largest = jnp.max(jnp.abs(x), axis=(1, 2), keepdims=True)
    scale = jax.lax.stop_gradient(nonzero(largest))
    x, A = _precondition(x / scale.astype(x.dtype), eps / scale, preconditioning)
    if _is_gram_cheaper(x, len(coefficients)):
        return _iterate_gram(x, A, coefficients)
    for i, (a, b, c) in enumerate(coefficients):
        A = gram(x) if i else A
        x = a * x + matmul(b * A + c * matmul(A, A), x)
    return x


def gram(x: jax.Array) -> jax.Array:
    """Gram matrix `X X^H` of each matrix."""
    return matmul(x, adjoint(x))


def _precondition(x: jax.Array, eps: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
    """Scale matrices to singular values of at most about 1; also return the Gram matrices."""
    A = gram(x)
    if kind == "aol":
        # Almost-orthogonal layers (AOL): rows and columns of X X^H are divided by the roots of
        # the absolute row sums, so no eigenvalue is above 1 (Gershgorin).
        sums = jnp.sum(jnp.abs(A), axis=2, keepdims=True)
        sums = jnp.where(sums == 0, jnp.ones_like(sums), jnp.maximum(sums, eps * eps))
        factor = jax.lax.rsqrt(sums).astype(x.dtype)
        return x * factor, A * factor * jnp.swapaxes(factor, 1, 2)
    if kind == "schatten":
        # Schatten 4-norm, (sum_i s_i^4)^(1/4) = ||X X^H||_F^(1/2). It is at least the largest
        # singular value, and a tighter bound than the Frobenius norm.
        norm = safe_sqrt(safe_sqrt(jnp.sum(jnp.square(jnp.abs(A)), axis=(1, 2), keepdims=True)))
        norm = jnp.where(norm == 0, jnp.ones_like(norm), jnp.maximum(norm, eps))
    elif kind == "spectral":
        norm = add_epsilon(safe_sqrt(jnp.linalg.eigvalsh(A)[:, -1:, None]), eps)
    else:
        norm = safe_sqrt(jnp.real(jnp.trace(A, axis1=1, axis2=2))[:, None, None])
        norm = add_epsilon(norm, eps)
    factor = (1 / norm).astype(x.dtype)
    return x * factor, A * factor * factor


def _is_gram_cheaper(x: jax.Array, steps: int) -> bool:
    """Whether iterating the Gram matrix is cheaper; False in 16 bits, where it is inaccurate."""
    _, m, n = x.shape
    restarts = math.ceil(steps / _STEPS_PER_GRAM)
    # Costs in units of 2 m^2 operations. A step on X has two products of size m n, and A A. A step
    # on A has four products of size m m, but only one after a restart, which computes A and Q X.
    cost_of_x = steps * (2 * n + m)
    cost_of_gram = restarts * 2 * n + (4 * steps - 3 * restarts) * m
    return jnp.finfo(x.dtype).bits >= 32 and cost_of_gram < cost_of_x


def _iterate_gram(x: jax.Array, A: jax.Array, coefficients: tuple[Triple, ...]) -> jax.Array:
    """Apply several steps at a time, as the product `Q` of their polynomials in `A`."""
    eye = jnp.eye(x.shape[1], dtype=x.dtype)
    for start in range(0, len(coefficients), _STEPS_PER_GRAM):
        (a, b, c), *others = coefficients[start : start + _STEPS_PER_GRAM]
        A = gram(x) if start else A
        Q = P = a * eye + b * A + c * matmul(A, A)
        for a, b, c in others:
            A = matmul(matmul(P, A), P)
            P = a * eye + b * A + c * matmul(A, A)
            Q = matmul(P, Q)
        x = matmul(Q, x)
    return x
