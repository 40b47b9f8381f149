"""The linear model of a sparse Jacobian with factorized normal equations."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.jacobians import SparseJacobian, Sparsity, band_of, elimination
from fnopt.linear import (
    ROUNDING_MARGIN,
    BandedGramSystem,
    BlockLayout,
    EliminatedGramSystem,
    HostGramSystem,
    HostLayout,
    SparseGramSystem,
)
from fnopt.numerics import matmul
from fnopt.residuals import FlatResidual
from fnopt.sharding import psum_rows, row_axes
from fnopt.solvers.linear_model._base import LinearModel, Map, nonzero_columns
from fnopt.solvers.linear_model._linearization import Linearization, half_square
from fnopt.solvers.linear_model._scaling import initial_scale

Algebra = type[BandedGramSystem] | type[EliminatedGramSystem] | type[HostGramSystem]


def sparse_gram_model(
    flat: FlatResidual, mode: str, chunk_size: int | None
) -> SparseGramModel | None:
    """Return the model by a band, elimination or a sparse factor; None if all cost too much."""
    given = flat.derivative
    if given is None or given.compressed is None or flat.rows < flat.n:
        return None
    found = _layout(*given.compressed[1:])
    return found and SparseGramModel(flat, mode, chunk_size, *found)


def _layout(sparsity: Sparsity, by_rows: bool) -> tuple[Any, Algebra] | None:
    """Return the block layout of the Gram matrix and its system; None if all are too expensive."""
    band = band_of(sparsity, by_rows)
    if band is not None:
        return band, BandedGramSystem
    plan = elimination(sparsity, by_rows)
    if not plan.is_affordable:
        return None
    if plan.sparse:
        return HostLayout(plan), HostGramSystem
    return BlockLayout(plan), EliminatedGramSystem


def algebra_text(J: SparseJacobian) -> str:
    """Name the linear solver that factorized the normal equations of a sparse Jacobian."""
    return str(_factorized_layout(J)[0])


def _factorized_layout(J: SparseJacobian) -> tuple[Any, Algebra]:
    found = _layout(J.sparsity, J.by_rows)
    assert found is not None, "a solution keeps a sparse Jacobian that was factorized"
    return found


def inverse_root(J: SparseJacobian, rows: jax.Array, fixed: jax.Array | None = None) -> jax.Array:
    r"""Multiply rows `B` by a root of the pseudo-inverse: :math:`Y Y^T = B (J^T J)^+ B^T`.

    .. math:: G^+ \approx (G + \delta I)^{-1} + \delta (G + \delta I)^{-2}, \qquad
        b - G (G + \delta I)^{-1} b = \delta (G + \delta I)^{-1} b

    With :math:`\delta` at rounding level, a singular matrix has a Cholesky factor. The relative
    error of the sum of both terms is :math:`(\delta / \lambda)^2` for an eigenvalue
    :math:`\lambda`. The remainder of `b` in the second formula is its component in the null space.

    Args:
        J: The Jacobian, `[m, n]`.
        rows: The rows, `[q, n]`.
        fixed: Mask of the variables without variance, `[n]`.

    Returns:
        `Y`, `[q, 2 n]`; infinite in rows whose component in the null space is more than
        :math:`\sqrt\epsilon` of the row, by squared norm.

    Reference:
        King and Chillingworth (1979), Approximation of generalized inverses by iterated
        regularization.
    """
    layout, algebra = _factorized_layout(J)
    G = layout.gram(J)
    scale = initial_scale(jnp.sqrt(layout.diagonal(G)))
    scale = scale if fixed is None else jnp.where(fixed, jnp.inf, scale)
    zero = jnp.zeros((), rows.dtype)
    system = algebra(layout.scaled(G, scale), 0 * rows[0], zero, J.rmv, J.mv, layout)
    rows = rows / scale
    noise, half, x = system.rounding_solutions(rows)
    rest = jnp.sum(jnp.square(noise * x), axis=1, keepdims=True)
    share = jnp.asarray(jnp.finfo(rows.dtype).eps ** 0.5, rows.dtype)
    determined = rest <= share * jnp.sum(jnp.square(rows), axis=1, keepdims=True)
    return jnp.where(determined, jnp.concatenate([half, jnp.sqrt(noise) * x], axis=1), jnp.inf)


# Number of random vectors: seven for the directions that the data of a bundle adjustment don't
# determine (a similarity transformation), and one more.
_PROBES = 8


def smallest_eigenvalues(system: SparseGramSystem, like: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""Estimate the smallest eigenvalues of a Gram matrix, relative to the rounding level.

    Random vectors, filtered twice by :math:`\delta (G + \delta I)^{-1}`, span the eigenvectors of
    eigenvalues below :math:`\delta`, the damping that rounding errors require. The Rayleigh-Ritz
    method separates these.

    Args:
        system: The normal equations.
        like: A mask of the variables with a nonzero column, `[n]`.

    Returns:
        :math:`\lambda_j / \delta`, of shape `[8]`, in ascending order, and unit vectors, `[n, 8]`.

    Reference:
        Golub and Van Loan (2013), Matrix computations, section 8.2.4 (orthogonal iteration).
    """
    probes = np.random.default_rng(0).standard_normal((like.size, _PROBES))
    noise, V = system.filtered_twice((like[:, None] * jnp.asarray(probes, like.dtype)).T)
    V = jnp.linalg.qr(V.T)[0]
    AV = lax.map(system.push, V.T)
    values, W = jnp.linalg.eigh(psum_rows(matmul(AV, AV.T)))
    return values / noise, matmul(V, W)


