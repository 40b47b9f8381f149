"""Sparse Jacobians, stored as one sum of columns (or rows) for each color."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.errors import import_optional, type_text
from fnopt.jacobians._coloring import Bicoloring, Sparsity


class FromEntries:
    """Base class of sparse matrices, with conversions to formats of other libraries."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        raise NotImplementedError

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray, jax.Array]:
        """The rows, the columns and the values of all entries, each of shape `[entries]`."""
        raise NotImplementedError

    def mv(self, v: jax.Array) -> jax.Array:
        """Multiply the matrix by a vector of shape `[n]`; the result has shape `[m]`."""
        self._check_length(v, "mv", 1)
        return self._product(v)

    def _product(self, v: jax.Array) -> jax.Array:
        raise NotImplementedError

    def _check_length(self, v: Any, method: str, axis: int) -> None:
        """Check that a vector has the length of an axis, because JAX clamps wrong indices."""
        length = self.shape[axis]
        if getattr(v, "shape", None) != (length,):
            raise ValueError(
                f"{type(self).__name__}.{method}: the vector is {type_text(v)}, expected an array "
                f"of shape ({length},)."
            )

    def matrix(self) -> jax.Array:
        """Convert to a dense matrix of shape `[m, n]`."""
        rows, cols, values = self.entries
        return jnp.zeros(self.shape, values.dtype).at[rows, cols].set(values)

    def to_bcoo(self) -> Any:
        """Convert to a `jax.experimental.sparse.BCOO`, also under `jax.jit`.

        Example:
            >>> J = fnopt.sparse_jacobian(lambda x: x[1:] - x[:-1] ** 2)(jnp.ones(4))
            >>> (J.to_bcoo() @ jnp.ones(4)).shape
            (3,)
        """
        from jax.experimental import sparse

        rows, cols, values = self.entries
        indices = jnp.asarray(np.stack([rows, cols], 1))
        return sparse.BCOO((values, indices), shape=self.shape, unique_indices=True)

    def to_scipy(self) -> Any:
        """Convert to a `scipy.sparse.csr_array`.

        Raises:
            ImportError: If SciPy isn't installed.
            TypeError: Under `jax.jit` and other transformations, where the values are traced.

        Example:
            >>> J = fnopt.sparse_jacobian(lambda x: x[1:] - x[:-1] ** 2)(jnp.ones(4))
            >>> J.to_scipy().toarray()
            array([[-2.,  1.,  0.,  0.],
                   [ 0., -2.,  1.,  0.],
                   [ 0.,  0., -2.,  1.]], dtype=float32)
        """
        sparse = import_optional("scipy.sparse", f"{type(self).__name__}.to_scipy")
        rows, cols, values = self.entries
        if isinstance(values, Tracer):
            raise TypeError(
                f"{type(self).__name__}.to_scipy: the entries are traced, expected concrete "
                "values. Call to_scipy outside of jax.jit, or call to_bcoo."
            )
        return sparse.csr_array((np.asarray(values), (rows, cols)), shape=self.shape)


