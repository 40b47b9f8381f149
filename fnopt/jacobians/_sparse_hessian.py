"""Sparse Hessians of scalar functions, computed with a star coloring."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import check_function, type_text
from fnopt.jacobians._colored import FromEntries
from fnopt.jacobians._coloring import SymmetricSparsity
from fnopt.jacobians._compressed import product_sums
from fnopt.jacobians._flat import VectorFunction, vector_function
from fnopt.jacobians._sparse import check_pattern, pattern_entries
from fnopt.jacobians._sparsity_pattern import traced_pattern

_NAME = "sparse_hessian"


@jax.tree_util.register_pytree_node_class
class SparseHessian(FromEntries):
    """Symmetric sparse matrix `[n, n]`, a pytree whose only leaf is the array of entries.

    Args:
        values: The entries, of shape `[entries]`, in the order of `sparsity`.
        sparsity: The positions of the entries, and the colors of the columns.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> H = fnopt.sparse_hessian(lambda x: jnp.sum(x[1:] * x[:-1] ** 2))(jnp.ones(4))
        >>> H.mv(jnp.ones(4)), H.products
        (Array([4., 6., 6., 2.], dtype=float32), 3)
    """

    def __init__(self, values: Any, sparsity: SymmetricSparsity) -> None:
        self.values = values
        self.sparsity = sparsity

    @property
    def shape(self) -> tuple[int, int]:
        """The shape, `(n, n)` for `n` parameters."""
        return self.sparsity.shape

    @property
    def products(self) -> int:
        """Number of Hessian-vector products, one for each color."""
        return self.sparsity.colors

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray, jax.Array]:
        """Rows, columns and values of all entries, row by row."""
        return self.sparsity.rows, self.sparsity.cols, self.values

    def _product(self, v: jax.Array) -> jax.Array:
        rows, cols, values = self.entries
        return jax.ops.segment_sum(values * v[cols], rows, self.shape[0], indices_are_sorted=True)

    def tree_flatten(self) -> tuple[tuple[Any], SymmetricSparsity]:
        """The values as leaves; all other attributes are static."""
        return (self.values,), self.sparsity

    @classmethod
    def tree_unflatten(cls, aux: SymmetricSparsity, children: tuple[Any]) -> SparseHessian:
        """Undo `tree_flatten`."""
        return cls(children[0], aux)

    def __repr__(self) -> str:
        n = self.shape[0]
        entries = self.sparsity.rows.size
        return f"SparseHessian(shape=({n}, {n}), entries={entries}, products={self.products})"


def sparse_hessian(fn: Callable[..., Any], pattern: Any = None) -> Callable[..., SparseHessian]:
    r"""Compute the sparse Hessian of a scalar function with one Hessian-vector product per color.

    .. math:: H_{ij} = \frac{\partial^2 f}{\partial \theta_i \partial \theta_j}

    The product with a sum of unit vectors is the sum of the corresponding columns. Because the
    matrix is symmetric, each entry off the diagonal is in two sums. One of these sums must have no
    other entry in this row. A star coloring guarantees this property. A tridiagonal Hessian of any
    size takes 3 products instead of `n`. An arrow matrix (a diagonal, a full row and a full column)
    takes 2. No array of shape `[n, n]` is formed.

    By default, :func:`fnopt.sparsity_pattern` finds the possible entries by tracing the gradient.
    Your own pattern may have fewer entries, but must contain every entry that can be nonzero (one
    triangle is sufficient). The value of a missing entry is added to another entry, without a
    warning.

    Args:
        fn: `fn(params, ...)` returns a real scalar and can be differentiated twice.
        pattern: The possible entries of the Hessian, for concatenated params: a boolean array of
            shape `[n, n]`, a pair `(rows, cols)` of int arrays, or a SciPy sparse matrix. By
            default, the pattern is found by tracing.

    Returns:
        A function of the arguments of `fn` that returns a :class:`SparseHessian`, with the methods
        `mv`, `matrix`, `to_scipy` and `to_bcoo`. Its attribute `products` is the number of
        Hessian-vector products.

    Raises:
        TypeError: If `fn` doesn't return a real scalar, the pattern has another type, or params
            aren't real floating arrays.
        ValueError: If the pattern's shape or indices don't match `fn`, or the traced pattern has
            too many entries.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def chain(x):
        ...     return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
        >>> H = fnopt.sparse_hessian(chain)(jnp.ones(1000))
        >>> H
        SparseHessian(shape=(1000, 1000), entries=2998, products=3)
        >>> H.matrix()[:2, :3]
        Array([[ 802., -400.,    0.],
               [-400., 1002., -400.]], dtype=float32)

    Reference:
        Powell and Toint (1979), On the estimation of sparse Hessian matrices; Coleman and Moré
        (1984), Estimation of sparse Hessian matrices and graph coloring problems; Gebremedhin,
        Tarafdar, Pothen and Walther (2009), Efficient computation of sparse Hessians using coloring
        and automatic differentiation.
    """
    check_function(fn, "fn", _NAME, f"Pass a function, as in {_NAME}(f).")
    entries = None if pattern is None else pattern_entries(pattern, _NAME, "[n, n]")

    # Equal patterns have the same object, which is colored once and reuses compiled programs.
    @functools.lru_cache(maxsize=4)
    def sparsity_of(n: int, rows: bytes, cols: bytes) -> SymmetricSparsity:
        return SymmetricSparsity(np.frombuffer(rows, np.int32), np.frombuffer(cols, np.int32), n)

    def hessian_fn(params: Any, *args: Any, **kwargs: Any) -> SparseHessian:
        def scalar(p: Any) -> Any:
            return _checked_scalar(fn(p, *args, **kwargs))

        flat = vector_function(scalar, params, _NAME)
        n = flat.x.size
        gradient = flat._replace(fn=jax.grad(lambda x: flat.fn(x)[0]), m=n)
        rows, cols = _symmetric_pattern(gradient) if entries is None else _user_pattern(entries, n)
        sparsity = sparsity_of(n, rows.tobytes(), cols.tobytes())
        return SparseHessian(product_sums(gradient, sparsity)[sparsity.places], sparsity)

    return hessian_fn


def _checked_scalar(value: Any) -> Any:
    leaves = jax.tree.leaves(value)
    is_scalar = len(leaves) == 1 and hasattr(leaves[0], "dtype") and not jnp.shape(leaves[0])
    if not is_scalar or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        types = ", ".join(type_text(x) for x in leaves) or repr(value)
        raise TypeError(
            f"{_NAME}: the function returned {types}, expected a real scalar. "
            "fnopt.sparse_jacobian is for functions with many outputs."
        )
    return leaves[0]


def _symmetric_pattern(gradient: VectorFunction) -> tuple[np.ndarray, np.ndarray]:
    """Trace the pattern of the gradient's derivative, and drop entries without their transpose."""
    rows, cols = (part.astype(np.int64) for part in traced_pattern(gradient, _NAME))
    n = gradient.m
    # The traced pattern may have too many entries. An entry whose transpose is zero is zero too.
    symmetric = np.intersect1d(rows * n + cols, cols * n + rows)
    rows, cols = np.divmod(symmetric, n)
    return rows.astype(np.int32), cols.astype(np.int32)


def _user_pattern(entries: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    rows, cols, shape = entries
    check_pattern(rows, cols, shape, (n, n), _NAME)
    return np.asarray(rows, np.int32), np.asarray(cols, np.int32)
