"""Steps from a Gram matrix with a narrow band, by a factorisation along the band."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import matmul
from fnopt.linear._gram_system import SparseGramSystem
from fnopt.linear._secular import Solvers, cholesky
from fnopt.sharding import pvary_like


class BandFactor(NamedTuple):
    r"""The blocks of :math:`G + \lambda I = L L^T`."""

    L: jax.Array  # [blocks, size, size], on the diagonal
    Z: jax.Array  # [blocks, size, size], the transposes of those left of it; the first is 0


def band_cholesky(G: jax.Array, lam: jax.Array) -> BandFactor:
    r"""Factors a matrix in blocks, one after the other; NaN if it isn't positive definite.

    .. math:: L_{i-1} Z_i = G_{i,i-1}^T, \qquad L_i L_i^T = G_{ii} + \lambda I - Z_i^T Z_i

    Args:
        G: The blocks on the diagonal and left of it, of shape `[blocks, 2, size, size]`; above
            the diagonal they may hold anything.
        lam: The damping, a scalar.

    Returns:
        The factor, for :math:`7/3\, n b^2` operations where blocks have the size `b`.
    """

    def step(L: jax.Array, blocks: jax.Array) -> tuple[jax.Array, BandFactor]:
        Z = _solve(L, blocks[1].T)
        L = cholesky(blocks[0] - matmul(Z.T, Z), lam)
        return L, BandFactor(L, Z)

    return lax.scan(step, pvary_like(jnp.eye(G.shape[-1], dtype=G.dtype), G), G)[1]


def band_forward(factor: BandFactor, b: jax.Array) -> jax.Array:
    r"""Solves :math:`L y = b` for blocks `[blocks, size]`."""

    def step(y: jax.Array, at: tuple[BandFactor, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (L, Z), b = at
        y = _solve(L, (b - matmul(y, Z))[:, None])[:, 0]
        return y, y

    return lax.scan(step, pvary_like(jnp.zeros_like(b[0]), (factor, b)), (factor, b))[1]


def band_backward(factor: BandFactor, y: jax.Array) -> jax.Array:
    r"""Solves :math:`L^T x = y` for blocks `[blocks, size]`."""

    def step(rest: jax.Array, at: tuple[BandFactor, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (L, Z), y = at
        x = _solve(L, (y - rest)[:, None], True)[:, 0]
        return matmul(Z, x), x

    return lax.scan(step, pvary_like(jnp.zeros_like(y[0]), (factor, y)), (factor, y), reverse=True)[
        1
    ]


def _solve(L: jax.Array, B: jax.Array, transposed: bool = False) -> jax.Array:
    return lax.linalg.triangular_solve(L, B, left_side=True, lower=True, transpose_a=transposed)


@dataclasses.dataclass(frozen=True)
class BandedGramSystem(SparseGramSystem):
    r"""A linear model whose normal equations have a narrow band.

    The steps are those of :class:`TallGramSystem`, for :math:`O(n b^2)` operations rather than
    :math:`O(n^3)`, and for :math:`2 n b` numbers.

    Args:
        G: The blocks of :math:`A^T A`, of shape `[blocks, 2, size, size]`.
        g: :math:`A^T r`, of shape `[n]`.
        start: A guess of the damping, a scalar; it saves factorisations.
        pull: :math:`w \mapsto A^T w`.
        push: :math:`v \mapsto A v`.
        layout: The band, which says where an unknown is in the blocks.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fnopt.jacobians import SparseJacobian, Sparsity
        >>> from fnopt.linear import BandedGramSystem, band_of
        >>> i = np.arange(3)
        >>> A = SparseJacobian(jnp.full((3, 1), 2.0), Sparsity(i, i, (3, 3)))
        >>> band = band_of(A.sparsity, A.by_rows, 8)
        >>> g, zero = A.rmv(jnp.ones(3)), jnp.float32(0)
        >>> system = BandedGramSystem(band.gram(A), g, zero, A.rmv, A.mv, band)
        >>> print(system.gauss_newton().p.round(4))
        [-0.5 -0.5 -0.5]
    """

    def _factor(self, lam: jax.Array) -> Any:
        return band_cholesky(self.G, lam)

    def _diagonal(self, factor: Any) -> jax.Array:
        return jnp.diagonal(factor.L, axis1=1, axis2=2).ravel()

    def _solvers(self, factor: Any) -> Solvers:
        return Solvers(
            lambda b: band_forward(factor, self.layout.blocked(b)),
            lambda y: self.layout.flat(band_backward(factor, y)),
        )
