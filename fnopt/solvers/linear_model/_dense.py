"""Linear models that store the Jacobian as a matrix."""

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
from fnopt.residuals import linearise
from fnopt.solvers.linear_model._base import LinearModel, gram_rank, scaled_rmv
from fnopt.solvers.linear_model._linearization import (
    Linearization,
    factorised_linearization,
    linearization_at,
)
from fnopt.solvers.linear_model._scaling import initial_scale


class DenseModel(LinearModel):
    """The model that stores the Jacobian matrix, of any shape."""

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the point with its Jacobian."""
        return linearization_at(x, *linearise(self.flat, x, self.mode, self.chunk_size))

    def jacobian(self, point: Linearization) -> Any:
        """Return the Jacobian at a point."""
        return point.J


class TriangleModel(DenseModel):
    """The model of a tall Jacobian by QR; a point includes the triangular factor."""

    has_triangle = True

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the point with its Jacobian and the Jacobian's triangular factor."""
        r, J = linearise(self.flat, x, self.mode, self.chunk_size)
        return factorised_linearization(x, r, J, self.flat.graded)

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> TriangleSystem:
        """Return the linear system for steps by the triangular factor."""
        assert point.triangle is not None
        L, c = point.triangle
        scaled = Triangle(L / scale[:, None], c)
        return TriangleSystem(scaled, self.size, lam, scaled_rmv(point, scale))


class LiftedModel(DenseModel):
    """The model of a wide Jacobian by the QR factorization of its transpose."""

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> LiftedSystem:
        """Return the linear system for steps restricted to the row space of the scaled Jacobian."""
        Q, R = jnp.linalg.qr((point.J / scale).T)
        pull = scaled_rmv(point, scale)
        rows = triangle(R.T, point.r)
        inside = TriangleSystem(
            rows, self.size, lam, lambda w: matmul(pull(w), Q), noise_damping(rows.L)
        )
        return LiftedSystem(inside, Q)

    def rank(self, point: Linearization) -> jax.Array:
        """Return the rank by singular values."""
        _, R = jnp.linalg.qr((point.J / initial_scale(point.columns)).T)
        return numerical_rank(jnp.linalg.svd(R, compute_uv=False), self.size)


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
        """Return the rank by the eigenvalues of the Gram matrix."""
        return gram_rank(gram((point.J / initial_scale(point.columns)).T))
