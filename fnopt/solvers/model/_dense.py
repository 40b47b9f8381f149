"""Linear models that keep the Jacobian as a matrix."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear import (
    LiftedSystem,
    Triangle,
    TriangleSystem,
    WideGramSystem,
    gram,
    guarded,
    numerical_rank,
    triangle,
)
from fnopt.residuals import linearise
from fnopt.solvers.model._base import LinearModel, Rank, formed_rmv, gram_rank, scaled_rmv
from fnopt.solvers.model._linearization import (
    Linearization,
    factorised_linearization,
    linearization_at,
)

_FEW = 16  # params, whose curvature a few rows tell
_EXAMINED = 64  # params, up to which a triangle costs next to nothing beside a fit


class DenseModel(LinearModel):
    """The model that keeps a Jacobian of any shape."""

    def evaluate(self, x: jax.Array, residual: jax.Array | None = None) -> Linearization:
        """The point with its Jacobian."""
        r, J = linearise(self.flat, x, self.mode, self.chunk_size)
        return linearization_at(x, r if residual is None else residual, J)

    def jacobian(self, point: Linearization) -> Any:
        """The Jacobian at a point."""
        return point.J

    def rmv(self, x: jax.Array, w: jax.Array) -> jax.Array:
        r"""The product :math:`J(x)^T w`, where nothing else is needed of the Jacobian."""
        return formed_rmv(self, x, w)


class TriangleModel(DenseModel):
    """The model of a tall Jacobian by its QR factorisation, which a point comes with."""

    takes_rows = True

    @property
    def takes_own(self) -> bool:
        """Whether the model can be given curvature of every param by itself."""
        return self.flat.n > _FEW

    def evaluate(self, x: jax.Array, residual: jax.Array | None = None) -> Linearization:
        """The point with its Jacobian and the triangle of that."""
        r, J = linearise(self.flat, x, self.mode, self.chunk_size)
        r = r if residual is None else residual
        return factorised_linearization(x, r, J, self.flat.graded)

    def factorise(self, point: Linearization, scale: jax.Array, rows: jax.Array) -> Any:
        """The scaled triangle, with the rows below it."""
        assert point.triangle is not None
        L, c = point.triangle
        own = None if self.own is None else jnp.sqrt(self.own) / scale
        return guarded(Triangle(L / scale[:, None], c), rows / scale, own)

    def system(
        self, point: Linearization, factors: Any, scale: jax.Array, lam: jax.Array
    ) -> TriangleSystem:
        """Steps by the triangle."""
        return TriangleSystem(factors, self.size, lam, scaled_rmv(point, scale))

    def rank(self, factors: Any) -> Rank:
        """By the singular values; the directions not seen are the last singular vectors."""
        _, s, Vt = jnp.linalg.svd(factors.triangle.L.T)
        rank = numerical_rank(s, self.size)
        unseen = jnp.arange(s.size, dtype=rank.dtype) >= rank
        return rank, jnp.where(unseen[:, None], Vt, jnp.zeros_like(Vt))


def triangle_of_few(model: LinearModel, chunk_size: int | None = None) -> LinearModel:
    """The model by the triangle of a Jacobian of few columns; of more, the model that there is."""
    few = model.flat.n <= min(model.flat.rows, _EXAMINED)
    return TriangleModel(model.flat, model.mode, chunk_size) if few else model


class LiftedModel(DenseModel):
    """The model of a wide Jacobian by the QR factorisation of its transpose."""

    def factorise(self, point: Linearization, scale: jax.Array, rows: jax.Array) -> Any:
        """The triangle within the row space, and the basis of that."""
        del rows
        Q, R = jnp.linalg.qr((point.J / scale).T)
        return guarded(triangle(R.T, point.r)), Q

    def system(
        self, point: Linearization, factors: Any, scale: jax.Array, lam: jax.Array
    ) -> LiftedSystem:
        """Steps within the row space."""
        rows, Q = factors
        pull = scaled_rmv(point, scale)
        inside = TriangleSystem(rows, self.size, lam, lambda w: matmul(pull(w), Q))
        return LiftedSystem(inside, Q)

    def rank(self, factors: Any) -> Rank:
        """By the singular values."""
        s = jnp.linalg.svd(factors[0].triangle.L, compute_uv=False)
        return numerical_rank(s, self.size), None


class WideGramModel(DenseModel):
    """The model of a wide Jacobian by the Gram matrix of its rows."""

    def factorise(self, point: Linearization, scale: jax.Array, rows: jax.Array) -> Any:
        """The Gram matrix of the scaled rows."""
        del rows
        return gram((point.J / scale).T)

    def system(
        self, point: Linearization, factors: Any, scale: jax.Array, lam: jax.Array
    ) -> WideGramSystem:
        """Steps by the Gram matrix."""
        return WideGramSystem(
            factors,
            point.r,
            lam,
            lambda v: matmul(point.J, v / scale),
            scaled_rmv(point, scale),
        )

    def rank(self, factors: Any) -> Rank:
        """By the eigenvalues."""
        return gram_rank(factors)
