"""The linear model of a sparse Jacobian whose normal equations are a narrow band."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fnopt.core import row_total
from fnopt.linear import BandedGramSystem, BandLayout, band_of
from fnopt.residuals import FlatResidual
from fnopt.solvers.linear_model._base import LinearModel
from fnopt.solvers.linear_model._linearization import Linearization, half_square

_WIDEST = 128  # unknowns in a block of a band; beyond, conjugate gradients may be faster
_SHORTEST = 4  # blocks; a shorter band is a full matrix


def normal_band(flat: FlatResidual) -> BandLayout | None:
    """The band of the normal equations of a sparse Jacobian, if it is narrow."""
    given = flat.derivative
    if given is None or given.compressed is None or flat.rows < flat.n:
        return None
    _, sparsity, by_rows = given.compressed
    return band_of(sparsity, by_rows, min(_WIDEST, flat.n // _SHORTEST))


@dataclasses.dataclass(frozen=True)
class BandModel(LinearModel):
    """The model that keeps both the Jacobian, for its products, and its Gram matrix."""

    band: BandLayout

    def evaluate(self, x: jax.Array) -> Linearization:
        """The point with its Jacobian's entries and the band of its Gram matrix."""
        given = self.flat.derivative
        assert given is not None
        assert given.compressed is not None
        r, J, pull = self.linearised_rmv(x)
        G = row_total(self.band.gram(given.compressed.of(J)))
        columns = jnp.sqrt(self.band.diagonal(G))
        return Linearization(x, r, (J, G), half_square(r), pull(r), columns)

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> BandedGramSystem:
        """Steps by the band in scaled variables."""
        J, G = point.J
        push, pull = self.products(point._replace(J=J))
        return BandedGramSystem(
            self.band.scaled(G, scale),
            point.gradient / scale,
            lam,
            lambda w: pull(w) / scale,
            lambda v: push(v / scale),
            self.band,
        )