@dataclasses.dataclass(frozen=True)
class SparseGramModel(LinearModel):
    """The model that stores the sparse Jacobian, for products, and its sparse Gram matrix."""

    layout: Any
    algebra: Algebra

    has_matrix: ClassVar[bool] = False

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the point with the entries of its Jacobian and the Gram matrix."""
        given = self.flat.derivative
        assert given is not None
        assert given.compressed is not None
        r, J, pull = self.linearized_rmv(x)
        G = jax.tree.map(psum_rows, self.layout.gram(given.compressed.of(J)))
        columns = jnp.sqrt(self.layout.diagonal(G))
        return Linearization(x, r, (J, G), half_square(r), pull(r), columns)

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """Return the products with the Jacobian at a point and with its transpose."""
        return super().products(point._replace(J=point.J[0]))

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> SparseGramSystem:
        """Return the linear system for steps by a sparse factorization in scaled variables."""
        push, pull = self.products(point)
        # The column of an active param is zero, which is equivalent to an infinite scale.
        scale = jnp.where(point.columns > 0, scale, jnp.inf)
        return self.algebra(
            self.layout.scaled(point.J[1], scale),
            point.gradient / scale,
            lam,
            lambda w: pull(w) / scale,
            lambda v: push(v / scale),
            self.layout,
        )

    def null_space(self, point: Linearization) -> tuple[jax.Array, jax.Array]:
        r"""Return the rank and the null space, from the smallest eigenvalues.

        The damping :math:`\delta` is 32 times the error of a factorization (`rounding_damping`), so
        a null vector is computed with an eigenvalue of at most :math:`\delta / 32^2` or the
        rounding error of the eigenvalues. If all eight eigenvalues are below :math:`\delta`, there
        may be more, and the rank is unknown (-1).
        """
        zero, moving = jnp.zeros((), point.x.dtype), nonzero_columns(point)
        system = self.system(point, initial_scale(point.columns), zero)
        values, V = smallest_eigenvalues(system, moving)
        # Golub and Van Loan (2013), section 8.1: the backward error of an eigenvalue problem.
        rounding = len(values) * float(jnp.finfo(V.dtype).eps) * values[-1]
        null = values <= jnp.maximum(ROUNDING_MARGIN**-2, rounding)
        weight = jnp.sum(jnp.where(null, jnp.square(V), 0), axis=1)
        root = jnp.asarray(jnp.finfo(V.dtype).eps ** 0.5, V.dtype)
        mask = jnp.any(null) & (weight > root * jnp.max(weight))
        rank = jnp.sum(moving > 0, dtype=jnp.int32) - jnp.sum(null, dtype=jnp.int32)
        return jnp.where(values[-1] > 1, rank, -1), mask

    def jacobian(self, point: Linearization) -> SparseJacobian | None:
        """Return the sparse Jacobian; None if rows are sharded over devices."""
        given = self.flat.derivative
        assert given is not None
        assert given.compressed is not None
        return None if row_axes() else given.compressed.of(point.J[0])
