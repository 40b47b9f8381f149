"""Row-sparse arrays, such as the gradient of an embedding table."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import where
from fnopt.numerics import compute_dtype, saturating_cast, widen

_PROMISES = ("indices_are_sorted", "unique_indices")  # options of gather and scatter


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("indices", "values"),
    meta_fields=("size", "is_unique"),
)
@dataclasses.dataclass(frozen=True)
class Rows:
    """Row-sparse array: values for some rows of a table of `size` rows, zeros elsewhere.

    A `Rows` replaces the table in a tree of gradients or updates. `fnopt.sparse_rows` converts such
    gradients to updates, and `fnopt.apply_updates` adds them.

    Attributes:
        indices: Integers of shape `[k]`. Negative indices (padding) and indices of at least `size`
            refer to no row.
        values: An array of shape `[k, ...]`.
        size: Number of rows of the table.
        is_unique: Whether indices are increasing and unique, as in the result of `summed`.
    """

    indices: Any
    values: Any
    size: int
    is_unique: bool = False

    def summed(self) -> Rows:
        """Sum the values of equal indices, in at least float32."""
        self._check()
        if self.is_unique or self.indices.shape[0] == 0:
            return Rows(self.indices, self.values, self.size, True)
        k, dtype = self.indices.shape[0], jnp.int32
        indices = self._within()
        # Only the indices are sorted, and a binary search finds their positions. Sorting pairs of
        # indices and positions takes five times as long on a CPU.
        sorted_indices = jnp.sort(indices)
        is_new = jnp.concatenate([jnp.ones(1, bool), sorted_indices[1:] != sorted_indices[:-1]])
        position = jnp.cumsum(is_new.astype(dtype)) - 1
        # Entries without an index must be increasing too, so they get numbers above `size`.
        padding = jnp.arange(k, dtype=dtype) + jnp.asarray(self.size + 1, dtype)
        unique = padding.at[position].set(sorted_indices)
        values = widen(jnp.asarray(self.values))
        sums = jax.ops.segment_sum(values, jnp.searchsorted(unique, indices), k)
        return Rows(unique, sums, self.size, True)

    def _within(self) -> jax.Array:
        """Replace indices that refer to no row by `size`."""
        indices = jnp.asarray(self.indices).astype(jnp.int32)
        size = jnp.asarray(self.size, jnp.int32)
        return jnp.where((indices < 0) | (indices > size), size, indices)

    def _check(self) -> None:
        """Check the shapes and dtypes of indices and values."""
        dtypes = [jnp.result_type(x) for x in (self.indices, self.values)]
        shapes = [jnp.shape(x) for x in (self.indices, self.values)]
        if not (jnp.issubdtype(dtypes[0], jnp.integer) and jnp.issubdtype(dtypes[1], jnp.inexact)):
            raise TypeError(
                f"{where()}Rows: indices are {dtypes[0]} and values are {dtypes[1]}, expected "
                "integers and floating numbers."
            )
        if len(shapes[0]) != 1 or shapes[0] != shapes[1][:1]:
            raise ValueError(
                f"{where()}Rows: indices have shape {shapes[0]} and values {shapes[1]}, expected "
                "[k] and [k, ...]. Reshape ids of several axes with ids.reshape(-1)."
            )

    def of(self, table: jax.Array) -> jax.Array:
        """Select the rows of a table at the indices; zeros for indices that refer to no row."""
        options: dict[str, Any] = dict.fromkeys(_PROMISES, self.is_unique)
        # Without `_within`, a negative index would count from the end of the table.
        indices = self.indices if self.is_unique else self._within()
        return jnp.asarray(table).at[indices].get(mode="fill", fill_value=0, **options)

    def into(self, table: jax.Array, rows: jax.Array) -> jax.Array:
        """Replace the rows of a table at the indices, which must be unique."""
        options: dict[str, Any] = dict.fromkeys(_PROMISES, True)
        rows = saturating_cast(rows, table.dtype)
        return table.at[self.indices].set(rows, mode="drop", **options)

    def added_to(self, table: jax.Array) -> jax.Array:
        """Add the values to a table in the wider of the two dtypes, and round the sum once."""
        rows = self.summed()
        old = rows.of(table)
        dtype = compute_dtype(old.dtype, rows.values.dtype)
        return rows.into(jnp.asarray(table), old.astype(dtype) + rows.values.astype(dtype))

    def dense(self) -> jax.Array:
        """Convert to a dense table, with zeros in rows without values."""
        rows = self.summed()
        zeros = jnp.zeros((self.size, *rows.values.shape[1:]), rows.values.dtype)
        return rows.into(zeros, rows.values)


def is_rows(x: Any) -> bool:
    """Whether a node of a tree is a `Rows`."""
    return isinstance(x, Rows)
