"""Jacobian of a function whose outputs each depend on few params."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.jacobians._band import band_of
from fnopt.jacobians._coloured import SparseJacobian
from fnopt.jacobians._colouring import Sparsity
from fnopt.jacobians._compressed import (
    Colouring,
    best_colouring,
    colouring,
    compressed,
    sparsity_of,
)
from fnopt.jacobians._elimination import Elimination, elimination
from fnopt.jacobians._flat import VectorFunction, jacobian_mode, vector_function
from fnopt.jacobians._pairs import Shapes, pattern_product
from fnopt.jacobians._ravel import held_as_zeros
from fnopt.jacobians._sparsity_pattern import found_pattern
from fnopt.manifolds import along_tangents, in_tangents, is_on

_NAME = "sparse_jacobian"
# A larger sparse problem has no full covariance, only that of chosen params. At 65 to 520 unknowns,
# a sparse fit takes 1.5 to 73 % of a dense fit's run time.
LARGEST_DENSE = 256
"""Number of residuals or unknowns up to which `least_squares` forms a sparse Jacobian densely."""


def sparse_jacobian(
    fn: Callable[..., Any], pattern: Any = None, *, mode: str = "auto"
) -> SparseJacobianFunction:
    r"""Compute a sparse Jacobian with one JVP or VJP per color.

    One pass computes several columns that have no row in common, because each entry of their sum
    belongs to one column. A greedy coloring, made once, groups the columns: 3 passes for a
    tridiagonal Jacobian of any size, instead of `n`. No array of shape `[m, n]` is formed. If it
    takes fewer passes in total, a few full rows (as in an arrow matrix) are computed from sums of
    rows and all other entries from sums of columns, and similarly for a few full columns.

    Pass the result as `jac` to `least_squares` for large problems with local coupling. With more
    than 256 residuals and more than 256 params, it computes steps by a sparse Cholesky
    factorization: of a band matrix if some order of the params gives :math:`J^T J` a narrow band,
    by elimination of params that no residual couples (the points of a bundle adjustment), or by the
    host in a minimum-degree order (the poses of a graph, also on manifolds).
    `print(sparse_jacobian(fn).plan(params))` names the choice. :func:`fnopt.covariance` computes
    the covariance of a few params from this factor. If the factor is too large, steps are computed
    from products by conjugate gradients. The solution then has no matrix and no covariance.
    `linear_solver` overrides this choice.

    `sparsity_pattern` finds the possible entries by tracing `fn`. Your own pattern may have fewer
    entries, but must contain every entry that can be nonzero. The value of a missing entry is added
    to another entry, without a warning. `check_sparsity` finds missing entries.

    Args:
        fn: `fn(params, ...)` returns an array, or a pytree of arrays.
        pattern: The possible entries of the Jacobian, with concatenated outputs and params: a
            boolean array of shape `[m, n]`, a pair `(rows, cols)` of int arrays, or a SciPy sparse
            matrix. A complex output has rows for its real part, then for its imaginary part. By
            default it is found by tracing.
        mode: `'forward'` colors columns, `'reverse'` rows, `'auto'` colors columns, rows or both,
            whichever takes the fewest passes in the modes that `fn` supports.

    Returns:
        A function of the arguments of `fn` that returns a :class:`SparseJacobian`, which has
        `mv`, `rmv` and `matrix`, `to_scipy` and `to_bcoo`. Its method `plan`, a function of the
        same arguments, returns the :class:`Elimination` of its normal equations, which names the
        linear solver of `least_squares`.

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
        SparseJacobian(shape=(4, 5), entries=8, colours=2, by=columns)
        >>> J.matrix()[:2]
        Array([[-2.,  1.,  0.,  0.,  0.],
               [ 0., -4.,  1.,  0.,  0.]], dtype=float32)

    Reference:
        Curtis, Powell and Reid (1974), On the estimation of sparse Jacobian matrices;
        Coleman and Verma (1998), The efficient computation of sparse Jacobian matrices using
        automatic differentiation; Gebremedhin, Manne and Pothen (2005), What color is your
        Jacobian?
    """
    jacobian_mode(mode, 1, 1, f"{_NAME}: mode")
    given = None if pattern is None else pattern_entries(pattern, _NAME)
    return _jacobian_function(fn, _colours_of(_found if given is None else _given(given)), mode)


class SparseJacobianFunction(Protocol):
    """Function that computes a sparse Jacobian, with the plan of its elimination."""

    plan: Callable[..., Elimination]
    """`plan` with these arguments is the elimination that `least_squares` uses."""
    composed: Callable[[Callable[[Any], Any]], SparseJacobianFunction]
    """`composed(inner)` is the sparse Jacobian of `fn(inner(x), ...)`."""

    def __call__(self, params: Any, *args: Any, **kwargs: Any) -> SparseJacobian:
        """The Jacobian."""
        ...


Inner = Callable[[Any], Any]
Pattern = Callable[[VectorFunction, Inner | None], tuple[np.ndarray, np.ndarray]]
Coloured = Callable[[VectorFunction, Inner | None, str], Colouring]


def _jacobian_function(
    fn: Callable[..., Any], coloured: Coloured, mode: str, inner: Inner | None = None
) -> SparseJacobianFunction:
    def at(params: Any, args: Any, kwargs: Any) -> tuple[VectorFunction, Any]:
        def function(p: Any) -> Any:
            return fn(p if inner is None else inner(p), *args, **kwargs)

        flat = vector_function(function, params, _NAME)
        return flat, lambda mode: coloured(flat, inner, mode)

    def jacobian_fn(params: Any, *args: Any, **kwargs: Any) -> SparseJacobian:
        return compressed(*at(params, args, kwargs), mode)

    def composed(inner: Inner) -> SparseJacobianFunction:
        return _jacobian_function(fn, coloured, mode, inner)

    def plan(params: Any, *args: Any, **kwargs: Any) -> Elimination:
        if inner is None and any(map(is_on, jax.tree.leaves(params, is_leaf=is_on))):
            moved = composed(functools.partial(along_tangents, params))
            return moved.plan(in_tangents(params), *args, **kwargs)
        found = sparsity_of(best_colouring(*at(params, args, kwargs), mode))
        return dataclasses.replace(elimination(*found), instead=_instead(*found))

    planned = cast(SparseJacobianFunction, jacobian_fn)
    planned.plan, planned.composed = plan, composed
    return planned


def _instead(sparsity: Sparsity, by_rows: bool) -> str:
    """Name the linear solver of `least_squares` if it isn't the elimination, else return ''."""
    m, n = sparsity.shape[::-1] if by_rows else sparsity.shape
    if min(m, n) <= LARGEST_DENSE:
        return f"factorization of a dense matrix, since there are at most {LARGEST_DENSE} of one"
    if m < n:
        return "conjugate gradients, since there are fewer residuals than unknowns"
    band = band_of(sparsity, by_rows)
    return "" if band is None else str(band)