@jax.tree_util.register_pytree_node_class
class SparseJacobian(FromEntries):
    r"""Sparse matrix `[m, n]`, stored as one sum of columns (or rows) for each color.

    A row has at most one entry of each color, so the array of sums, of shape `[m, colors]`,
    contains every entry. The array is the only leaf of the pytree.

    `sparse_jacobian` may partition the entries into sums of columns and sums of rows. The matrix
    then has two arrays of sums, and `sparsity` is the pattern of the whole matrix.

    Args:
        sums: The sums, of shape `[m, colors]`; `[n, colors]` if `by_rows` is True.
        sparsity: The pattern and the coloring of the matrix; of its transpose if `by_rows` is True.
        by_rows: Whether rows were summed instead of columns.

    Example:
        >>> import numpy as np
        >>> from fnopt.jacobians import SparseJacobian, Sparsity
        >>> i = np.arange(3)
        >>> J = SparseJacobian(jnp.asarray([[1.0], [2.0], [3.0]]), Sparsity(i, i, (3, 3)))
        >>> J.shape, J.mv(jnp.ones(3))
        ((3, 3), Array([1., 2., 3.], dtype=float32))
    """

    def __init__(self, sums: Any, sparsity: Sparsity, by_rows: bool = False) -> None:
        self.sums = sums
        self.sparsity = sparsity
        self.by_rows = by_rows

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        m, n = self.sparsity.shape
        return (n, m) if self.by_rows else (m, n)

    @property
    def colors(self) -> int:
        """Number of colors, equal to the number of derivative passes."""
        return self.sparsity.colors

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray, jax.Array]:
        """The rows, the columns and the values of all entries, each of shape `[entries]`."""
        sparsity = self.sparsity
        values = self.sums.T.ravel()[sparsity.places]
        return (
            (sparsity.cols, sparsity.rows, values)
            if self.by_rows
            else (sparsity.rows, sparsity.cols, values)
        )

    def values(self, index: np.ndarray) -> jax.Array:
        """The entries with these indices; 0 for an index past the end."""
        places = np.append(self.sparsity.places, np.int32(self.sums.size))[index]
        return self.sums.T.ravel().at[places].get(mode="fill", fill_value=0)

    def astype(self, dtype: Any) -> SparseJacobian:
        """Convert the entries to another dtype."""
        return SparseJacobian(self.sums.astype(dtype), self.sparsity, self.by_rows)

    def rmv(self, w: jax.Array) -> jax.Array:
        """Multiply the transpose by a vector of shape `[m]`; the result has shape `[n]`."""
        self._check_length(w, "rmv", 0)
        return self._left_product(w)

    def times_rows(self, b: jax.Array) -> SparseJacobian:
        """Multiply the rows by `b`, of shape `[m]`; rows with a zero factor become zero."""
        self._check_length(b, "times_rows", 0)
        column, exists = self.sparsity.lists
        factors = jnp.where(exists, b[column], 0) if self.by_rows else b[:, None]
        # A row with a zero factor may contain NaN, and 0 * NaN is NaN.
        sums = jnp.where(factors != 0, factors * self.sums, 0)
        return SparseJacobian(sums, self.sparsity, self.by_rows)

    def _product(self, v: jax.Array) -> jax.Array:
        return self._transpose_product(v) if self.by_rows else self._stored_product(v)

    def _left_product(self, w: jax.Array) -> jax.Array:
        return self._stored_product(w) if self.by_rows else self._transpose_product(w)

    def _stored_product(self, v: jax.Array) -> jax.Array:
        """Product of the matrix with pattern `sparsity`: a gather and a sum over the colors."""
        column, exists = self.sparsity.lists
        return jnp.sum(jnp.where(exists, self.sums * v[column], 0), axis=1)

    def _transpose_product(self, w: jax.Array) -> jax.Array:
        """Product of the transpose of the matrix with pattern `sparsity`."""
        column, exists = self.sparsity.lists
        terms = jnp.where(exists, self.sums * w[:, None], 0)
        return jnp.zeros(self.sparsity.shape[1], terms.dtype).at[column].add(terms)

    def tree_flatten(self) -> tuple[tuple[Any], tuple[Sparsity, bool]]:
        """The sums as leaves; all other attributes are static."""
        return (self.sums,), (self.sparsity, self.by_rows)

    @classmethod
    def tree_unflatten(cls, aux: tuple[Sparsity, bool], children: tuple[Any]) -> SparseJacobian:
        """Undo `tree_flatten`."""
        return cls(children[0], *aux)

    def __repr__(self) -> str:
        m, n = self.shape
        return (
            f"SparseJacobian(shape=({m}, {n}), entries={self.sparsity.rows.size}, "
            f"colors={self.colors}, by={self._by})"
        )

    @property
    def _by(self) -> str:
        return "rows" if self.by_rows else "columns"


@jax.tree_util.register_pytree_node_class
class TwoWayJacobian(SparseJacobian):
    """Sparse matrix with entries stored partly in sums of columns and partly in sums of rows.

    Args:
        sums: The sums of columns, of shape `[m, colors]`, and the sums of rows, `[n, colors]`.
        parts: The partition of the entries.
    """

    def __init__(self, sums: tuple[Any, Any], parts: Bicoloring) -> None:
        super().__init__(sums, parts.whole)
        self.parts = parts

    @property
    def columns(self) -> SparseJacobian:
        """The entries stored in sums of columns."""
        return SparseJacobian(self.sums[0], self.parts.columns)

    @property
    def rows(self) -> SparseJacobian:
        """The entries stored in sums of rows."""
        return SparseJacobian(self.sums[1], self.parts.rows, by_rows=True)

    @property
    def colors(self) -> int:
        """Total number of colors of columns and of rows."""
        return self.parts.colors

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray, jax.Array]:
        """The rows, the columns and the values of all entries, sorted by row."""
        values = jnp.concatenate([self.columns.entries[2], self.rows.entries[2]])
        return self.sparsity.rows, self.sparsity.cols, values[self.parts.order]

    def values(self, index: np.ndarray) -> jax.Array:
        """The entries with these indices; 0 for an index past the end."""
        return self.entries[2].at[index].get(mode="fill", fill_value=0)

    def astype(self, dtype: Any) -> TwoWayJacobian:
        """Convert the entries to another dtype."""
        columns, rows = self.sums
        return TwoWayJacobian((columns.astype(dtype), rows.astype(dtype)), self.parts)

    def times_rows(self, b: jax.Array) -> TwoWayJacobian:
        """Multiply the rows by `b`, of shape `[m]`; rows with a zero factor become zero."""
        return TwoWayJacobian(
            (self.columns.times_rows(b).sums, self.rows.times_rows(b).sums), self.parts
        )

    def _product(self, v: jax.Array) -> jax.Array:
        return self.columns.mv(v) + self.rows.mv(v)

    def _left_product(self, w: jax.Array) -> jax.Array:
        return self.columns.rmv(w) + self.rows.rmv(w)

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        """Both sums as leaves; all other attributes are static."""
        return (self.sums,), self.parts

    @classmethod
    def tree_unflatten(cls, aux: Any, children: tuple[Any]) -> TwoWayJacobian:
        """Undo `tree_flatten`."""
        return cls(children[0], aux)

    @property
    def _by(self) -> str:
        return "columns and rows"
