"""Solution of systems with a damped Gram matrix, by Cholesky or conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.numerics import HIGHEST, matmul

Map = Callable[[jax.Array], jax.Array]
# Smallest factor of a preconditioner, in machine epsilons. `I - U U^T` has rounding errors of 1.8
# machine epsilons in the span of 200 vectors with 4,000 entries. Smaller factors than these errors
# could make the preconditioner indefinite.
_MIN_FACTOR = 16


class Nystrom(NamedTuple):
    r"""Nyström approximation :math:`U \Lambda U^\top` of a positive semidefinite matrix.

    Attributes:
        vectors: `U`, `[N, l]`, orthonormal.
        values: The diagonal of :math:`\Lambda`, `[l]`, in decreasing order.
    """

    vectors: jax.Array
    values: jax.Array

    def preconditioner(self, damping: jax.Array) -> Map:
        r"""Preconditioner :math:`P^{-1}`, approximately a multiple of :math:`(A + \mu I)^{-1}`.

        .. math:: P^{-1} = (\lambda_l + \mu)\, U (\Lambda + \mu)^{-1} U^\top + (I - U U^\top)
        """
        U, smallest = self.vectors, self.values[-1]
        factors = (smallest + damping) / (self.values + damping)
        factors = jnp.maximum(factors, _MIN_FACTOR * float(jnp.finfo(U.dtype).eps)) - 1
        return lambda v: v + matmul(U, factors * matmul(U.T, v))


def nystrom(times: Map, size: int, rank: int, dtype: Any) -> Nystrom:
    r"""Compute a randomized Nyström approximation of a positive semidefinite matrix.

    .. math:: \hat A = (A \Omega) (\Omega^\top A \Omega)^{+} (A \Omega)^\top

    Args:
        times: The product with the matrix.
        size: The number of rows, `N`.
        rank: Rank of the approximation, at most `N`; equals the number of sequential products.
        dtype: The dtype of the vectors.

    Returns:
        The approximation; exact if the rank of the matrix is at most `rank`.

    Reference:
        Frangella, Tropp and Udell, 2021, "Randomized Nyström preconditioning", arXiv:2110.02820.
    """
    draws = jax.random.normal(jax.random.key(0), (size, min(rank, size)), dtype)
    omega = jnp.linalg.qr(draws)[0]
    sketch = jax.lax.map(times, omega.T).T
    # Frangella, Tropp and Udell (2023), algorithm 2.1: a shift by the rounding error keeps the core
    # matrix positive definite.
    tiny, scale = jnp.asarray(jnp.finfo(dtype).tiny, dtype), _largest(sketch)
    shift = size**0.5 * jnp.finfo(dtype).eps * jnp.linalg.norm(sketch / scale) * scale
    shift = jnp.maximum(shift, tiny)
    shifted = sketch + shift * omega
    core = matmul(omega.T, shifted)
    # The paper uses a Cholesky factorization, which may fail in float32 because of rounding.
    values, vectors = jnp.linalg.eigh((core + core.T) / 2)
    root = matmul(shifted, vectors) / jnp.sqrt(jnp.maximum(values, shift))
    U, s, _ = jnp.linalg.svd(root, full_matrices=False)
    return Nystrom(U, jnp.maximum(s * s - shift, jnp.zeros_like(s)))


def _largest(x: jax.Array) -> jax.Array:
    """Largest modulus, or 1 if it is 0 or infinite; division by it prevents overflow of squares."""
    top = jnp.max(jnp.abs(x), initial=0)
    return jnp.where((top > 0) & (top < jnp.inf), top, jnp.ones_like(top))


class _CGIterate(NamedTuple):
    x: jax.Array
    r: jax.Array  # b - A x
    d: jax.Array  # the direction
    gamma: jax.Array  # r^T P^-1 r
    count: jax.Array  # int32


def conjugate_gradients(
    times: Map, b: jax.Array, precondition: Map, tol: float, iterations: int
) -> tuple[jax.Array, jax.Array]:
    r"""Solve `A x = b` for a positive definite matrix by preconditioned conjugate gradients.

    Args:
        times: The product with `A`.
        b: The right-hand side, `[N]`.
        precondition: The product with the positive definite preconditioner.
        tol: Relative residual norm at which the iteration stops.
        iterations: Maximum number of products.

    Returns:
        The solution, and the number of products. The solution is NaN if the right-hand side or its
        preconditioned form isn't finite. If rounding errors cause a search direction of negative
        curvature, the iteration stops and returns its last iterate.
    """
    scale = _largest(b)
    b = b / scale
    z = precondition(b)
    gamma = jnp.dot(b, z, precision=HIGHEST)
    squared_tol = (tol * tol) * jnp.dot(b, b, precision=HIGHEST)
    # NaN ends the loop before the first product; the result must not be a zero step.
    start = jnp.where(jnp.isfinite(gamma), jnp.zeros_like(b), jnp.full_like(b, jnp.nan))
    first = _CGIterate(start, b, z, gamma, jnp.zeros((), jnp.int32))

    def unfinished(state: _CGIterate) -> jax.Array:
        residual = jnp.dot(state.r, state.r, precision=HIGHEST)
        return (residual > squared_tol) & (state.gamma > 0) & (state.count < iterations)

    def advance(state: _CGIterate) -> _CGIterate:
        q = times(state.d)
        curvature = jnp.dot(state.d, q, precision=HIGHEST)
        no_curvature = curvature <= 0  # False for NaN
        alpha = jnp.where(no_curvature, jnp.zeros_like(curvature), state.gamma / curvature)
        x, r = state.x + alpha * state.d, state.r - alpha * q
        z = precondition(r)
        gamma = jnp.where(no_curvature, jnp.zeros_like(curvature), jnp.dot(r, z, precision=HIGHEST))
        return _CGIterate(x, r, z + gamma / state.gamma * state.d, gamma, state.count + 1)

    end = jax.lax.while_loop(unfinished, advance, first)
    return scale * end.x, end.count


# Maximum number of rows for a factorization: four matrices of this size take 17 GB in float32, a
# fifth of an accelerator with 80 GB.
_MAX_ROWS = 32768
# Matrices in memory: the Gram matrix, its transform, the damped matrix and its factor.
_MATRICES = 4


class DampedGram(NamedTuple):
    r"""Damped Gram matrix :math:`K + \lambda I`, as products with `K` and with the inverse.

    Attributes:
        times: The product with `K`.
        inverse: The product with :math:`(K + \lambda I)^{-1}`.
        lam: :math:`\lambda`, at least the rounding error of `K`.
    """

    times: Map
    inverse: Map
    lam: jax.Array


def check_rows(count: int, what: str, dtype: Any, where: str, instead: str = "solver='cg'") -> None:
    """Check that the Gram matrix of all rows is small enough for a factorization.

    Args:
        count: Number of rows.
        what: Plural noun for the rows, for the message.
        dtype: The dtype of the matrix.
        where: The beginning of the message.
        instead: The option that avoids the matrix.
    """
    if count > _MAX_ROWS:
        size = _MATRICES * count**2 * jnp.dtype(dtype).itemsize / 1e9
        raise ValueError(
            f"{where}the batch has {count} {what}, and the factorization of their Gram matrix "
            f"needs {size:,.0f} GB; expected {_MAX_ROWS} {what} at most. Pass smaller batches, or "
            f"{instead}, which doesn't form this matrix."
        )


def solve_by_cholesky(K: jax.Array, damping: jax.Array) -> DampedGram:
    """Factorize `K` with damping by Cholesky's method."""
    # The rounding error of K is at most eps |K| <= eps tr(K) in norm; twice that keeps K + lam I
    # definite.
    lam = jnp.maximum(damping, 2 * jnp.finfo(K.dtype).eps * jnp.trace(K))
    damped = K + lam * jnp.eye(K.shape[0], dtype=K.dtype)
    factor = jax.scipy.linalg.cho_factor(damped, lower=True)
    return DampedGram(lambda x: matmul(K, x), lambda b: jax.scipy.linalg.cho_solve(factor, b), lam)


