"""Initial guesses of many fits, and the layout of their params in rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.curves._curve_bounds import bounds_by_name, checked_bounds
from fnopt.curves._curve_start import argument_names, takes_names
from fnopt.curves.batched._data import NAME
from fnopt.errors import leaf_text, leaves_with_names
from fnopt.numerics import compute_dtype, is_inexact
from fnopt.residuals import Box, broadcast_prefix, check_bounds


class ParamLayout(NamedTuple):
    """Layout of the params of one fit in a vector."""

    passing: str  # see `call_model`
    names: tuple[str, ...]  # names of the numbers, if these are the arguments of f
    shapes: Any  # a tree of jax.ShapeDtypeStruct, or a list for numbers

    def rows(self, leaves: list[Any], fits: int, dtype: Any) -> jax.Array:
        """Concatenate leaves, each shared by all fits or with a leading axis, to `[fits, n]`."""
        shapes = jax.tree.leaves(self.shapes)
        wide = [
            jnp.broadcast_to(jnp.asarray(leaf, dtype), (fits, *s.shape)).reshape(fits, s.size)
            for leaf, s in zip(leaves, shapes, strict=True)
        ]
        return jnp.concatenate(wide, axis=1)

    def params(self, x: tuple[jax.Array, ...]) -> Any:
        """Convert `n` numbers to the params of one fit."""
        if self.passing == "numbers":
            return x
        leaves, treedef = jax.tree.flatten(self.shapes)
        numbers = iter(x)
        arrays = [
            jnp.stack([next(numbers) for _ in range(leaf.size)])
            .reshape(leaf.shape)
            .astype(leaf.dtype)
            for leaf in leaves
        ]
        return jax.tree.unflatten(treedef, arrays)

    def tree(self, x: jax.Array) -> Any:
        """Convert an array of shape `[fits, n]` to the params of all fits."""
        if self.passing == "numbers":
            return x
        leaves, treedef = jax.tree.flatten(self.shapes)
        ends = np.cumsum([leaf.size for leaf in leaves])
        parts = jnp.split(x, ends[:-1].tolist(), axis=1)
        pairs = zip(parts, leaves, strict=True)
        arrays = [p.reshape(len(x), *leaf.shape).astype(leaf.dtype) for p, leaf in pairs]
        return jax.tree.unflatten(treedef, arrays)


def checked_start(f: Any, p0: Any, x: Any, y: jax.Array) -> tuple[jax.Array, ParamLayout]:
    """Convert the initial guesses of all fits to rows in the compute dtype.

    Args:
        f: The model.
        p0: The initial guess, as the user passed it.
        x: The positions of the data.
        y: The data, of shape `[fits, ...]`.

    Returns:
        An array of shape `[fits, n]`, and the layout of its rows.
    """
    fits = y.shape[0]
    columns = _columns(p0, fits, "p0")
    passing, names, tree = "tree", (), p0
    if columns is not None:
        passing, names, tree = "numbers", argument_names(f, len(columns)), columns
    elif takes_names(f, p0):
        passing, names = "names", tuple(sorted(p0))
    pairs, treedef = leaves_with_names(tree)
    leaves = [_per_fit(path, leaf, fits, "p0") for path, leaf in pairs]
    if not leaves:
        raise ValueError(f"{NAME}: p0 holds no numbers, expected at least one param to fit.")
    dtype = _dtype(x, y, leaves)
    shapes = [
        jax.ShapeDtypeStruct(
            jnp.shape(leaf)[1:], leaf.dtype if _is_array(leaf) and is_inexact(leaf) else dtype
        )
        for leaf in leaves
    ]
    layout = ParamLayout(passing, names, jax.tree.unflatten(treedef, shapes))
    return layout.rows(leaves, fits, dtype), layout


def _columns(given: Any, fits: int, what: str) -> list[Any] | None:
    """Return the numbers of every fit, param by param; None for a tree."""
    if _is_array(given) and jnp.ndim(given) in (1, 2):
        given = jnp.asarray(given)
        if given.ndim == 2 and given.shape[0] != fits:
            raise ValueError(
                f"{NAME}: {what} has shape {given.shape}, expected [n] (shared by all "
                f"fits) or ({fits}, n) (one row per fit)."
            )
        return [given[..., i] for i in range(given.shape[-1])]
    if not isinstance(given, (list, tuple)) or hasattr(given, "_fields"):
        return None
    columns = [_per_fit(str(i), p, fits, what) for i, p in enumerate(given)]
    return None if any(jnp.ndim(p) > 1 for p in columns) else columns


def checked_box(bounds: Any, p0: Any, x0: jax.Array, layout: ParamLayout) -> Box | None:
    """Convert bounds to rows like the initial guesses; None if all are infinite.

    Args:
        bounds: `(lower, upper)`, as the user passed them: each a number, or like `p0`.
        p0: The initial guess, as the user passed it.
        x0: The initial guesses in rows, of shape `[fits, n]`.
        layout: The layout of a row.

    Returns:
        Bounds of shape `[fits, n]`.
    """
    pair = checked_bounds(bounds_by_name(bounds, p0) if layout.passing == "names" else bounds)
    if pair is None:
        return None
    box = Box(*(_side(side, p0, x0, layout) for side in pair))
    names = layout.names if len(layout.names) == x0.shape[1] else range(x0.shape[1])
    name = lambda i: f"param {names[i[1]]} of fit {i[0]}"  # noqa: E731
    check_bounds(*box, x0, name, f"{NAME}: ", may_be_equal=False)
    return box


def _side(side: Any, p0: Any, x0: jax.Array, layout: ParamLayout) -> jax.Array:
    fits, n = x0.shape
    if _is_number(side):
        return jnp.full(x0.shape, side, x0.dtype)
    if layout.passing != "numbers":
        return layout.rows(broadcast_prefix(side, p0, "bounds"), fits, x0.dtype)
    columns = _columns(side, fits, "bounds") or []
    if len(columns) != n:
        raise ValueError(
            f"{NAME}: bounds = {side!r} of {n} params, expected a number, or one for each param: "
            f"an array of shape [{n}] or [fits, {n}], or a sequence."
        )
    return layout.rows(columns, fits, x0.dtype)


def _is_number(side: Any) -> bool:
    return isinstance(side, (int, float)) or (_is_array(side) and jnp.ndim(side) == 0)


def _is_array(p: Any) -> bool:
    return isinstance(p, (jax.Array, np.ndarray))


def _per_fit(path: str, leaf: Any, fits: int, what: str) -> Any:
    leaf = jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf  # in JAX's dtypes
    if isinstance(leaf, (int, float)) or jnp.ndim(leaf) == 0 or leaf.shape[0] == fits:
        return leaf
    raise ValueError(
        f"{NAME}: {what}: {leaf_text(path)} has shape {jnp.shape(leaf)}, expected a "
        f"scalar (shared by all fits) or a leading axis of length {fits} (one entry per "
        "fit)."
    )


def _dtype(x: Any, y: jax.Array, leaves: list[Any]) -> Any:
    """Common dtype of all floating arrays; Python numbers follow the arrays."""
    dtypes = [a.dtype for a in [*jax.tree.leaves(x), *leaves] if _is_array(a) and is_inexact(a)]
    return compute_dtype(y.dtype, *dtypes)
