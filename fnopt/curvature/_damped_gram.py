"""Solves with a damped Gram matrix: factorised, or by products alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.curvature._conjugate_gradients import Map, conjugate_gradients, nystrom

_MOST = 32768  # rows that are factorised; four such matrices take 17 GB in float32
_MATRICES = 4  # of the Gram matrix's size: itself, in other coordinates, damped, its factor


class DampedGram(NamedTuple):
    r"""A damped Gram matrix :math:`K + \lambda I`: its products and those of its inverse.

    Attributes:
        times: The product with `K`.
        inverse: The product with :math:`(K + \lambda I)^{-1}`.
        lam: The damping, large enough for rounding.
    """

    times: Map
    inverse: Map
    lam: jax.Array


def check_rows(count: int, what: str, dtype: Any, where: str, instead: str = "solver='cg'") -> None:
    """Refuses more rows than are factorised, before their matrix takes memory.

    Args:
        count: How many there are.
        what: Their name in the plural.
        dtype: The dtype of the matrix.
        where: How the message begins.
        instead: The option that needs no matrix.
    """
    if count > _MOST:
        size = _MATRICES * count**2 * jnp.dtype(dtype).itemsize / 1e9
        raise ValueError(
            f"{where}the batch has {count} {what}, whose Gram matrix would be factorised in "
            f"{size:,.0f} GB; expected {_MOST} {what} at most. Give smaller batches, or "
            f"{instead}, which needs no such matrix."
        )


def solve_by_cholesky(K: jax.Array, damping: jax.Array) -> DampedGram:
    """Factorize a given matrix by Cholesky's method."""
    # The rounding of K must not make it indefinite.
    lam = jnp.maximum(damping, 2 * jnp.finfo(K.dtype).eps * jnp.trace(K))
    damped = K + lam * jnp.eye(K.shape[0], dtype=K.dtype)
    factor = jax.scipy.linalg.cho_factor(damped, lower=True)
    return DampedGram(lambda x: matmul(K, x), lambda b: jax.scipy.linalg.cho_solve(factor, b), lam)


def solve_by_cg(
    times: Map, size: int, dtype: Any, damping: jax.Array, iterations: int, rank: int
) -> DampedGram:
    """Solve by conjugate gradients, with one product with the matrix per iteration.

    Args:
        times: The product with `K`.
        size: How many rows it has.
        dtype: The dtype of the vectors.
        damping: The damping.
        iterations: How many at most.
        rank: That of Nyström's preconditioner, which takes as many products; 0 for none.
    """
    eps = float(jnp.finfo(dtype).eps)
    lam, precondition = damping, lambda r: r
    if rank:
        near = nystrom(times, size, rank, dtype)
        # As where it is factorised; without a preconditioner what is small is not solved for.
        lam = jnp.maximum(damping, 2 * eps * jnp.sum(near.values))
        precondition = near.preconditioner(lam)

    def damped(x: jax.Array) -> jax.Array:
        return times(x) + lam * x

    def inverse(b: jax.Array) -> jax.Array:
        return conjugate_gradients(damped, b, precondition, eps**0.75, iterations)[0]

    return DampedGram(times, inverse, lam)
