"""The linear model of a wide Jacobian that is never formed, by the Gram matrix of its rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.linear import WideGramSystem
from fnopt.residuals import linearise_pull, pushed
from fnopt.solvers._linearization import Linearization, half_square
from fnopt.solvers._model_base import LinearModel, Map, Rank, gram_rank


class RowsModel(LinearModel):
    r"""One that keeps :math:`K = J J^\top` of residuals that are given by example.

    Scaled variables need :math:`J D^{-2} J^\top`, which is no sum of products of what enters the
    model and what comes back unless `D` is one number: all params have the same scale, the root
    mean square of the columns' norms (Levenberg's damping, not Marquardt's).
    """

    has_matrix = False

    def evaluate(self, x: jax.Array, residual: jax.Array | None = None) -> Linearization:
        """The point with its Gram matrix."""
        del residual
        assert self.flat.gram is not None
        r, pull = linearise_pull(self.flat.r, x)
        K = self.flat.gram(x)
        column = jnp.sqrt(jnp.trace(K) / jnp.asarray(x.size, x.dtype))
        return Linearization(x, r, K, half_square(r), pull(r), jnp.full_like(x, column))

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """By a forward and a backward pass through the residuals."""
        r, x = self.flat.r, point.x
        # Only who pushes needs a forward derivative.
        return lambda v: pushed(r, (x,), (v,))[1], linearise_pull(r, x)[1]

    def factorise(self, point: Linearization, scale: jax.Array, rows: jax.Array) -> Any:
        """The Gram matrix of the scaled rows."""
        del rows
        return point.J / scale[0] / scale[0]

    def system(
        self, point: Linearization, factors: Any, scale: jax.Array, lam: jax.Array
    ) -> WideGramSystem:
        """Steps by the Gram matrix."""
        push, pull = self.products(point)
        return WideGramSystem(
            factors, point.r, lam, lambda v: push(v / scale), lambda w: pull(w) / scale
        )

    def rank(self, factors: Any) -> Rank:
        """By the eigenvalues."""
        return gram_rank(factors)
