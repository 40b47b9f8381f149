"""Linear models that store the Jacobian as a dense matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.linear import (
    LiftedSystem,
    Triangle,
    TriangleSystem,
    WideGramSystem,
    gram,
    noise_damping,
    numerical_rank,
    triangle,
)
from fnopt.numerics import matmul
from fnopt.residuals import linearize
from fnopt.sharding import cond
from fnopt.solvers.linear_model._base import LinearModel, gram_rank, scaled_rmv
from fnopt.solvers.linear_model._linearization import (
    Linearization,
    factorized_linearization,
    linearization_at,
)
from fnopt.solvers.linear_model._scaling import initial_scale


class DenseModel(LinearModel):
    """Base class of models that store the Jacobian matrix."""

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the linearization at a point, with the Jacobian."""
        return linearization_at(x, *linearize(self.flat, x, self.mode, self.chunk_size))

    def jacobian(self, point: Linearization) -> Any:
        """Return the Jacobian for the solution."""
        return point.J


class TriangleModel(DenseModel):
    """The model of a tall Jacobian by QR factorization."""

    has_triangle = True

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the linearization at a point, with the Jacobian and its triangular factor."""
        r, J = linearize(self.flat, x, self.mode, self.chunk_size)
        return factorized_linearization(x, r, J, self.flat.graded)

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> TriangleSystem:
        """Return the linear system for steps by the triangular factor."""
        assert point.triangle is not None
        # J^T J = L L^T, so dividing the rows of L by D scales the columns of J.
        L, c = point.triangle
        scaled = Triangle(L / scale[:, None], c)
        return TriangleSystem(scaled, self.size, lam, scaled_rmv(point, scale))


class LiftedModel(DenseModel):
    """The model of a wide Jacobian by the QR factorization of its transpose."""

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> LiftedSystem:
        """Return the linear system for steps restricted to the row space of the scaled Jacobian."""
        # The scaled Jacobian is R^T Q^T. A step Q y has the residuals R^T y + r, a square system.
        Q, R = jnp.linalg.qr((point.J / scale).T)
        pull = scaled_rmv(point, scale)
        factor = triangle(R.T, point.r)
        square_system = TriangleSystem(
            factor, self.size, lam, lambda w: matmul(pull(w), Q), noise_damping(factor.L)
        )
        return LiftedSystem(square_system, Q)

    def rank(self, point: Linearization) -> jax.Array:
        """Count the singular values above rounding error, with normalized columns."""
        return _row_rank(point, self.size)


def _row_rank(point: Linearization, size: int) -> jax.Array:
    _, R = jnp.linalg.qr((point.J / initial_scale(point.columns)).T)
    return numerical_rank(jnp.linalg.svd(R, compute_uv=False), size)


class WideGramModel(DenseModel):
    """The model of a wide Jacobian by the Gram matrix of its rows."""

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> WideGramSystem:
        """Return the linear system for steps by the Gram matrix of the rows."""
        return WideGramSystem(
            gram((point.J / scale).T),
            point.r,
            lam,
            lambda v: matmul(point.J, v / scale),
            scaled_rmv(point, scale),
        )

    def rank(self, point: Linearization) -> jax.Array:
        """Return the rank; if the Gram matrix doesn't prove full rank, from singular values."""
        rank = gram_rank(gram((point.J / initial_scale(point.columns)).T))
        return cond(rank == len(point.r), lambda: rank, lambda: _row_rank(point, self.size))