def solve_by_cg(
    times: Map, size: int, dtype: Any, damping: jax.Array, iterations: int, rank: int
) -> DampedGram:
    """Make the damped system for conjugate gradients, with one product with `K` per iteration.

    Args:
        times: The product with `K`.
        size: Number of rows.
        dtype: The dtype of the vectors.
        damping: The damping.
        iterations: Maximum number of iterations.
        rank: Rank of the Nyström preconditioner, which takes `rank` products; 0 disables it.
    """
    eps = float(jnp.finfo(dtype).eps)
    lam, precondition = damping, lambda r: r
    if rank:
        approximation = nystrom(times, size, rank, dtype)
        # The lower bound of the damping is the same as for Cholesky. Without a preconditioner, CG
        # doesn't resolve such small eigenvalues, so the damping needs no bound.
        lam = jnp.maximum(damping, 2 * eps * jnp.sum(approximation.values))
        precondition = approximation.preconditioner(lam)

    def inverse(b: jax.Array) -> jax.Array:
        # eps^(3/4) |b| is close to the attainable accuracy of CG in the dtype, and small relative
        # to the damping.
        return conjugate_gradients(
            lambda x: times(x) + lam * x, b, precondition, eps**0.75, iterations
        )[0]

    return DampedGram(times, inverse, lam)
