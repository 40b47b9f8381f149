"""The linear model without a matrix, by products with the Jacobian and its transpose."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.linear import KrylovSystem, System
from fnopt.residuals import probed_columns
from fnopt.solvers.model._base import LinearModel, free
from fnopt.solvers.model._dense import triangle_of_few
from fnopt.solvers.model._linearization import Linearization, half_square

_ENTRIES = 2**18  # of a Jacobian that is formed for a claim: 1 MB in float32, a core's cache
_AT_ONCE = 8  # derivatives: no more memory than the probes of columns take, which are as many


class KrylovModel(LinearModel):
    """The model that keeps only what products with the Jacobian need."""

    has_matrix = False
    cuts_short = True

    def evaluate(self, x: jax.Array, residual: jax.Array | None = None) -> Linearization:
        """The point, the norms of whose columns are estimated."""
        del residual
        r, J, pull = self.linearised_rmv(x)
        return Linearization(x, r, J, half_square(r), pull(r), probed_columns(pull, r))

    @property
    def exact(self) -> LinearModel:
        """By the triangle, if it is small: estimated columns don't show what params have in common.

        The columns are as many products as one solve by conjugate gradients may take.
        """
        small = self.flat.rows * self.flat.n <= _ENTRIES
        return triangle_of_few(self, _AT_ONCE) if small else self

    def factorise(self, point: Linearization, scale: jax.Array, rows: jax.Array) -> Any:
        """Nothing."""
        del point, scale, rows
        return ()

    def system(
        self, point: Linearization, factors: Any, scale: jax.Array, lam: jax.Array
    ) -> KrylovSystem:
        """Steps by conjugate gradients."""
        del factors, lam
        push, pull = self.products(point)
        moving = free(point)  # columns that a bounded step has taken out are zero
        return KrylovSystem(
            lambda v: push(moving * v / scale), lambda w: moving * pull(w) / scale, point.r
        )

    def finished(self, system: System, needed: jax.Array) -> System:
        """The system whose conjugate gradients end where rounding does, where that is needed."""
        assert isinstance(system, KrylovSystem)
        dtype = system.r.dtype
        all_digits = jnp.asarray(jnp.finfo(dtype).eps, dtype)
        tolerance = jnp.where(needed, all_digits, jnp.asarray(system.tolerance, dtype))
        return dataclasses.replace(system, tolerance=tolerance)
