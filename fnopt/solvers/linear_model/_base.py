"""`LinearModel`, the interface of linear models for each representation of the Jacobian."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.linear import SingularFactors, System, is_determined
from fnopt.numerics import matmul
from fnopt.residuals import FlatResidual, linearize_products
from fnopt.sharding import psum_rows
from fnopt.solvers.linear_model._linearization import Linearization

Map = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """Base class of linear models of the residuals; each subclass implements a linear solver.

    Args:
        flat: The residual function of a vector.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: Number of tangents or cotangents to propagate at once; None for all.
    """

    flat: FlatResidual
    mode: str
    chunk_size: int | None

    has_triangle: ClassVar[bool] = False
    """Whether a linearization contains the triangular factor of the Jacobian."""
    has_matrix: ClassVar[bool] = True
    """Whether a linearization contains a matrix whose columns can be set to zero."""

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the linearization at a point."""
        raise NotImplementedError

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> System:
        """Return the linear system for steps.

        Args:
            point: The linearization.
            scale: The scaling `D`; the unknowns of the system are :math:`D p`.
            lam: An initial guess of the damping.
        """
        raise NotImplementedError

    def rank(self, point: Linearization) -> jax.Array:
        """Return the numerical rank of the Jacobian, int32, after normalizing its columns.

        The rank is -1 if it is unknown.
        """
        del point
        return jnp.asarray(-1, jnp.int32)

    def null_space(self, point: Linearization) -> tuple[jax.Array, jax.Array]:
        """Return the rank, and the mask of the params with a component in the null space.

        If the null space is unknown, the mask is False.
        """
        return self.rank(point), jnp.zeros(point.x.shape, bool)

    def jacobian(self, point: Linearization) -> Any:
        """Return the Jacobian for the solution; None if it is too large to form."""
        del point

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """Return the products with the Jacobian and with its transpose."""
        derivative = self.flat.derivative
        if derivative is None:
            return linearize_products(self.flat.r, point.x)[1:]
        J = point.J
        return lambda v: derivative.push(J, v), lambda w: psum_rows(derivative.pull(J, w))

    def linearized_rmv(self, x: jax.Array) -> tuple[jax.Array, Any, Map]:
        """Return the residuals, the data of the Jacobian, and the product with its transpose.

        Only a user's Jacobian has data; automatic differentiation computes products from `x`.
        """
        derivative = self.flat.derivative
        if derivative is None:
            r, _, pull = linearize_products(self.flat.r, x)
            return r, (), pull
        J = derivative.at(x)
        return self.flat.r(x), J, lambda w: psum_rows(derivative.pull(J, w))

    @property
    def size(self) -> int:
        """Return the larger dimension of the Jacobian, for bounds on rounding errors."""
        return max(self.flat.rows, self.flat.n)


def scaled_rmv(point: Linearization, scale: jax.Array) -> Map:
    r"""Return the function :math:`w \mapsto D^{-1} J^T w`, for a point with a Jacobian matrix."""
    return lambda w: psum_rows(matmul(w, point.J)) / scale


def nonzero_columns(point: Linearization) -> jax.Array:
    """Return 1 for params with a nonzero Jacobian column, and 0 for all other params."""
    return (point.columns > 0).astype(point.columns.dtype)


def singular_null_space(factors: SingularFactors, size: int) -> tuple[jax.Array, jax.Array]:
    """Return the rank, and the mask of the params with a component in the null space.

    Args:
        factors: The singular values and vectors of a Jacobian with columns of unit length.
        size: The larger dimension of the Jacobian.
    """
    kept = is_determined(factors.s, size)
    determined = jnp.sum(jnp.where(kept[:, None], jnp.square(factors.Vt), 0), axis=0)
    root = float(jnp.finfo(factors.s.dtype).eps) ** 0.5
    return jnp.sum(kept, dtype=jnp.int32), determined < 1 - jnp.asarray(root, determined.dtype)


def gram_rank(K: jax.Array) -> jax.Array:
    r"""Count the eigenvalues of a Gram matrix above :math:`2 k \epsilon` times the largest."""
    squares = jnp.linalg.eigvalsh(jnp.where(jnp.isfinite(K), K, jnp.zeros_like(K)))
    # Twice the backward error of a symmetric eigenvalue problem (Golub and Van Loan, section 8.1).
    noise = jnp.asarray(2 * K.shape[0] * jnp.finfo(K.dtype).eps, K.dtype)
    return jnp.sum(squares > noise * jnp.max(squares, initial=0), dtype=jnp.int32)
