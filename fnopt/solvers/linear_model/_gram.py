"""Linear models by Gram matrices of columns (tall Jacobians) or of rows (wide Jacobians)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.linear import TallGramSystem, WideGramSystem
from fnopt.residuals import linearise, linearise_gram, linearise_products, linearise_pull, pushed
from fnopt.solvers.linear_model._base import LinearModel, Map, free, gram_rank
from fnopt.solvers.linear_model._linearization import Linearization, NormalMatrix, half_square
from fnopt.solvers.linear_model._scaling import initial_scale


class TallGramModel(LinearModel):
    """The model that stores the Gram matrix instead of the Jacobian."""

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the point with its Gram matrix."""
        r, G, g, unit = linearise_gram(self.flat, x, self.mode, self.chunk_size)
        columns = unit * jnp.sqrt(jnp.diagonal(G))
        return Linearization(x, r, NormalMatrix(G, unit), half_square(r), g, columns)

    def system(self, point: Linearization, scale: jax.Array, lam: jax.Array) -> TallGramSystem:
        """Return the linear system for steps by the Gram matrix."""
        G, unit = point.J
        pull = self._pull(point, scale)
        d = scale / unit
        return TallGramSystem(G / d / d[:, None], point.gradient / scale, lam, pull)

    def _pull(self, point: Linearization, scale: jax.Array) -> Map | None:
        if self.mode == "forward":  # the function may have no reverse-mode derivative
            return None
        # This is only called where steps differentiate the residual function anyway.
        moving = free(point)
        return lambda w: moving * linearise_products(self.flat.r, point.x)[2](w) / scale

    def rank(self, point: Linearization) -> jax.Array:
        """Return the rank by the eigenvalues of the Gram matrix."""
        G, unit = point.J
        d = initial_scale(point.columns) / unit
        return gram_rank(G / d / d[:, None])

    def jacobian(self, point: Linearization) -> Any:
        """Form the Jacobian again; return None if the Gram matrix needed no Jacobian."""
        return linearise(self.flat, point.x, self.mode)[1] if self._is_formed else None

    @property
    def _is_formed(self) -> bool:
        """Whether the Jacobian fits in memory."""
        given = self.flat.derivative
        return self.chunk_size is None if given is None else given.gram is None


class RowsModel(LinearModel):
    r"""The model that stores :math:`K = J J^\top`, for residuals that are defined per example.

    Scaled variables need :math:`J D^{-2} J^\top`. This is a sum of products of activations and
    backpropagated cotangents only if `D` is a single number. Therefore all params have the same
    scale, the root mean square of the columns' norms (Levenberg's damping, not Marquardt's).
    """

    has_matrix = False

    def evaluate(self, x: jax.Array) -> Linearization:
        """Return the point with its Gram matrix."""
        assert self.flat.gram is not None
        r, pull = linearise_pull(self.flat.r, x)
        K = self.flat.gram(x)
        column = jnp.sqrt(jnp.trace(K) / jnp.asarray(x.size, x.dtype))
        return Linearization(x, r, K, half_square(r), pull(r), jnp.full_like(x, column))

    def products(self, point: Linearization) -> tuple[Map, Map]:
        """Return the products, by a forward and a backward pass through the residuals."""
        r, x = self.flat.r, point.x
        # Only a product with J needs a forward-mode derivative.
        return lambda v: pushed(r, (x,), (v,))[1], linearise_pull(r, x)[1]

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
        """Return the rank by the eigenvalues of the Gram matrix."""
        scale = initial_scale(point.columns)[0]
        return gram_rank(point.J / scale / scale)
