"""Sparse Jacobians of functions whose outputs depend on few params each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.errors import check_function, count_text
from fnopt.jacobians._band import band_of
from fnopt.jacobians._colored import SparseJacobian
from fnopt.jacobians._coloring import Sparsity
from fnopt.jacobians._compressed import (
    Coloring,
    best_coloring,
    coloring,
    compressed_jacobian,
    sparsity_of,
)
from fnopt.jacobians._elimination import Elimination, elimination
from fnopt.jacobians._flat import VectorFunction, jacobian_mode, vector_function
from fnopt.jacobians._pairs import Shapes, pattern_product
from fnopt.jacobians._ravel import held_as_zeros
from fnopt.jacobians._sparsity_pattern import traced_pattern
from fnopt.manifolds import along_tangents, in_tangents, is_on

_NAME = "sparse_jacobian"
# Above this size, a fit has no full covariance; `fnopt.covariance` computes the covariance of a few
# params. With 65 to 520 unknowns, a sparse fit takes 1.5 to 73 % of a dense fit's run time.
LARGEST_DENSE = 256
"""Number of residuals or unknowns up to which `least_squares` forms a sparse Jacobian densely."""


def sparse_jacobian(
    fn: Callable[..., Any], pattern: Any = None, *, mode: str = "auto"
) -> SparseJacobianFunction:
    r"""Compute a sparse Jacobian with one JVP or VJP per color.

    One pass computes the sum of several columns that have no row in common. Each entry of the sum
    belongs to one column. A greedy coloring groups the columns. A tridiagonal Jacobian of any size
    takes 3 passes instead of `n`. No array of shape `[m, n]` is formed. Full rows, as in an arrow
    matrix, are computed from sums of rows if this takes fewer passes in total. All other entries
    are then computed from sums of columns. Full columns are treated in the same way.

    Pass the result as `jac` to `least_squares` for large problems in which each residual depends on
    few params. With more than 256 residuals and more than 256 params, `least_squares` then computes
    steps by a sparse Cholesky factorization:

    - of a band matrix, if some order of the params gives :math:`J^T J` a narrow band;
    - by elimination of params that no residual couples, such as the points of a bundle adjustment;
    - on the host, in a minimum-degree order, such as for pose graphs (also on manifolds).

    `print(sparse_jacobian(fn).plan(params))` names the choice. :func:`fnopt.covariance` computes
    the covariance of a few params from this factor. If the factor would be too large, conjugate
    gradients compute the steps from products with the Jacobian. The solution then has no Jacobian
    matrix and no covariance. The option `linear_solver` overrides this choice.

    `sparsity_pattern` finds the possible entries by tracing `fn`. Your own pattern may have fewer
    entries, but must contain every entry that can be nonzero. The value of a missing entry is added
    to another entry, without a warning. `check_sparsity` finds missing entries.

    Args:
        fn: `fn(params, ...)` returns an array, or a pytree of arrays.
        pattern: The possible entries of the Jacobian, for concatenated outputs and params: a
            boolean array of shape `[m, n]`, a pair `(rows, cols)` of int arrays, or a SciPy sparse
            matrix. A complex output has rows for its real part, then rows for its imaginary part.
            By default, the pattern is found by tracing.
        mode: `'forward'` colors columns and `'reverse'` colors rows. `'auto'` colors columns, rows
            or both, whichever takes the fewest passes in the modes that `fn` supports.

    Returns:
        A function of the arguments of `fn` that returns a :class:`SparseJacobian`, with the methods
        `mv`, `rmv`, `matrix`, `to_scipy` and `to_bcoo`. The function has an attribute `plan`, a
        function of the same arguments. `plan` returns the :class:`Elimination` of the normal
        equations, which names the linear solver of `least_squares`.

    Raises:
        TypeError: If the pattern has another type, or params or outputs aren't floating.
        ValueError: If the pattern's shape or indices don't match the function, the traced pattern
            has too many entries, or `mode` has an unknown value.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> def chain(x):
        ...     return x[1:] - x[:-1] ** 2
        >>> J = fnopt.sparse_jacobian(chain)(jnp.arange(1.0, 6.0))
        >>> J
        SparseJacobian(shape=(4, 5), entries=8, colors=2, by=columns)
        >>> J.matrix()[:2]
        Array([[-2.,  1.,  0.,  0.,  0.],
               [ 0., -4.,  1.,  0.,  0.]], dtype=float32)

    Reference:
        Curtis, Powell and Reid (1974), On the estimation of sparse Jacobian matrices;
        Coleman and Verma (1998), The efficient computation of sparse Jacobian matrices using
        automatic differentiation; Gebremedhin, Manne and Pothen (2005), What color is your
        Jacobian?
    """
    check_function(fn, "fn", _NAME, f"Pass a function, as in {_NAME}(f).")
    jacobian_mode(mode, 1, 1, f"{_NAME}: mode")
    entries = None if pattern is None else pattern_entries(pattern, _NAME)
    pattern_fn = _traced_pattern if entries is None else _user_pattern(entries)
    return _jacobian_function(fn, _coloring_fn(pattern_fn), mode)


class SparseJacobianFunction(Protocol):
    """Function that computes a sparse Jacobian, with the plan of its elimination."""

    plan: Callable[..., Elimination]
    """Function of the same arguments that returns the elimination used by `least_squares`."""
    composed: Callable[[Callable[[Any], Any]], SparseJacobianFunction]
    """Function from `inner` to the sparse Jacobian of `fn(inner(x), ...)`."""

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> SparseJacobian:
        """Compute the Jacobian."""
        ...


Inner = Callable[[Any], Any]
PatternFunction = Callable[[VectorFunction, Inner | None], tuple[np.ndarray, np.ndarray]]
ColoringFunction = Callable[[VectorFunction, Inner | None, str], Coloring]


def _jacobian_function(
    fn: Callable[..., Any],
    coloring_fn: ColoringFunction,
    mode: str,
    inner: Inner | None = None,
) -> SparseJacobianFunction:
    def flatten(params: Any, args: Any, kwargs: Any) -> tuple[VectorFunction, Any]:
        def function(p: Any) -> Any:
            return fn(p if inner is None else inner(p), *args, **kwargs)

        flat = vector_function(function, params, _NAME)
        return flat, lambda mode: coloring_fn(flat, inner, mode)

    def jacobian_fn(params: Any, *args: Any, **kwargs: Any) -> SparseJacobian:
        return compressed_jacobian(*flatten(params, args, kwargs), mode)

    def composed(inner: Inner) -> SparseJacobianFunction:
        return _jacobian_function(fn, coloring_fn, mode, inner)

    def plan(params: Any, *args: Any, **kwargs: Any) -> Elimination:
        if inner is None and any(map(is_on, jax.tree.leaves(params, is_leaf=is_on))):
            # `least_squares` fits points on manifolds by tangent coordinates.
            in_coordinates = composed(functools.partial(along_tangents, params))
            return in_coordinates.plan(in_tangents(params), *args, **kwargs)
        sparsity, by_rows = sparsity_of(best_coloring(*flatten(params, args, kwargs), mode))
        planned = elimination(sparsity, by_rows)
        return dataclasses.replace(planned, instead=_other_solver(sparsity, by_rows))

    function = cast(SparseJacobianFunction, jacobian_fn)
    function.plan, function.composed = plan, composed
    return function


def _other_solver(sparsity: Sparsity, by_rows: bool) -> str:
    """Name the linear solver that `least_squares` uses instead of the elimination, or `''`."""
    m, n = sparsity.shape[::-1] if by_rows else sparsity.shape
    if min(m, n) <= LARGEST_DENSE:
        return (
            f"factorization of a dense matrix, because there are at most {LARGEST_DENSE} residuals "
            "or unknowns"
        )
    if m < n:
        return "conjugate gradients, because there are fewer residuals than unknowns"
    band = band_of(sparsity, by_rows)
    return "" if band is None else str(band)


def _leaf_shapes(flat: VectorFunction) -> Shapes:
    return tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(flat.params))


@functools.lru_cache(maxsize=8)
def _cached_coloring(
    m: int, n: int, rows: bytes, cols: bytes, mode: str, leaves: Shapes
) -> Coloring:
    """Color a pattern, with one object for equal patterns, which reuses compiled programs."""
    # The cache needs hashable keys, so the pattern is passed as bytes.
    entries = np.frombuffer(rows, np.int32), np.frombuffer(cols, np.int32)
    return coloring(*entries, (m, n), mode, leaves)


def _coloring_fn(pattern_fn: PatternFunction) -> ColoringFunction:
    """Make the function that finds the pattern in every trace, and colors new patterns."""

    def coloring_fn(flat: VectorFunction, inner: Inner | None, mode: str) -> Coloring:
        rows, cols = (part.astype(np.int32).tobytes() for part in pattern_fn(flat, inner))
        return _cached_coloring(flat.m, flat.x.size, rows, cols, mode, _leaf_shapes(flat))

    return coloring_fn


def _traced_pattern(flat: VectorFunction, inner: Inner | None) -> tuple[np.ndarray, np.ndarray]:
    del inner  # part of `flat`, so the trace includes it
    return traced_pattern(flat)


def _user_pattern(entries: tuple[np.ndarray, np.ndarray, Any]) -> PatternFunction:
    """Make the function that returns the user's pattern, times the pattern of an inner function."""
    rows, cols, shape = entries

    def pattern_fn(flat: VectorFunction, inner: Inner | None) -> tuple[np.ndarray, np.ndarray]:
        if inner is None:
            check_pattern(rows, cols, shape, (flat.m, flat.x.size), _NAME)
            return rows, cols
        inner_flat = vector_function(lambda p: held_as_zeros(inner(p)), flat.params, _NAME)
        check_pattern(rows, cols, shape, (flat.m, inner_flat.m), _NAME)
        return pattern_product((rows, cols), traced_pattern(inner_flat))

    return pattern_fn


