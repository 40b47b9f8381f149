"""The interface of linear models of the residuals, whatever is kept of the Jacobian."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import matmul
from fnopt.linear import System
from fnopt.residuals import FlatResidual, linearise_products
from fnopt.sharding import psum_rows
from fnopt.solvers.linear_model._linearization import Linearization

Map = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """The linear model of the residuals; a subclass is one way to do the algebra.

    Args:
        flat: The residual function of a vector.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of derivatives that are taken at once, or None.
    """

    flat: FlatResidual
    mode: str
    chunk_size: int | None

    has_triangle: ClassVar[bool] = False
    """Whether a point comes with the triangle of its Jacobian."""
    has_matrix: ClassVar[bool] = True
    """Whether a point keeps a matrix, from which columns can be taken out."""

    def evaluate(self, x: jax.Array) -> Linearization:
        """The linearization at a point."""
        raise NotImplementedError

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> System:
        """The linear model in scaled variables, ready for steps; `lam` is a guess of a damping."""
        raise NotImplementedError

    def rank(self, point: Linearization) -> jax.Array:
        """The rank of the Jacobian with columns of unit length; -1 where nothing tells."""
        del point
        return jnp.asarray(-1, jnp.int32)

    def jacobian(self, point: Linearization) -> Any:
        """The Jacobian at a point; None where it is too large to have."""
        del point

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """The products with the Jacobian at a point, and with its transpose."""
        given = self.flat.derivative
        if given is None:
            return linearise_products(self.flat.r, point.x)[1:]
        return lambda v: given.push(point.J, v), lambda w: psum_rows(given.pull(point.J, w))

    def linearised_rmv(self, x: jax.Array) -> tuple[jax.Array, Any, Map]:
        """The residual, what is kept of the Jacobian for its products, and that of its transpose.

        Nothing is kept of one that comes from the residual function.
        """
        given = self.flat.derivative
        if given is None:
            r, _, pull = linearise_products(self.flat.r, x)
            return r, (), pull
        J = given.at(x)
        return self.flat.r(x), J, lambda w: psum_rows(given.pull(J, w))

    @property
    def size(self) -> int:
        """The longer side of the Jacobian, by which rounding grows."""
        return max(self.flat.rows, self.flat.n)


def scaled_rmv(point: Linearization, scale: jax.Array) -> Map:
    r"""The product :math:`D^{-1} J^T w` with a Jacobian that is a matrix."""
    return lambda w: psum_rows(matmul(w, point.J)) / scale


def free(point: Linearization) -> jax.Array:
    """1 for params that move the residuals, 0 for the others."""
    return (point.columns > 0).astype(point.columns.dtype)


def gram_rank(K: jax.Array) -> jax.Array:
    r"""The rank that a Gram matrix shows: eigenvalues above :math:`2 k \epsilon` of the largest."""
    squares = jnp.linalg.eigvalsh(jnp.where(jnp.isfinite(K), K, jnp.zeros_like(K)))
    # Twice the backward error of a symmetric eigenvalue problem (Golub and Van Loan, section 8.1).
    noise = jnp.asarray(2 * K.shape[0] * jnp.finfo(K.dtype).eps, K.dtype)
    return jnp.sum(squares > noise * jnp.max(squares, initial=0), dtype=jnp.int32)
