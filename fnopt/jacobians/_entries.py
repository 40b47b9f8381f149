"""Conversions of a sparse matrix, from its entries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import import_optional


class FromEntries:
    """A sparse matrix that knows its entries, in the forms of other libraries."""

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and of columns."""
        raise NotImplementedError

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray, jax.Array]:
        """The rows, the columns and the values of all entries, each of shape `[entries]`."""
        raise NotImplementedError

    def matrix(self) -> jax.Array:
        """All of it, an array of shape `[m, n]`."""
        rows, cols, values = self.entries
        return jnp.zeros(self.shape, values.dtype).at[rows, cols].set(values)

    def to_bcoo(self) -> Any:
        """This matrix as a `jax.experimental.sparse.BCOO`, also under `jax.jit`.

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
        """This matrix as a `scipy.sparse.csr_array`.

        Raises:
            ImportError: If SciPy isn't installed.
            TypeError: Under `jax.jit` and the like, where it has no numbers.

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
                f"{type(self).__name__}.to_scipy: the entries are traced. Call it outside of jit, "
                "or take to_bcoo, which works inside."
            )
        return sparse.csr_array((np.asarray(values), (rows, cols)), shape=self.shape)
