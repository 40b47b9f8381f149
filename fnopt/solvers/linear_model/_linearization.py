"""`Linearization`: residuals, Jacobian and gradient at a point."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import Triangle, norm, row_triangle
from fnopt.numerics import matmul
from fnopt.sharding import psum_rows, row_axes


class NormalMatrix(NamedTuple):
    """The Gram matrix of scaled columns, for models that don't store the Jacobian."""

    matrix: jax.Array  # [n, n], S^-1 J^T J S^-1
    column_scale: jax.Array  # [n], the diagonal of S: powers of two that keep squares in range

    def times(self, v: jax.Array) -> jax.Array:
        """Return :math:`J^T J v`."""
        return self.column_scale * matmul(self.matrix, self.column_scale * v)


class Linearization(NamedTuple):
    """A point with its residuals, its Jacobian, and quantities derived from both."""

    x: jax.Array  # [n]
    r: jax.Array  # [m]
    J: Any  # the Jacobian, a Gram matrix, or data for products, depending on the linear model
    cost: jax.Array  # half the sum of squares
    gradient: jax.Array  # [n], J^T r
    columns: jax.Array  # [n], the norm of every column of J
    triangle: Triangle | None = None  # triangular (QR) factor of [J r], if the solver uses it


def half_square(r: jax.Array) -> jax.Array:
    r"""Return the cost :math:`f = \tfrac12 \|r\|^2`; infinite if a residual isn't finite."""
    cost = jnp.asarray(0.5, r.dtype) * psum_rows(jnp.sum(jnp.square(r)))
    return jnp.where(jnp.isfinite(cost), cost, jnp.asarray(jnp.inf, r.dtype))


def linearization_at(x: jax.Array, r: jax.Array, J: jax.Array) -> Linearization:
    """Make a linearization from a point, its residuals and its Jacobian."""
    return Linearization(x, r, J, half_square(r), matmul(r, J), norm(J))


def factorized_linearization(
    x: jax.Array, r: jax.Array, J: jax.Array, graded: bool
) -> Linearization:
    """Make a linearization with the triangular factor of a tall Jacobian."""
    # J = Q L^T and c = Q^T r, so J^T r = L c. The rows of L have the norms of the columns of J.
    factors = row_triangle(J, r, graded)
    L, c = factors
    return Linearization(x, r, J, half_square(r), matmul(L, c), norm(L, axis=1), factors)


def jacobian_or_factor(J: jax.Array | None) -> jax.Array | None:
    r"""Return the Jacobian; if its rows are sharded, return `R` with :math:`R^T R = J^T J`."""
    if J is None or not row_axes():
        return J
    return row_triangle(J, jnp.zeros_like(J[:, 0])).L.T


def is_finite(point: Linearization) -> jax.Array:
    """Whether params, residuals and Jacobian are finite, so that a step is possible.

    Nonfinite residuals have an infinite cost, and a nonfinite Jacobian has nonfinite column norms.
    """
    # One reduction: a sum is finite only if all of its terms are finite.
    return jnp.isfinite(jnp.sum(point.x + point.gradient + point.columns, axis=0) + point.cost)
