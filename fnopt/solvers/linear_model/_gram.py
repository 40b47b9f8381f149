"""Linear models that store a Gram matrix instead of the Jacobian."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.linear import TallGramSystem, WideGramSystem, singular_factors
from fnopt.residuals import linearize, linearize_gram, linearize_products, linearize_pull, pushed
from fnopt.sharding import cond
from fnopt.solvers.linear_model._base import (
    LinearModel,
    Map,
    gram_rank,
    nonzero_columns,
    singular_null_space,
)
from fnopt.solvers.linear_model._linearization import Linearization, NormalMatrix, half_square
from fnopt.solvers.linear_model._scaling import initial_scale


class TallGramModel(LinearModel):
    r"""The model of a tall Jacobian by the Gram matrix :math:`J^T J`."""

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the linearization at a point, with the Gram matrix."""
        r, G, g, column_scale = linearize_gram(self.flat, x, self.mode, self.chunk_size)
        columns = column_scale * jnp.sqrt(jnp.diagonal(G))
        return Linearization(x, r, NormalMatrix(G, column_scale), half_square(r), g, columns)

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> TallGramSystem:
        """Return the linear system for steps by the Gram matrix."""
        G, column_scale = point.J
        pull = self._pull(point, scale)
        d = scale / column_scale
        # Dividing by d twice avoids the square of d, which may overflow.
        return TallGramSystem(G / d / d[:, None], point.gradient / scale, lam, pull)

    def _pull(self, point: Linearization, scale: jax.Array) -> Map | None:
        if self.mode == "forward":  # the function may have no reverse-mode derivative
            return None
        # Only the acceleration uses this product, and the acceleration differentiates the residual
        # function anyway. Zero columns belong to params with an active bound.
        mask = nonzero_columns(point)
        return lambda w: mask * linearize_products(self.flat.r, point.x)[2](w) / scale

    def rank(self, point: Linearization) -> jax.Array:
        """Count the eigenvalues of the Gram matrix above rounding error, with scaled columns."""
        G, column_scale = point.J
        d = initial_scale(point.columns) / column_scale
        return gram_rank(G / d / d[:, None])

    def null_space(self, point: Linearization) -> tuple[jax.Array, jax.Array]:
        r"""Return the rank, and the mask of the params with a component in the null space.

        The eigenvalues of the Gram matrix prove full rank only for condition numbers below
        :math:`1 / \sqrt{2 n \epsilon}`: 100 for 400 params in float32. Beyond, the rank is that of
        the Jacobian.
        """
        rank, none = super().null_space(point)
        if not self._is_formed:
            return rank, none

        def exact() -> tuple[jax.Array, jax.Array]:
            J = linearize(self.flat, point.x, self.mode)[1] * nonzero_columns(point)
            J = J / initial_scale(point.columns)
            return singular_null_space(singular_factors(J, jnp.zeros_like(J[:, 0])), self.size)

        is_full = rank == jnp.sum(point.columns > 0, dtype=jnp.int32)
        return cond(is_full, lambda: (rank, none), exact)

    def jacobian(self, point: Linearization) -> Any:
        """Form the Jacobian for the solution; return None if it may not fit in memory."""
        return linearize(self.flat, point.x, self.mode)[1] if self._is_formed else None

    @property
    def _is_formed(self) -> bool:
        """Whether the Gram matrix was computed from the whole Jacobian, which fits in memory."""
        derivative = self.flat.derivative
        return self.chunk_size is None if derivative is None else derivative.gram is None


class RowsModel(LinearModel):
    r"""The model that stores :math:`K = J J^\top`, for residuals that are defined per example.

    Scaled variables require :math:`J D^{-2} J^\top`. Without forming `J`, it can be computed from
    activations and backpropagated cotangents only if `D` is a multiple of the identity. Therefore
    all params have the same scale, the root mean square of the column norms (Levenberg's damping,
    not Marquardt's).
    """

    has_matrix = False

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the linearization at a point, with the Gram matrix."""
        assert self.flat.gram is not None
        r, pull = linearize_pull(self.flat.r, x)
        K = self.flat.gram(x)
        column = jnp.sqrt(jnp.trace(K) / jnp.asarray(x.size, x.dtype))
        return Linearization(x, r, K, half_square(r), pull(r), jnp.full_like(x, column))

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """Return the products with the Jacobian and its transpose, by automatic differentiation."""
        r, x = self.flat.r, point.x
        # Two functions, because only the product with J needs a forward-mode derivative.
        return lambda v: pushed(r, (x,), (v,))[1], linearize_pull(r, x)[1]

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> WideGramSystem:
        """Return the linear system for steps by the Gram matrix of the scaled rows."""
        push, pull = self.products(point)
        return WideGramSystem(
            point.J / scale[0] / scale[0],
            point.r,
            lam,
            lambda v: push(v / scale),
            lambda w: pull(w) / scale,
        )

    def rank(self, point: Linearization) -> jax.Array:
        """Count the eigenvalues of the Gram matrix above rounding error, with scaled columns."""
        scale = initial_scale(point.columns)[0]
        return gram_rank(point.J / scale / scale)
