"""Residuals in units of their standard deviations (whitening)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from fnopt.errors import leaves_with_names, where
from fnopt.numerics import real_dtype
from fnopt.residuals._prefix import as_leaf, broadcast_prefix, first_bad, named
from fnopt.sharding import reshard_like

Whitener = Callable[[jax.Array], jax.Array]


class Whitening(NamedTuple):
    """Linear map of the residuals, applied to each leaf."""

    maps: tuple[Whitener, ...]  # empty if the residuals are unweighted
    weights: Any = None  # arrays with the shapes of the residuals, in the same tree
    by_rows: bool = True  # whether every residual is multiplied by a number of its own

    def __call__(self, r: Any) -> Any:
        """Divide the residuals by their standard deviations."""
        if not self.maps:
            return r
        leaves, treedef = jax.tree.flatten(r)
        return treedef.unflatten([f(leaf) for f, leaf in zip(self.maps, leaves, strict=True)])


def whitened(residuals: Any, sigma: Any = None, weights: Any = None) -> Whitening:
    r"""Make the function that scales residuals to unit variance.

    .. math:: r_i / \sigma_i, \qquad \sqrt{w_i}\, r_i, \qquad\text{or}\quad L^{-1} r
        \text{ for a covariance matrix } \Sigma = L L^T

    Args:
        residuals: The residuals, or their shapes and dtypes.
        sigma: Standard deviations: a number, or a tree of arrays that broadcast to the
            residuals. The tree has the structure of the residuals or is a prefix of it. An array of
            shape `[m]` may have a covariance matrix `[m, m]`. None leaves residuals unchanged.
        weights: Factors of the squares, :math:`w = 1 / \sigma^2`, in the same form; 0 excludes a
            residual, even if it is NaN. Exclusive with `sigma`.

    Returns:
        A function from residuals to residuals.

    Raises:
        ValueError: If both are given, a shape doesn't match, a standard deviation isn't positive, a
            weight is negative, or a matrix isn't positive definite.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.residuals import whitened
        >>> r = {"a": jnp.ones(2), "b": jnp.ones(1)}
        >>> whitened(r, sigma={"a": 0.5, "b": None})(r)
        {'a': Array([2., 2.], dtype=float32), 'b': Array([1.], dtype=float32)}
    """
    if sigma is not None and weights is not None:
        raise ValueError(f"{where()}sigma and weights are both given, expected one of them.")
    if weights is not None:
        each = _by_leaf(_weight, weights, residuals, "weights")
        treedef = jax.tree.structure(residuals)
        return Whitening(tuple(map(_weigher, each)), treedef.unflatten(each))
    if sigma is None:
        return Whitening(())
    by_rows = not any(_by_leaf(_is_matrix, sigma, residuals, "sigma"))
    return Whitening(tuple(_by_leaf(_divider, sigma, residuals, "sigma")), None, by_rows)


def _by_leaf(fn: Callable[..., Any], given: Any, residuals: Any, what: str) -> list[Any]:
    """Apply `fn(value, leaf, path)` to every leaf of the residuals."""
    values, (pairs, _) = broadcast_prefix(given, residuals, what), leaves_with_names(residuals)
    return [fn(value, leaf, path) for value, (path, leaf) in zip(values, pairs, strict=True)]


def _weight(value: Any, leaf: Any, path: str) -> jax.Array:
    expected = lambda w: w >= 0, "numbers >= 0"
    return _array_like(leaf, 1.0 if value is None else value, path, "weights", *expected)


def _weigher(w: jax.Array) -> Whitener:
    def weigh(r: jax.Array) -> jax.Array:
        # A residual of weight 0 is excluded, even if it is NaN for a missing datum. Its root isn't
        # computed, so that derivatives with respect to the other weights are finite. The root of a
        # negative weight, which can't be checked under jit, is NaN, which the status reports.
        w_r = reshard_like(w, r)
        counts = w_r != 0
        root = jnp.sqrt(jnp.where(counts, w_r, jnp.ones_like(w_r)))
        return jnp.where(counts, root.astype(r.dtype) * r, jnp.zeros_like(r))

    return weigh


def _is_matrix(value: Any, leaf: Any, path: str) -> bool:
    del path
    square = (leaf.size, leaf.size)
    return value is not None and len(leaf.shape) == 1 and jnp.shape(value) == square


def _divider(value: Any, leaf: Any, path: str) -> Whitener:
    if value is None:
        return lambda r: r
    if _is_matrix(value, leaf, path):
        return _by_matrix(jnp.asarray(value, leaf.dtype), path)
    expected = lambda sigma: sigma > 0, "standard deviations > 0"
    sigma = _array_like(leaf, value, path, "sigma", *expected)
    return lambda r: r / reshard_like(jnp.where(sigma > 0, sigma, jnp.nan).astype(r.dtype), r)


def _array_like(
    leaf: Any, value: Any, path: str, what: str, good: Callable[[Any], Any], expected: str
) -> jax.Array:
    """Broadcast a value to its leaf; raise an error for concrete numbers that fail `good`."""
    value = as_leaf(value, leaf, path, what, real_dtype(leaf.dtype)).reshape(leaf.shape)
    bad = first_bad(good, value)
    if bad is not None:
        raise ValueError(
            f"{where()}{named(what, path)}{[*bad] if bad else ''} is {np.asarray(value)[bad]}, "
            f"expected {expected}."
        )
    return value


def _by_matrix(covariance: jax.Array, path: str) -> Whitener:
    L = jnp.linalg.cholesky(covariance)
    if first_bad(np.isfinite, L) is not None:
        raise ValueError(f"{where()}the matrix {named('sigma', path)} is not positive definite.")
    return lambda r: solve_triangular(L, r, lower=True)