def _leaves(flat: VectorFunction) -> Shapes:
    return tuple(jnp.shape(leaf) for leaf in jax.tree.leaves(flat.params))


@functools.lru_cache(maxsize=8)
def _coloured(m: int, n: int, rows: bytes, cols: bytes, mode: str, leaves: Shapes) -> Colouring:
    """Coloring of a pattern: one object for equal patterns, to reuse compiled programs."""
    # The cache needs hashable keys, so the pattern is passed as bytes.
    entries = np.frombuffer(rows, np.int32), np.frombuffer(cols, np.int32)
    return colouring(*entries, (m, n), mode, leaves)


def _colours_of(pattern: Pattern) -> Coloured:
    """Find the pattern in every trace; colorings of known patterns are cached."""

    def found(flat: VectorFunction, inner: Inner | None, mode: str) -> Colouring:
        rows, cols = (part.astype(np.int32).tobytes() for part in pattern(flat, inner))
        return _coloured(flat.m, flat.x.size, rows, cols, mode, _leaves(flat))

    return found


def _found(flat: VectorFunction, inner: Inner | None) -> tuple[np.ndarray, np.ndarray]:
    del inner
    return found_pattern(flat)


def _given(entries: tuple[np.ndarray, np.ndarray, Any]) -> Pattern:
    """Return the user's pattern, times the pattern of an inner function."""
    rows, cols, shape = entries

    def given(flat: VectorFunction, inner: Inner | None) -> tuple[np.ndarray, np.ndarray]:
        if inner is None:
            check_fit(rows, cols, shape, (flat.m, flat.x.size), _NAME)
            return rows, cols
        first = vector_function(lambda p: held_as_zeros(inner(p)), flat.params, _NAME)
        check_fit(rows, cols, shape, (flat.m, first.m), _NAME)
        return pattern_product((rows, cols), found_pattern(first))

    return given


def pattern_entries(
    pattern: Any, name: str, shape: str = "[m, n]"
) -> tuple[np.ndarray, np.ndarray, tuple[int, int] | None]:
    """Rows and columns of the entries, and the shape if the pattern has one."""
    if hasattr(pattern, "tocoo"):
        coo = pattern.tocoo()
        m, n = coo.shape
        return np.asarray(coo.row), np.asarray(coo.col), (m, n)
    if isinstance(pattern, tuple) and len(pattern) == 2:
        rows, cols = (np.asarray(part) for part in pattern)
        whole = all(np.issubdtype(part.dtype, np.integer) for part in (rows, cols))
        if whole and rows.ndim == 1 and rows.shape == cols.shape:
            return rows, cols, None
    elif getattr(pattern, "dtype", None) == np.bool_ and np.ndim(pattern) == 2:
        full = np.asarray(pattern)
        rows, cols = np.nonzero(full)
        return rows, cols, (full.shape[0], full.shape[1])
    raise TypeError(
        f"{name}: pattern is {type(pattern).__name__}, expected a boolean array of shape {shape}, "
        "a pair (rows, cols) of int arrays of one length, or a SciPy sparse matrix."
    )


def check_fit(
    rows: np.ndarray,
    cols: np.ndarray,
    given: tuple[int, int] | None,
    shape: tuple[int, int],
    name: str,
) -> None:
    """Raise an error if the shapes of the pattern and the function's Jacobian differ."""
    if given is not None and given != shape:
        raise ValueError(
            f"{name}: the pattern has shape {given}, but the function has {shape[0]} outputs of "
            f"{shape[1]} params."
        )
    for part, size, what in ((rows, shape[0], "outputs"), (cols, shape[1], "params")):
        if part.size and (part.min() < 0 or part.max() >= size):
            raise ValueError(
                f"{name}: the pattern has entries from {part.min()} to {part.max()}, but the "
                f"function has {size} {what}."
            )