def pattern_entries(
    pattern: Any, name: str, shape: str = "[m, n]"
) -> tuple[np.ndarray, np.ndarray, tuple[int, int] | None]:
    """Convert a user's pattern to rows and columns of entries, and a shape.

    Args:
        pattern: A boolean array, a pair `(rows, cols)` or a SciPy sparse matrix.
        name: The public function that the user called, for messages.
        shape: The expected shape, for messages.

    Returns:
        The rows and the columns, and the shape; None as the shape of a pair.

    Raises:
        TypeError: If the pattern has another type.
    """
    if hasattr(pattern, "tocoo"):
        coo = pattern.tocoo()
        m, n = coo.shape
        return np.asarray(coo.row), np.asarray(coo.col), (m, n)
    if isinstance(pattern, tuple) and len(pattern) == 2:
        rows, cols = (np.asarray(part) for part in pattern)
        are_integers = all(np.issubdtype(part.dtype, np.integer) for part in (rows, cols))
        if are_integers and rows.ndim == 1 and rows.shape == cols.shape:
            return rows, cols, None
    elif getattr(pattern, "dtype", None) == np.bool_ and np.ndim(pattern) == 2:
        mask = np.asarray(pattern)
        rows, cols = np.nonzero(mask)
        return rows, cols, (mask.shape[0], mask.shape[1])
    raise TypeError(
        f"{name}: pattern is {type(pattern).__name__}, expected a boolean array of shape {shape}, "
        "a pair (rows, cols) of int arrays of equal length, or a SciPy sparse matrix."
    )


def check_pattern(
    rows: np.ndarray,
    cols: np.ndarray,
    pattern_shape: tuple[int, int] | None,
    shape: tuple[int, int],
    name: str,
) -> None:
    """Raise an error if the pattern doesn't have the shape of the function's Jacobian."""
    if pattern_shape is not None and pattern_shape != shape:
        raise ValueError(
            f"{name}: the pattern has shape {pattern_shape}, expected {shape} for "
            f"{count_text(shape[0], 'output')} and {count_text(shape[1], 'param')}."
        )
    for indices, size, what in ((rows, shape[0], "output"), (cols, shape[1], "param")):
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            raise ValueError(
                f"{name}: the pattern has indices from {indices.min()} to {indices.max()}, "
                f"expected 0 to {size - 1} for {count_text(size, what)}."
            )
