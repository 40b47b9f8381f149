"""Residuals in units of what they are known to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.scipy.linalg import solve_triangular

from fnopt.core import leaves_with_names, real_dtype, shown, where
from fnopt.residuals._prefix import as_leaf, spread

Whitener = Callable[[jax.Array], jax.Array]


def whitened(residuals: Any, sigma: Any = None, weights: Any = None) -> Callable[[Any], Any]:
    r"""The function that brings residuals to unit variance.

    .. math:: r_i / \sigma_i, \qquad \sqrt{w_i}\, r_i, \qquad\text{or}\quad L^{-1} r
        \text{ for a covariance matrix } \Sigma = L L^T

    Args:
        residuals: The residuals, or their shapes and dtypes.
        sigma: Standard deviations: one for all, or a tree like the residuals, or like their top,
            of arrays that broadcast to them. For an array of shape `[m]` also a covariance matrix
            of shape `[m, m]`. None leaves residuals as they are.
        weights: Factors of the squares, :math:`w = 1 / \sigma^2`, given alike; 0 leaves a
            residual out, NaN or not. Not together with `sigma`.

    Returns:
        A function from residuals to residuals.

    Raises:
        ValueError: If both are given, a shape doesn't fit, a standard deviation isn't positive, a
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
    if sigma is None and weights is None:
        return lambda r: r
    what = "weights" if sigma is None else "sigma"
    values = spread(weights if sigma is None else sigma, residuals, what)
    pairs, treedef = leaves_with_names(residuals)
    maps = [
        _whitener(value, leaf, path, what)
        for value, (path, leaf) in zip(values, pairs, strict=True)
    ]

    def apply(r: Any) -> Any:
        leaves = treedef.flatten_up_to(r)
        return jax.tree.unflatten(treedef, [f(leaf) for f, leaf in zip(maps, leaves, strict=True)])

    return apply


def _whitener(value: Any, leaf: Any, path: str, what: str) -> Whitener:
    if value is None:
        return lambda r: r
    shape = tuple(leaf.shape)
    if what == "sigma" and jnp.shape(value) == (leaf.size, leaf.size) and len(shape) == 1:
        return _by_matrix(jnp.asarray(value, leaf.dtype), path)
    flat = as_leaf(value, leaf, path, what, real_dtype(leaf.dtype)).reshape(shape)
    _check_sign(flat, path, what)
    if what == "sigma":
        return lambda r: r / flat.astype(r.dtype)
    return lambda r: _weighed(r, flat)


def _weighed(r: jax.Array, w: jax.Array) -> jax.Array:
    # A residual without weight is left out whatever it is: NaN, say, where there is no datum.
    return jnp.where(w > 0, jnp.sqrt(w).astype(r.dtype) * r, jnp.zeros_like(r))


def _check_sign(value: jax.Array, path: str, what: str) -> None:
    if isinstance(value, Tracer):
        return
    least = float(np.min(np.asarray(value), initial=np.inf))
    if what == "sigma" and not least > 0:
        raise ValueError(
            f"{where()}sigma for {shown(path)} holds {least}, expected standard deviations > 0."
        )
    if what == "weights" and not least >= 0:
        raise ValueError(f"{where()}weights for {shown(path)} hold {least}, expected numbers >= 0.")


def _by_matrix(covariance: jax.Array, path: str) -> Whitener:
    L = jnp.linalg.cholesky(covariance)
    if not isinstance(L, Tracer) and not np.all(np.isfinite(np.asarray(L))):
        raise ValueError(f"{where()}the matrix sigma for {shown(path)} is not positive definite.")
    return lambda r: solve_triangular(L, r, lower=True)
