"""The interface of linear models of the residuals, for every representation of the Jacobian."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.linear import System
from fnopt.numerics import matmul
from fnopt.residuals import FlatResidual, linearise_products
from fnopt.sharding import psum_rows
from fnopt.solvers.linear_model._linearization import Linearization

Map = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """The linear model of the residuals; a subclass implements one linear solver.

    Args:
        flat: The residual function of a vector.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of tangents or cotangents to propagate at once, or None.
    """

    flat: FlatResidual
    mode: str
    chunk_size: int | None

    has_triangle: ClassVar[bool] = False
    """Whether a point has the triangular factor of its Jacobian."""
    has_matrix: ClassVar[bool] = True
    """Whether a point stores a matrix from which columns can be removed."""

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the linearization at a point."""
        raise NotImplementedError

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> System:
        """Return the linear system in scaled variables; `lam` is a guess of the damping."""
        raise NotImplementedError

    def rank(self, point: Linearization) -> jax.Array:
        """Return the rank of the Jacobian with columns of unit length; -1 if unknown."""
        del point
        return jnp.asarray(-1, jnp.int32)

    def null_space(self, point: Linearization) -> tuple[jax.Array, jax.Array]:
        """Return the rank, and a mask of params with a component in the null space, if known."""
        return self.rank(point), jnp.zeros(point.x.shape, bool)

    def jacobian(self, point: Linearization) -> Any:
        """Return the Jacobian at a point, or None if the Jacobian is too large."""
        del point

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """Return the products with the Jacobian at a point and with its transpose."""
        given = self.flat.derivative
        if given is None:
            return linearise_products(self.flat.r, point.x)[1:]
        return lambda v: given.push(point.J, v), lambda w: psum_rows(given.pull(point.J, w))

    def linearised_rmv(self, x: jax.Array) -> tuple[jax.Array, Any, Map]:
        """Return the residual, the stored form of the Jacobian, and the product with its transpose.

        A Jacobian by automatic differentiation of the residual function has no stored form.
        """
        given = self.flat.derivative
        if given is None:
            r, _, pull = linearise_products(self.flat.r, x)
            return r, (), pull
        J = given.at(x)
        return self.flat.r(x), J, lambda w: psum_rows(given.pull(J, w))

    @property
    def size(self) -> int:
        """Return the larger dimension of the Jacobian, which determines rounding errors."""
        return max(self.flat.rows, self.flat.n)


def scaled_rmv(point: Linearization, scale: jax.Array) -> Map:
    r"""Return the product :math:`D^{-1} J^T w` with a Jacobian matrix."""
    return lambda w: psum_rows(matmul(w, point.J)) / scale


def free(point: Linearization) -> jax.Array:
    """Return 1 for params with a nonzero Jacobian column, 0 for all other params."""
    return (point.columns > 0).astype(point.columns.dtype)


def gram_rank(K: jax.Array) -> jax.Array:
    r"""Count the eigenvalues of a Gram matrix above :math:`2 k \epsilon` times the largest."""
    squares = jnp.linalg.eigvalsh(jnp.where(jnp.isfinite(K), K, jnp.zeros_like(K)))
    # Twice the backward error of a symmetric eigenvalue problem (Golub and Van Loan, section 8.1).
    noise = jnp.asarray(2 * K.shape[0] * jnp.finfo(K.dtype).eps, K.dtype)
    return jnp.sum(squares > noise * jnp.max(squares, initial=0), dtype=jnp.int32)
