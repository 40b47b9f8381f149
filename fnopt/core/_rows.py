"""Row-sparse arrays, such as the gradient of an embedding."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import where
from fnopt.numerics import compute_dtype, widen

_PROMISES = ("indices_are_sorted", "unique_indices")


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
        is_unique: Whether indices are increasing and unique, as after `summed`.
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
        # Indices that refer to no row are mapped to unique numbers beyond the table.
        indices = self._within()
        # Only the indices are sorted, and positions are looked up again; sorting pairs takes five
        # times as long on a CPU.
        ordered = jnp.sort(indices)
        is_new = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
        place = jnp.cumsum(is_new.astype(dtype)) - 1
        unused = jnp.arange(k, dtype=dtype) + jnp.asarray(self.size + 1, dtype)
        unique = unused.at[place].set(ordered)
        values = jnp.asarray(self.values)
        values = widen(values)
        sums = jax.ops.segment_sum(values, jnp.searchsorted(unique, indices), k)
        return Rows(unique, sums, self.size, True)

    def _within(self) -> jax.Array:
        """The indices, with `size` in place of indices that refer to no row."""
        indices = jnp.asarray(self.indices).astype(jnp.int32)
        size = jnp.asarray(self.size, jnp.int32)
        return jnp.where((indices < 0) | (indices > size), size, indices)

    def _check(self) -> None:
        """Check shapes and dtypes."""
        kinds = [jnp.result_type(x) for x in (self.indices, self.values)]
        shapes = [jnp.shape(x) for x in (self.indices, self.values)]
        if not (jnp.issubdtype(kinds[0], jnp.integer) and jnp.issubdtype(kinds[1], jnp.inexact)):
            raise TypeError(
                f"{where()}Rows: indices are {kinds[0]} and values {kinds[1]}, expected whole "
                "numbers and floating ones."
            )
        if len(shapes[0]) != 1 or shapes[0] != shapes[1][:1]:
            raise ValueError(
                f"{where()}Rows: indices have shape {shapes[0]} and values {shapes[1]}, expected "
                "[k] and [k, ...]: reshape ids of several axes with ids.reshape(-1)."
            )

    def of(self, table: jax.Array) -> jax.Array:
        """Select the rows of a table at the indices; zeros for indices that refer to no row."""
        how: dict[str, Any] = dict.fromkeys(_PROMISES, self.is_unique)
        indices = self.indices if self.is_unique else self._within()
        return jnp.asarray(table).at[indices].get(mode="fill", fill_value=0, **how)

    def into(self, table: jax.Array, rows: jax.Array) -> jax.Array:
        """Replace the rows of a table at the indices, which must be unique."""
        how: dict[str, Any] = dict.fromkeys(_PROMISES, True)
        return table.at[self.indices].set(rows.astype(table.dtype), mode="drop", **how)

    def added_to(self, table: jax.Array) -> jax.Array:
        """Add the values to a table in the wider of the two dtypes, and round once."""
        rows = self.summed()
        old = rows.of(table)
        dtype = compute_dtype(old.dtype, rows.values.dtype)
        return rows.into(jnp.asarray(table), old.astype(dtype) + rows.values.astype(dtype))

    def dense(self) -> jax.Array:
        """The dense table, with zeros in all other rows."""
        rows = self.summed()
        zeros = jnp.zeros((self.size, *rows.values.shape[1:]), rows.values.dtype)
        return rows.into(zeros, rows.values)


def is_rows(x: Any) -> bool:
    """Whether a node of a tree is a `Rows`."""
    return isinstance(x, Rows)
