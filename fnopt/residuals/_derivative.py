"""A user's Jacobian, transformed like the residuals."""

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
r"""`gram(x, d, w)` sums :math:`(DJ)^T DJ` and :math:`J^T w` without forming all of `J`.

With additional arguments `*maps`, the maps are applied to the rows of `J` first.
"""


class Compressed(NamedTuple):
    """Access to the entries of a sparse Jacobian and their indices."""

    of: Callable[[Any], SparseJacobian]  # J -> its entries
    sparsity: Sparsity
    by_rows: bool


class Derivative(NamedTuple):
    """The derivative of a function from `[n]` to `[m]`, without automatic differentiation.

    `at` represents the Jacobian at a point as a tree of arrays, such as the matrix, which a solver
    can store. This tree contains all values that depend on data; the three functions that read the
    tree close over no array.
    """

    at: Callable[[jax.Array], Any]  # x -> J, a tree of arrays
    matrix: Callable[[Any], jax.Array]  # J -> [m, n]
    push: Callable[[Any, jax.Array], jax.Array]  # J, v -> J v
    pull: Callable[[Any, jax.Array], jax.Array]  # J, w -> J^T w
    sparse: bool = False  # whether products cost far less than the matrix
    gram: Gram | None = None  # sums the Gram matrix without J, if available
    compressed: Compressed | None = None  # for Jacobians compressed by colors

    def scaled(self, factors: Map) -> Derivative:
        r"""The derivative of :math:`b_i f_i`, in which the factors `b(x)` are constants.

        Rows with `b = 0` may be NaN.
        """
        entries, gram = self.compressed, self.gram
        return Derivative(
            lambda x: (factors(x), self.at(x)),
            lambda J: counted(J[0][:, None], self.matrix(J[1])),
            lambda J, v: counted(J[0], self.push(J[1], v)),
            lambda J, w: self.pull(J[1], J[0] * w),
            self.sparse,
            gram and (lambda x, d, w, *maps: gram(x, factors(x) * d, factors(x) * w, *maps)),
            entries and entries._replace(of=lambda J: entries.of(J[1]).times_rows(J[0])),
        )

    def followed_by(self, outer: Map, r: jax.Array) -> Derivative:
        r"""The derivative :math:`A J` of :math:`A f(x)`, for a linear map `A`."""
        apply, consts = convert_closure(outer, r)

        def transposed(consts: Any, w: jax.Array) -> jax.Array:
            value, pull = jax.vjp(lambda r: apply(r, *consts), jnp.zeros_like(w))
            return pull(reshard_like(w, value))[0]

        return Derivative(
            lambda x: (consts, self.at(x)),
            lambda J: jax.vmap(lambda column: apply(column, *J[0]), 1, 1)(self.matrix(J[1])),
            lambda J, v: apply(self.push(J[1], v), *J[0]),
            lambda J, w: self.pull(J[1], transposed(J[0], w)),
            self.sparse,
        )

    def on_chart(self, whole: Map, head: jax.Array) -> Derivative:
        """The derivative with respect to the free variables, with base points as constants.

        Args:
            whole: Function from the free variables to the vector with base points.
            head: The free variables.
        """
        if self.compressed is None:
            return self.preceded_by(whole, head)
        # A composed sparse Jacobian is already a derivative with respect to the fitted variables.
        return self._replace(at=lambda x: self.at(whole(x)))

    def preceded_by(self, inner: Map, x: jax.Array) -> Derivative:
        r"""The derivative :math:`J T` of :math:`f(g(x))`, :math:`T = \partial g / \partial x`."""
        apply, consts = convert_closure(inner, x)

        def push(consts: Any, x: jax.Array, v: jax.Array) -> jax.Array:
            return jax.jvp(lambda x: apply(x, *consts), (x,), (pvary_over_rows(v),))[1]

        def pull(consts: Any, x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.vjp(lambda x: apply(x, *consts), x)[1](w)[0]

        def preceded(x: jax.Array, d: jax.Array, w: jax.Array, *maps: Map) -> Any:
            assert self.gram is not None
            row = lambda row: pull(consts, pvary_over_rows(x), row)  # noqa: E731
            return self.gram(inner(x), d, w, row, *maps)

        return Derivative(
            lambda x: (consts, pvary_over_rows(x), self.at(inner(x))),
            lambda J: jax.vmap(lambda row: pull(J[0], J[1], row))(self.matrix(J[2])),
            lambda J, v: self.push(J[2], push(J[0], J[1], v)),
            lambda J, w: pull(J[0], J[1], self.pull(J[2], w)),
            self.sparse,
            self.gram and preceded,
        )


def counted(b: jax.Array, a: jax.Array) -> jax.Array:
    """The product `b a`; zero where `b` is zero, even if `a` is NaN."""
    return jnp.where(b != 0, b * a, jnp.zeros_like(a))


def scaled_rows(gram: Any, factors: Callable[[jax.Array], jax.Array]) -> Any:
    r"""Gram matrix :math:`b_i K_{ij} b_j` of rows times factors `b(x)`; None without `K`."""
    if gram is None:
        return None

    def scaled(x: jax.Array, factor: Any = None) -> jax.Array:
        b = replicate(factors(x))  # replicated like the Gram matrix
        return counted(b[:, None], counted(b[None, :], gram(x, factor)))

    return scaled


def mixed_rows(gram: Any, mix: Callable[[jax.Array], jax.Array]) -> Any:
    r"""Gram matrix :math:`A K A^\top` of rows mixed by a linear map; None without `K`."""
    return gram and (lambda x, factor=None: jax.vmap(mix)(jax.vmap(mix, 1, 1)(gram(x, factor))))
