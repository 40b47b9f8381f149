"""Where many fits start, and how their params are laid in rows of numbers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import compute_dtype, is_inexact, leaves_with_names, shown
from fnopt.curves.batched._data import NAME


class Layout(NamedTuple):
    """How the numbers of one fit make up its params."""

    unpacked: bool  # whether the params are arguments of f, or one tree
    shapes: Any = None  # of a tree: jax.ShapeDtypeStruct as leaves

    def params(self, x: tuple[jax.Array, ...]) -> Any:
        """One fit's params from its `n` numbers."""
        if self.unpacked:
            return x
        leaves, treedef = jax.tree.flatten(self.shapes)
        numbers = iter(x)
        arrays = [
            jnp.stack([next(numbers) for _ in range(leaf.size)]).reshape(leaf.shape)
            for leaf in leaves
        ]
        return jax.tree.unflatten(treedef, _cast(arrays, leaves))

    def tree(self, x: jax.Array) -> Any:
        """All fits' params from an array of shape `[fits, n]`."""
        if self.unpacked:
            return x
        leaves, treedef = jax.tree.flatten(self.shapes)
        ends = np.cumsum([leaf.size for leaf in leaves])
        parts = jnp.split(x, ends[:-1].tolist(), axis=1)
        arrays = [p.reshape(x.shape[0], *leaf.shape) for p, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(treedef, _cast(arrays, leaves))


def _cast(arrays: list[jax.Array], like: list[Any]) -> list[jax.Array]:
    return [a.astype(leaf.dtype) for a, leaf in zip(arrays, like, strict=True)]


def checked_start(p0: Any, x: Any, y: jax.Array) -> tuple[jax.Array, Layout]:
    """Lays the starting params of every fit in a row, in the dtype that is computed in.

    Args:
        p0: Where to start, as a user says it.
        x: Where the data were taken.
        y: The data, of shape `[fits, ...]`.

    Returns:
        An array of shape `[fits, n]`, and how a row of it makes up one fit's params.
    """
    fits = y.shape[0]
    if _is_array(p0) and jnp.ndim(p0) in (1, 2):
        columns = _columns_of(jnp.asarray(p0), fits)
    elif isinstance(p0, (list, tuple)) and not hasattr(p0, "_fields"):
        columns = [_per_fit(str(i), p, fits) for i, p in enumerate(p0)]
        if any(jnp.ndim(p) > 1 for p in columns):
            return _tree_start(p0, x, y)
    else:
        return _tree_start(p0, x, y)
    if not columns:
        raise ValueError(f"{NAME}: p0 holds no numbers, expected at least one param to fit.")
    dtype = _dtype(x, y, columns)
    x0 = jnp.stack([jnp.broadcast_to(jnp.asarray(c, dtype), fits) for c in columns], axis=1)
    return x0, Layout(unpacked=True)


def _columns_of(p0: jax.Array, fits: int) -> list[jax.Array]:
    if p0.ndim == 2 and p0.shape[0] != fits:
        raise ValueError(
            f"{NAME}: p0 has shape {p0.shape}, expected [n] for one start of all fits or "
            f"({fits}, n) for each its own."
        )
    return [p0[..., i] for i in range(p0.shape[-1])]


def _is_array(p: Any) -> bool:
    return isinstance(p, (jax.Array, np.ndarray))


def _per_fit(path: str, leaf: Any, fits: int) -> Any:
    leaf = jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf  # in JAX's dtypes
    if isinstance(leaf, (int, float)) or jnp.ndim(leaf) == 0 or leaf.shape[0] == fits:
        return leaf
    raise ValueError(
        f"{NAME}: p0: {shown(path)} has shape {jnp.shape(leaf)}, expected a scalar for one start "
        f"of all fits, or a leading axis of length {fits} for each its own."
    )


def _tree_start(p0: Any, x: Any, y: jax.Array) -> tuple[jax.Array, Layout]:
    fits = y.shape[0]
    pairs, treedef = leaves_with_names(p0)
    leaves = [_per_fit(path, leaf, fits) for path, leaf in pairs]
    if not leaves:
        raise ValueError(f"{NAME}: p0 holds no numbers, expected at least one param to fit.")
    dtype = _dtype(x, y, leaves)
    rows, shapes = [], []
    for leaf in leaves:
        kept = leaf.dtype if _is_array(leaf) and is_inexact(leaf) else dtype
        inner = jnp.shape(leaf)[1:]
        whole = jnp.broadcast_to(jnp.asarray(leaf, dtype), (fits, *inner))
        rows.append(whole.reshape(fits, math.prod(inner)))  # -1 can't be told for no fits
        shapes.append(jax.ShapeDtypeStruct(inner, kept))
    layout = Layout(unpacked=False, shapes=jax.tree.unflatten(treedef, shapes))
    return jnp.concatenate(rows, axis=1), layout


def _dtype(x: Any, y: jax.Array, leaves: list[Any]) -> Any:
    """The common dtype of all that is floating; Python numbers follow the arrays."""
    dtypes = [a.dtype for a in [*jax.tree.leaves(x), *leaves] if _is_array(a) and is_inexact(a)]
    return compute_dtype(y.dtype, *dtypes)
