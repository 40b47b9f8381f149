"""Matrix-free linear model for conjugate gradients."""

from __future__ import annotations

import jax

from fnopt.linear import KrylovSystem
from fnopt.residuals import probed_columns
from fnopt.solvers.linear_model._base import LinearModel, nonzero_columns
from fnopt.solvers.linear_model._linearization import Linearization, half_square


class KrylovModel(LinearModel):
    """The model by products with the Jacobian and its transpose."""

    has_matrix = False

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the linearization at a point, with estimated norms of the Jacobian's columns."""
        r, J, pull = self.linearized_rmv(x)
        return Linearization(x, r, J, half_square(r), pull(r), probed_columns(pull, r))

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> KrylovSystem:
        """Return the linear system for steps by conjugate gradients."""
        del lam
        push, pull = self.products(point)
        mask = nonzero_columns(point)  # params with an active bound have zero columns
        return KrylovSystem(
            lambda v: push(mask * v / scale), lambda w: mask * pull(w) / scale, point.r
        )
