"""Steps by the Cholesky factorization of block-tridiagonal Gram matrices."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.linear._gram_system import SparseGramSystem
from fnopt.linear._secular import Solvers, backward, cholesky, forward
from fnopt.numerics import matmul
from fnopt.sharding import pvary_like


class BandFactor(NamedTuple):
    r"""The blocks of :math:`G + \lambda I = L L^T`."""

    L: jax.Array  # [blocks, size, size], the diagonal blocks
    Z: jax.Array  # [blocks, size, size], the transposed subdiagonal blocks; the first is 0


def band_cholesky(G: jax.Array, lam: jax.Array) -> BandFactor:
    r"""Factor a block-tridiagonal matrix; NaN if it isn't positive definite.

    .. math:: L_{i-1} Z_i = G_{i,i-1}^T, \qquad L_i L_i^T = G_{ii} + \lambda I - Z_i^T Z_i

    Args:
        G: The diagonal and subdiagonal blocks, of shape `[blocks, 2, size, size]`; entries above
            the diagonal of the matrix are ignored.
        lam: The damping, a scalar.

    Returns:
        The factor, which takes :math:`7/3\, n b^2` operations for blocks of size `b`.
    """

    def step(L: jax.Array, blocks: jax.Array) -> tuple[jax.Array, BandFactor]:
        Z = lax.linalg.triangular_solve(L, blocks[1].T, left_side=True, lower=True)
        L = cholesky(blocks[0] - matmul(Z.T, Z), lam)
        return L, BandFactor(L, Z)

    # Inside shard_map, the initial carry of a scan must vary over the same axes as its result.
    return lax.scan(step, pvary_like(jnp.eye(G.shape[-1], dtype=G.dtype), G), G)[1]


def band_forward(factor: BandFactor, b: jax.Array) -> jax.Array:
    r"""Solve :math:`L y = b` for blocks `[blocks, size]`."""

    def step(y: jax.Array, blocks: tuple[BandFactor, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (L, Z), b = blocks
        y = forward(L, b - matmul(y, Z))
        return y, y

    return lax.scan(step, pvary_like(jnp.zeros_like(b[0]), (factor, b)), (factor, b))[1]


def band_backward(factor: BandFactor, y: jax.Array) -> jax.Array:
    r"""Solve :math:`L^T x = y` for blocks `[blocks, size]`."""

    def step(Zx: jax.Array, blocks: tuple[BandFactor, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (L, Z), y = blocks
        x = backward(L, y - Zx)
        return matmul(Z, x), x

    start = pvary_like(jnp.zeros_like(y[0]), (factor, y))
    return lax.scan(step, start, (factor, y), reverse=True)[1]


@dataclasses.dataclass(frozen=True)
class BandedGramSystem(SparseGramSystem):
    r"""A linear model whose normal equations have a narrow band.

    The steps are equal to the steps of :class:`TallGramSystem`. For a bandwidth `b`, a step takes
    :math:`O(n b^2)` operations instead of :math:`O(n^3)`, and memory for :math:`2 n b` numbers.

    Args:
        G: The blocks of :math:`A^T A`, of shape `[blocks, 2, size, size]`.
        g: :math:`A^T r`, of shape `[n]`.
        start: An initial guess of the damping, a scalar; a good guess saves factorizations.
        pull: :math:`w \mapsto A^T w`.
        push: :math:`v \mapsto A v`.
        layout: The layout of the band.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fnopt.jacobians import SparseJacobian, Sparsity, band_of
        >>> from fnopt.linear import BandedGramSystem
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

    def _solvers(self, factor: Any) -> Solvers:
        return Solvers(
            lambda b: band_forward(factor, self.layout.blocked(b)),
            lambda y: self.layout.flat(band_backward(factor, y)),
        )
