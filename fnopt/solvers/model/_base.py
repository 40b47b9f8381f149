"""The interface of linear models of the residuals, whatever is kept of the Jacobian."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fnopt.core import matmul, row_total
from fnopt.jacobians import jacobian_mode
from fnopt.linear import System
from fnopt.residuals import FlatResidual, linearise, linearise_products, linearise_pull
from fnopt.solvers.model._linearization import Linearization

Map = Callable[[jax.Array], jax.Array]
Rank = tuple[jax.Array, jax.Array | None]


@dataclasses.dataclass(frozen=True)
class LinearModel:
    """The linear model of the residuals; a subclass is one way to do the algebra.

    Args:
        flat: The residual function of a vector.
        mode: `'auto'`, `'forward'` or `'reverse'`.
        chunk_size: How many derivatives are taken at once, or None.
        own: Curvature of every param by itself, of shape `[n]`; None for none.
    """

    flat: FlatResidual
    mode: str
    chunk_size: int | None
    own: jax.Array | None = dataclasses.field(default=None, kw_only=True)

    takes_rows: ClassVar[bool] = False
    """Whether a point comes with a triangle, which can take learned rows of curvature below it."""
    cuts_short: ClassVar[bool] = False
    """Whether steps end before they have all digits."""
    has_matrix: ClassVar[bool] = True
    """Whether a point keeps a matrix, from which columns can be taken out."""

    def evaluate(self, x: jax.Array, residual: jax.Array | None = None) -> Linearization:
        """The linearization at a point; a dense Jacobian goes with the residual given, if any."""
        raise NotImplementedError

    def factorise(self, point: Linearization, scale: jax.Array, rows: jax.Array) -> Any:
        """The factors that depend only on the point and the scaling, for any number of steps."""
        raise NotImplementedError

    def system(
        self, point: Linearization, factors: Any, scale: jax.Array, lam: jax.Array
    ) -> System:
        """The linear model in scaled variables, ready for steps; `lam` is a guess of a damping."""
        raise NotImplementedError

    @property
    def takes_own(self) -> bool:
        """Whether the model can be given curvature of every param by itself."""
        return False

    @property
    def exact(self) -> LinearModel:
        """The model that claims are examined by: one that sees the Jacobian's own digits."""
        return self

    def examined(self, point: Linearization) -> Linearization:
        """The point as the exact model has it."""
        exact = self.exact
        if point.triangle is not None or not exact.takes_rows:
            return point
        return exact.evaluate(point.x, point.r)._replace(cost=point.cost)

    def curved(self, own: jax.Array) -> LinearModel:
        """The model with curvature of every param by itself, of shape `[n]`, if it takes that."""
        return dataclasses.replace(self, own=own)

    def finished(self, system: System, needed: jax.Array) -> System:
        """The system whose steps have all digits where that is needed."""
        del needed
        return system

    def rank(self, factors: Any) -> Rank:
        """The rank, and the undetermined directions in scaled variables.

        The rank is -1 where nothing tells. The directions are orthonormal rows, zero for the
        others; None for factors that don't show them.
        """
        del factors
        return jnp.asarray(-1, jnp.int32), None

    def jacobian(self, point: Linearization) -> Any:
        """The Jacobian at a point; None where it is too large to have."""
        del point

    def rmv(self, x: jax.Array, w: jax.Array) -> jax.Array:
        r"""The product :math:`J(x)^T w`, where nothing else is needed of the Jacobian."""
        return self.linearised_rmv(x)[2](w)

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """The products with the Jacobian at a point, and with its transpose."""
        given = self.flat.derivative
        if given is None:
            return linearise_products(self.flat.r, point.x)[1:]
        return lambda v: given.push(point.J, v), lambda w: row_total(given.pull(point.J, w))

    def linearised_rmv(self, x: jax.Array) -> tuple[jax.Array, Any, Map]:
        """The residual, what is kept of the Jacobian for its products, and that of its transpose.

        Nothing is kept of one that comes from the residual function.
        """
        given = self.flat.derivative
        if given is None:
            r, _, pull = linearise_products(self.flat.r, x)
            return r, (), pull
        J = given.at(x)
        return self.flat.r(x), J, lambda w: row_total(given.pull(J, w))

    @property
    def size(self) -> int:
        """The longer side of the Jacobian, by which rounding grows."""
        return max(self.flat.rows, self.flat.n)


def formed_rmv(model: LinearModel, x: jax.Array, w: jax.Array) -> jax.Array:
    r"""The product :math:`J(x)^T w` in the mode in which the Jacobian is formed."""
    flat, mode = model.flat, model.mode
    if flat.derivative is None and jacobian_mode(mode, flat.rows, flat.n) == "reverse":
        return linearise_pull(flat.r, x)[1](w)
    return row_total(matmul(w, linearise(flat, x, mode, model.chunk_size)[1]))


def scaled_rmv(point: Linearization, scale: jax.Array) -> Map:
    r"""The product :math:`D^{-1} J^T w` with a Jacobian that is a matrix."""
    return lambda w: row_total(matmul(w, point.J)) / scale


def free(point: Linearization) -> jax.Array:
    """1 for params that move the residuals, 0 for the others."""
    return (point.columns > 0).astype(point.columns.dtype)


def gram_rank(K: jax.Array) -> Rank:
    r"""The rank that a Gram matrix shows: eigenvalues above :math:`2 k \epsilon` of the largest."""
    squares = jnp.linalg.eigvalsh(jnp.where(jnp.isfinite(K), K, jnp.zeros_like(K)))
    noise = jnp.asarray(2 * K.shape[0] * jnp.finfo(K.dtype).eps, K.dtype)
    return jnp.sum(squares > noise * jnp.max(squares, initial=0), dtype=jnp.int32), None
