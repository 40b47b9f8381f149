"""The linear model of a sparse Jacobian whose normal equations can be factorised."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.jacobians import elimination
from fnopt.linear import (
    BandedGramSystem,
    BlockLayout,
    EliminatedGramSystem,
    TallGramSystem,
    band_of,
)
from fnopt.residuals import FlatResidual
from fnopt.sharding import psum_rows
from fnopt.solvers.linear_model._base import LinearModel, Map
from fnopt.solvers.linear_model._linearization import Linearization, half_square

_WIDEST = 128  # unknowns in a block of a band; beyond, conjugate gradients may be faster
_SHORTEST = 4  # blocks; a shorter band is a full matrix


def sparse_gram_model(
    flat: FlatResidual, mode: str, chunk_size: int | None
) -> SparseGramModel | None:
    """The model by a narrow band, or else by elimination; None where neither is affordable."""
    given = flat.derivative
    if given is None or given.compressed is None or flat.rows < flat.n:
        return None
    _, sparsity, by_rows = given.compressed
    band = band_of(sparsity, by_rows, min(_WIDEST, flat.n // _SHORTEST))
    if band is not None:
        return SparseGramModel(flat, mode, chunk_size, band, BandedGramSystem)
    plan = elimination(sparsity, by_rows)
    if not plan.is_affordable:
        return None
    return SparseGramModel(flat, mode, chunk_size, BlockLayout(plan), EliminatedGramSystem)


@dataclasses.dataclass(frozen=True)
class SparseGramModel(LinearModel):
    """The model that keeps both the Jacobian, for its products, and its sparse Gram matrix."""

    layout: Any
    algebra: type[BandedGramSystem] | type[EliminatedGramSystem]

    has_matrix: ClassVar[bool] = False

    def evaluate(self, x: jax.Array) -> Linearization:
        """The point with its Jacobian's entries and its Gram matrix."""
        given = self.flat.derivative
        assert given is not None
        assert given.compressed is not None
        r, J, pull = self.linearised_rmv(x)
        G = jax.tree.map(psum_rows, self.layout.gram(given.compressed.of(J)))
        columns = jnp.sqrt(self.layout.diagonal(G))
        return Linearization(x, r, (J, G), half_square(r), pull(r), columns)

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """The products with the Jacobian at a point, and with its transpose."""
        return super().products(point._replace(J=point.J[0]))

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> TallGramSystem:
        """Steps by a sparse factorisation in scaled variables."""
        push, pull = self.products(point)
        # A column that a bounded step has taken out is zero: a param of infinite scale.
        scale = jnp.where(point.columns > 0, scale, jnp.inf)
        return self.algebra(
            self.layout.scaled(point.J[1], scale),
            point.gradient / scale,
            lam,
            lambda w: pull(w) / scale,
            lambda v: push(v / scale),
            self.layout,
        )
