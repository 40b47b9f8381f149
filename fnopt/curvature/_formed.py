"""Rows of a Jacobian that are formed, with the interface of those of the tape."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import HIGHEST, compute_dtype, matmul
from fnopt.gradients import BoundLoss
from fnopt.sharding import pvary_like, replicate


class FormedRows(NamedTuple):
    """The rows of `n` examples with `k` residuals each.

    Attributes:
        residuals: The residuals, `[n, k]`.
        rows: A tree like the params, of rows `[n, k, *param]`.
    """

    residuals: jax.Array
    rows: Any

    def gram(self, other: FormedRows) -> jax.Array:
        """The inner products of all rows with those of another Jacobian, `[n k, m l]`."""
        found = [
            matmul(x, y.T)
            for a, b in zip(jax.tree.leaves(self.rows), jax.tree.leaves(other.rows), strict=True)
            for x, y in [(_matrix(a), _matrix(b))]
        ]
        dtype = compute_dtype(*(x.dtype for x in found))
        total = jnp.zeros((self.residuals.size, other.residuals.size), dtype)
        for x in found:
            total = total + x.astype(dtype)
        return total

    def matrix(self) -> jax.Array:
        """All rows with the params end to end, `[n k, P]`, float32 or wider."""
        found = [_matrix(rows) for rows in jax.tree.leaves(self.rows)]
        dtype = compute_dtype(*(x.dtype for x in found))
        return jnp.concatenate([x.astype(dtype) for x in found], axis=1)

    def pull(self, weights: jax.Array) -> Any:
        r"""The product :math:`J^\top a`, a tree like the params, float32 or wider."""

        def pull_leaf(rows: jax.Array) -> jax.Array:
            wide = replicate(rows).astype(compute_dtype(rows.dtype))
            return jnp.tensordot(a.astype(wide.dtype), wide, 2, precision=HIGHEST)

        a = replicate(weights)  # a sum over an axis that an explicit mesh divides
        return jax.tree.map(pull_leaf, self.rows)

    def push(self, direction: Any) -> jax.Array:
        """The product `J v`, `[n, k]`, float32 or wider."""

        def push_leaf(rows: jax.Array, v: jax.Array) -> jax.Array:
            dtype = compute_dtype(rows.dtype, v.dtype)
            rows, v = rows.astype(dtype), v.astype(dtype)
            return jnp.tensordot(rows, v, v.ndim, precision=HIGHEST)

        parts = jax.tree.leaves(jax.tree.map(push_leaf, self.rows, direction))
        dtype = compute_dtype(*(x.dtype for x in parts))
        return sum((x.astype(dtype) for x in parts), jnp.zeros(self.residuals.shape, dtype))


def _matrix(rows: jax.Array) -> jax.Array:
    # The first two axes cannot become one where an explicit mesh divides the first.
    wide = replicate(rows).astype(compute_dtype(rows.dtype))
    return wide.reshape(wide.shape[0] * wide.shape[1], -1)


def form_rows(bound: BoundLoss, batch: Any) -> FormedRows:
    """Form the rows by one backward pass for every residual of an example."""

    def rows_of_example(example: Any) -> tuple[jax.Array, Any]:
        r, pull, _ = jax.vjp(lambda p: bound.loss(p, example), bound.params, has_aux=True)
        return r, jax.vmap(lambda e: pull(e)[0])(pvary_like(jnp.eye(r.size, dtype=r.dtype), r))

    return FormedRows(*jax.vmap(rows_of_example)(batch))
