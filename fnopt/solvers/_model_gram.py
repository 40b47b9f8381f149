"""The linear model of a tall Jacobian by its normal equations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.linear import TallGramSystem, scaled_gram
from fnopt.residuals import linearise, linearise_gram, linearise_products
from fnopt.solvers._linearization import Linearization, Normal, half_square
from fnopt.solvers._model_base import LinearModel, Map, Rank, free, gram_rank


class TallGramModel(LinearModel):
    """One that keeps the Gram matrix instead of the Jacobian."""

    def evaluate(self, x: jax.Array, residual: jax.Array | None = None) -> Linearization:
        """The point with its Gram matrix."""
        del residual
        r, G, g = linearise_gram(self.flat, x, self.mode, self.chunk_size)
        return Linearization(x, r, Normal(G), half_square(r), g, jnp.sqrt(jnp.diagonal(G)))

    def factorise(self, point: Linearization, scale: jax.Array, rows: jax.Array) -> Any:
        """The Gram matrix in scaled variables."""
        del rows
        return scaled_gram(point.J.matrix, scale)

    def system(
        self, point: Linearization, factors: Any, scale: jax.Array, lam: jax.Array
    ) -> TallGramSystem:
        """Steps by the Gram matrix."""
        return TallGramSystem(factors, point.gradient / scale, lam, self._pull(point, scale))

    def _pull(self, point: Linearization, scale: jax.Array) -> Map | None:
        if self.mode == "forward":  # asked for by somebody whose function may have nothing else
            return None
        # Only called where the residual function is differentiated anyway.
        moving = free(point)
        return lambda w: moving * linearise_products(self.flat.r, point.x)[2](w) / scale

    def rank(self, factors: Any) -> Rank:
        """By the eigenvalues."""
        return gram_rank(factors)

    def jacobian(self, point: Linearization) -> Any:
        """The Jacobian, formed again; None where its Gram matrix was added up without it."""
        given = self.flat.derivative
        in_chunks = self.chunk_size is not None if given is None else given.gram is not None
        return None if in_chunks else linearise(self.flat, point.x, self.mode)[1]
