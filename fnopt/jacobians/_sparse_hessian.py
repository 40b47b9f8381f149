"""Sparse Hessians of scalar functions, by star coloring."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import type_text
from fnopt.jacobians._coloured import FromEntries
from fnopt.jacobians._colouring import SymmetricSparsity
from fnopt.jacobians._compressed import product_sums
from fnopt.jacobians._flat import VectorFunction, vector_function
from fnopt.jacobians._sparse import check_fit, pattern_entries
from fnopt.jacobians._sparsity_pattern import found_pattern

_NAME = "sparse_hessian"


@jax.tree_util.register_pytree_node_class
class SparseHessian(FromEntries):
    """Symmetric sparse matrix `[n, n]` as a pytree of its entries.

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
        return self.sparsity.colours

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray, jax.Array]:
        """Rows, columns and values of all entries, row by row."""
        return self.sparsity.rows, self.sparsity.cols, self.values

    def mv(self, v: jax.Array) -> jax.Array:
        """Product with a vector of shape `[n]`."""
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
    r"""Compute the sparse Hessian of a scalar function with one product per color.

    .. math:: H_{ij} = \frac{\partial^2 f}{\partial \theta_i \partial \theta_j}

    A product with the sum of some unit vectors is the sum of the corresponding columns. An entry
    appears twice in the matrix, and must be alone in only one of the two sums, so a star coloring
    is sufficient. It takes 3 products for a tridiagonal Hessian of any size, and 2 for an arrow
    matrix (a diagonal, a full row and a full column), instead of `n`. No array of shape `[n, n]` is
    formed.

    The possible entries are found by tracing the gradient, with the rules and limits of
    :func:`fnopt.sparsity_pattern`. Your own pattern may have fewer entries, but must contain every
    entry that can be nonzero (one triangle is sufficient). The value of a missing entry is added to
    another entry, without a warning.

    Args:
        fn: `fn(params, ...)` returns a real scalar and can be differentiated twice.
        pattern: The possible entries of the Hessian, with concatenated params: a boolean array of
            shape `[n, n]`, a pair `(rows, cols)` of int arrays, or a SciPy sparse matrix. By
            default they are found by tracing.

    Returns:
        A function of the arguments of `fn` that returns a :class:`SparseHessian`, which has `mv`,
        `matrix`, `to_scipy` and `to_bcoo`, and the number of `products`.

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
    given = None if pattern is None else pattern_entries(pattern, _NAME, "[n, n]")

    @functools.lru_cache(maxsize=4)
    def coloured(n: int, rows: bytes, cols: bytes) -> SymmetricSparsity:
        return SymmetricSparsity(np.frombuffer(rows, np.int32), np.frombuffer(cols, np.int32), n)

    def hessian_fn(params: Any, *args: Any, **kwargs: Any) -> SparseHessian:
        def scalar(p: Any) -> Any:
            return _checked_scalar(fn(p, *args, **kwargs))

        flat = vector_function(scalar, params, _NAME)
        n = flat.x.size
        slope = flat._replace(fn=jax.grad(lambda x: flat.fn(x)[0]), m=n)
        rows, cols = _both_ways(slope) if given is None else _fitting(given, n)
        sparsity = coloured(n, rows.tobytes(), cols.tobytes())
        return SparseHessian(product_sums(slope, sparsity)[sparsity.places], sparsity)

    return hessian_fn


def _checked_scalar(value: Any) -> Any:
    leaves = jax.tree.leaves(value)
    fits = len(leaves) == 1 and hasattr(leaves[0], "dtype") and not jnp.shape(leaves[0])
    if not fits or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        shown = ", ".join(type_text(x) for x in leaves) or repr(value)
        raise TypeError(
            f"{_NAME}: the function returned {shown}, expected a real scalar. "
            "fnopt.sparse_jacobian is for functions with many outputs."
        )
    return leaves[0]


def _both_ways(slope: VectorFunction) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries whose transpose is also in the pattern; others are zero by symmetry."""
    rows, cols = (part.astype(np.int64) for part in found_pattern(slope, _NAME))
    n = slope.m
    # The found pattern is an upper bound, because an entry without its transpose is zero by
    # symmetry.
    both = np.intersect1d(rows * n + cols, cols * n + rows)
    rows, cols = np.divmod(both, n)
    return rows.astype(np.int32), cols.astype(np.int32)


def _fitting(given: Any, n: int) -> tuple[np.ndarray, np.ndarray]:
    rows, cols, shape = given
    check_fit(rows, cols, shape, (n, n), _NAME)
    return np.asarray(rows, np.int32), np.asarray(cols, np.int32)
