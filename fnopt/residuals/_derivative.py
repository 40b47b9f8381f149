"""Derivative of the residuals by a user's Jacobian, and its compositions with linear maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.jacobians import SparseJacobian, Sparsity
from fnopt.programs import convert_closure
from fnopt.sharding import pvary_over_rows, replicate, reshard_like

Map = Callable[[jax.Array], jax.Array]
Gram = Callable[..., tuple[jax.Array, jax.Array]]
r"""`gram(x, d, w)` sums :math:`(DJ)^T DJ` and :math:`J^T w`, :math:`D = \mathrm{diag}(d)`.

The function never forms the whole `J`. With additional arguments `*maps`, the maps are applied to
the rows of `J` first.
"""


class Compressed(NamedTuple):
    """Access to the entries of a sparse Jacobian in a `Derivative`, and their sparsity pattern."""

    of: Callable[[Any], SparseJacobian]  # J, the value of `Derivative.at` -> the sparse Jacobian
    sparsity: Sparsity
    by_rows: bool  # as in `SparseJacobian`


class Derivative(NamedTuple):
    """User-supplied derivative of a function from `[n]` to `[m]`.

    `at` returns the Jacobian at a point as a tree of arrays, such as the matrix, which a solver
    stores in its state. The tree contains all arrays that `matrix`, `push` and `pull` need, so
    these functions don't close over arrays.
    """

    at: Callable[[jax.Array], Any]  # x -> J, a tree of arrays
    matrix: Callable[[Any], jax.Array]  # J -> [m, n]
    push: Callable[[Any, jax.Array], jax.Array]  # J, v -> J v
    pull: Callable[[Any, jax.Array], jax.Array]  # J, w -> J^T w
    sparse: bool = False  # whether products cost far less than the matrix
    gram: Gram | None = None  # sums the Gram matrix without J, if available
    compressed: Compressed | None = None  # for Jacobians compressed by colors

    def scaled(self, factors: Map) -> Derivative:
        r"""The derivative of :math:`b_i f_i`, with the factors `b(x)` treated as constants.

        Rows with `b = 0` are zero, even if the Jacobian is NaN there.
        """
        entries, gram = self.compressed, self.gram
        return Derivative(
            lambda x: (factors(x), self.at(x)),
            lambda J: masked_product(J[0][:, None], self.matrix(J[1])),
            lambda J, v: masked_product(J[0], self.push(J[1], v)),
            lambda J, w: self.pull(J[1], J[0] * w),
            self.sparse,
            gram and (lambda x, d, w, *maps: gram(x, factors(x) * d, factors(x) * w, *maps)),
            entries and entries._replace(of=lambda J: entries.of(J[1]).times_rows(J[0])),
        )

    def followed_by(self, outer: Map, r: jax.Array) -> Derivative:
        r"""The derivative :math:`A J` of :math:`A f(x)`, for a linear map `A`."""
        apply, consts = convert_closure(outer, r)

        def apply_transpose(consts: Any, w: jax.Array) -> jax.Array:
            value, pull = jax.vjp(lambda r: apply(r, *consts), jnp.zeros_like(w))
            return pull(reshard_like(w, value))[0]

        return Derivative(
            lambda x: (consts, self.at(x)),
            lambda J: jax.vmap(lambda column: apply(column, *J[0]), 1, 1)(self.matrix(J[1])),
            lambda J, v: apply(self.push(J[1], v), *J[0]),
            lambda J, w: self.pull(J[1], apply_transpose(J[0], w)),
            self.sparse,
        )

    def on_chart(self, append_bases: Map, x: jax.Array) -> Derivative:
        """The derivative with respect to the free variables, with base points as constants.

        Args:
            append_bases: Function that appends the base points to the free variables.
            x: The free variables.
        """
        if self.compressed is None:
            return self.preceded_by(append_bases, x)
        # The sparse Jacobian of `free_jacobian` has no columns for base points.
        return self._replace(at=lambda x: self.at(append_bases(x)))

    def preceded_by(self, inner: Map, x: jax.Array) -> Derivative:
        r"""The derivative :math:`J T` of :math:`f(g(x))`, with :math:`T = \partial g / \partial x`.

        Args:
            inner: The function :math:`g`.
            x: An argument of :math:`g`, for shapes and dtypes.
        """
        apply, consts = convert_closure(inner, x)

        def push(consts: Any, x: jax.Array, v: jax.Array) -> jax.Array:
            return jax.jvp(lambda x: apply(x, *consts), (x,), (pvary_over_rows(v),))[1]

        def pull(consts: Any, x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.vjp(lambda x: apply(x, *consts), x)[1](w)[0]

        def composed_gram(x: jax.Array, d: jax.Array, w: jax.Array, *maps: Map) -> Any:
            assert self.gram is not None
            pull_row = lambda row: pull(consts, pvary_over_rows(x), row)  # noqa: E731
            return self.gram(inner(x), d, w, pull_row, *maps)

        return Derivative(
            lambda x: (consts, pvary_over_rows(x), self.at(inner(x))),
            lambda J: jax.vmap(lambda row: pull(J[0], J[1], row))(self.matrix(J[2])),
            lambda J, v: self.push(J[2], push(J[0], J[1], v)),
            lambda J, w: pull(J[0], J[1], self.pull(J[2], w)),
            self.sparse,
            self.gram and composed_gram,
        )


def masked_product(b: jax.Array, a: jax.Array) -> jax.Array:
    """Return the product `b a`, and zero where `b` is zero, even if `a` is NaN."""
    return jnp.where(b != 0, b * a, jnp.zeros_like(a))


def scaled_rows(gram: Any, factors: Callable[[jax.Array], jax.Array]) -> Any:
    r"""Scale the Gram matrix `K` of the rows to :math:`b_i K_{ij} b_j`.

    The result is a function of `x`, or None without `K`.

    Args:
        gram: The function of `x` that returns `K = J J^T`, or None.
        factors: The function of `x` that returns the factors `b` of the rows.
    """
    if gram is None:
        return None

    def scaled(x: jax.Array, factor: Any = None) -> jax.Array:
        b = replicate(factors(x))  # replicated like the Gram matrix
        return masked_product(b[:, None], masked_product(b[None, :], gram(x, factor)))

    return scaled


def mixed_rows(gram: Any, mix: Callable[[jax.Array], jax.Array]) -> Any:
    r"""Transform the Gram matrix `K` of the rows to :math:`A K A^\top`.

    The result is a function of `x`, or None without `K`.

    Args:
        gram: The function of `x` that returns `K = J J^T`, or None.
        mix: The linear map `A` of the residuals.
    """
    return gram and (lambda x, factor=None: jax.vmap(mix)(jax.vmap(mix, 1, 1)(gram(x, factor))))
