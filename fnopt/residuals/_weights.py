"""Whitening of residuals by standard deviations, weights or a covariance matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from fnopt.errors import leaves_with_names, where
from fnopt.numerics import real_dtype
from fnopt.residuals._prefix import as_leaf, broadcast_prefix, check_real_numbers, first_bad, named
from fnopt.sharding import reshard_like

Whitener = Callable[[jax.Array], jax.Array]


class Whitening(NamedTuple):
    """Linear map that scales the residuals to unit variance, leaf by leaf."""

    maps: tuple[Whitener, ...]  # one per leaf; empty if the residuals are unweighted
    weights: Any = None  # tree like the residuals; None without weights
    by_rows: bool = True  # whether the map is diagonal, so no leaf has a covariance matrix
    excluded: Any = 0  # number of residuals of zero weight, where a complex one counts twice

    def __call__(self, r: Any) -> Any:
        """Divide the residuals by their standard deviations."""
        if not self.maps:
            return r
        leaves, treedef = jax.tree.flatten(r)
        return treedef.unflatten([f(leaf) for f, leaf in zip(self.maps, leaves, strict=True)])


def whitened(residuals: Any, sigma: Any = None, weights: Any = None) -> Whitening:
    r"""Make the linear map that scales residuals to unit variance.

    .. math:: r_i / \sigma_i, \qquad \sqrt{w_i}\, r_i, \qquad\text{or}\quad L^{-1} r
        \text{ for a covariance matrix } \Sigma = L L^T

    Args:
        residuals: The residuals, or their shapes and dtypes.
        sigma: Standard deviations, a number or a tree of arrays that broadcast to the residuals.
            The tree has the structure of the residuals or is a prefix of the residuals. For
            residuals of shape `[m]`, a covariance matrix `[m, m]` is also accepted. None leaves
            residuals unchanged. A residual with infinite `sigma` has weight 0.
        weights: Factors :math:`w = 1 / \sigma^2` of the squares, a number or a tree like `sigma`.
            A residual with weight 0 is excluded, even if it is NaN. Pass either `sigma` or
            `weights`.

    Returns:
        A function from residuals to residuals.

    Raises:
        ValueError: If `sigma` and `weights` are both passed, a shape doesn't match, a standard
            deviation isn't positive, a weight is negative, or a matrix isn't symmetric or isn't
            positive definite.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import whitened
        >>> r = {"a": jnp.ones(2), "b": jnp.ones(1)}
        >>> whitened(r, sigma={"a": 0.5, "b": None})(r)
        {'a': Array([2., 2.], dtype=float32), 'b': Array([1.], dtype=float32)}
    """
    if sigma is not None and weights is not None:
        raise ValueError(f"{where()}got both sigma and weights, expected one of them.")
    if weights is not None:
        arrays = _map_leaves(_weight, weights, residuals, "weights")
        excluded = _count([w == 0 for w in arrays], residuals)
        tree = jax.tree.structure(residuals).unflatten(arrays)
        return Whitening(tuple(map(_weigher, arrays)), tree, excluded=excluded)
    if sigma is None:
        return Whitening(())
    by_rows = not any(_map_leaves(_is_matrix, sigma, residuals, "sigma"))
    dividers = _map_leaves(_divider, sigma, residuals, "sigma")
    excluded = _count([mask for _, mask in dividers], residuals)
    return Whitening(tuple(divide for divide, _ in dividers), None, by_rows, excluded)


def _count(masks: Sequence[jax.Array | None], residuals: Any) -> Any:
    """Number of real numbers in the masked residuals; None masks nothing."""
    return sum(
        jnp.sum(mask, dtype=jnp.int32) * (1 + jnp.issubdtype(leaf.dtype, jnp.complexfloating))
        for mask, leaf in zip(masks, jax.tree.leaves(residuals), strict=True)
        if mask is not None
    )


def _map_leaves(fn: Callable[..., Any], option: Any, residuals: Any, name: str) -> list[Any]:
    """Apply `fn(value, leaf, path)` to the values of an option and the leaves of the residuals."""
    values, (pairs, _) = broadcast_prefix(option, residuals, name), leaves_with_names(residuals)
    return [fn(value, leaf, path) for value, (path, leaf) in zip(values, pairs, strict=True)]


def _weight(value: Any, leaf: Any, path: str) -> jax.Array:
    expected = lambda w: w >= 0, "a number >= 0"
    return _array_like(leaf, 1.0 if value is None else value, path, "weights", *expected)


def _weigher(w: jax.Array) -> Whitener:
    def weigh(r: jax.Array) -> jax.Array:
        # A residual of weight 0 may be NaN (a missing datum). The root of 0 has an infinite
        # derivative. A negative weight, which can't be checked under jit, makes the residual NaN,
        # and the status of the fit reports this.
        w_r = reshard_like(w, r)
        mask = w_r != 0
        root = jnp.sqrt(jnp.where(mask, w_r, jnp.ones_like(w_r)))
        return jnp.where(mask, root.astype(r.dtype) * r, jnp.zeros_like(r))

    return weigh


def _is_matrix(value: Any, leaf: Any, path: str) -> bool:
    del path
    square = (leaf.size, leaf.size)
    return value is not None and len(leaf.shape) == 1 and jnp.shape(value) == square


def _divider(value: Any, leaf: Any, path: str) -> tuple[Whitener, jax.Array | None]:
    """Return the map of a leaf, and the mask of its residuals of zero weight."""
    if value is None:
        return lambda r: r, None
    if _is_matrix(value, leaf, path):
        if not jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            check_real_numbers(value, f"{where()}the matrix {named('sigma', path)}")
        return _by_matrix(jnp.asarray(value, leaf.dtype), path), None
    expected = lambda sigma: sigma > 0, "a standard deviation > 0"
    sigma = _array_like(leaf, value, path, "sigma", *expected)
    excluded = jnp.isposinf(sigma)
    # A traced sigma can't be checked, so an invalid value makes the residual NaN.
    divisor = jnp.where(excluded, 1, jnp.where(sigma > 0, sigma, jnp.nan))

    def divide(r: jax.Array) -> jax.Array:
        used = jnp.where(reshard_like(excluded, r), jnp.zeros_like(r), r)
        return used / reshard_like(divisor.astype(r.dtype), r)

    return divide, excluded


def _array_like(
    leaf: Any, value: Any, path: str, what: str, good: Callable[[Any], Any], expected: str
) -> jax.Array:
    """Broadcast a value to its leaf, or raise an error if a concrete number fails `good`."""
    value = as_leaf(value, leaf, path, what, real_dtype(leaf.dtype)).reshape(leaf.shape)
    bad = first_bad(good, value)
    if bad is not None:
        raise ValueError(
            f"{where()}{named(what, path)}{[*bad] if bad else ''} is {np.asarray(value)[bad]}, "
            f"expected {expected}."
        )
    return value


def _is_symmetric(C: np.ndarray) -> np.ndarray:
    r"""Mask of the entries for which :math:`C_{ij} = \bar C_{ji}` up to rounding error.

    The rounding error of an inverse is :math:`\kappa \epsilon` times its entries (Higham, 2002,
    chapter 14). Condition numbers :math:`\kappa` up to :math:`\epsilon^{-1/2}` are accepted. By
    Cauchy-Schwarz, :math:`(C_{ii} C_{jj})^{1/2}` bounds the entries.
    """
    deviations = np.sqrt(np.abs(np.diag(C)))
    tolerance = float(np.finfo(C.dtype).eps) ** 0.5 * np.outer(deviations, deviations)
    return np.abs(C - C.conj().T) <= tolerance


def _by_matrix(covariance: jax.Array, path: str) -> Whitener:
    bad = first_bad(np.isfinite, covariance)
    if bad is not None:
        raise ValueError(
            f"{where()}the matrix {named('sigma', path)}{[*bad]} is "
            f"{np.asarray(covariance)[bad]}, expected finite entries. To ignore a datum, remove "
            "the datum and its row and column."
        )
    bad = first_bad(_is_symmetric, covariance)
    if bad is not None:
        raise ValueError(
            f"{where()}the matrix {named('sigma', path)} has the entries {covariance[bad]} at "
            f"{bad} and {covariance[bad[::-1]]} at {bad[::-1]}, expected a symmetric matrix. Fill "
            "both triangles."
        )
    L = jnp.linalg.cholesky(covariance)
    if first_bad(np.isfinite, L) is not None:
        raise ValueError(
            f"{where()}the matrix {named('sigma', path)} is not positive definite, expected a "
            "covariance matrix."
        )
    return lambda r: solve_triangular(L, r, lower=True)
