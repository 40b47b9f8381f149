"""Initial guesses and bounds of a batch of fits as arrays `[fits, n]`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.curves._curve_bounds import bounds_by_name, checked_bounds
from fnopt.curves._curve_start import argument_names, takes_names
from fnopt.curves.batched._data import NAME
from fnopt.errors import count_text, leaf_text, leaves_with_names
from fnopt.numerics import compute_dtype, is_inexact
from fnopt.residuals import Box, as_vector, broadcast_prefix, check_bounds


class ParamLayout(NamedTuple):
    """Layout of the params of one fit in a vector."""

    passing: str  # see `call_model`
    names: tuple[str, ...]  # parameter names of f; empty for a tree
    shapes: Any  # a tree of jax.ShapeDtypeStruct; a list if the params are numbers

    def rows(self, leaves: list[Any], fits: int, dtype: Any) -> jax.Array:
        """Broadcast leaves to all fits, and concatenate them to an array `[fits, n]`."""
        shapes = jax.tree.leaves(self.shapes)
        columns = [
            jnp.broadcast_to(jnp.asarray(leaf, dtype), (fits, *s.shape)).reshape(fits, s.size)
            for leaf, s in zip(leaves, shapes, strict=True)
        ]
        return jnp.concatenate(columns, axis=1)

    def params(self, x: tuple[jax.Array, ...]) -> Any:
        """Convert a tuple of `n` scalars to the params of one fit."""
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
    """Convert the initial guesses of all fits to an array `[fits, n]` of the compute dtype.

    Args:
        f: The model.
        p0: The initial guess, as the user passed it.
        x: The positions of the data.
        y: The data, of shape `[fits, ...]`.

    Returns:
        The array, and the layout of the params in its rows.
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
        raise ValueError(f"{NAME}: p0 contains no numbers, expected at least one param to fit.")
    dtype = _dtype(x, y, leaves)
    shapes = [
        jax.ShapeDtypeStruct(
            jnp.shape(leaf)[1:], leaf.dtype if _is_array(leaf) and is_inexact(leaf) else dtype
        )
        for leaf in leaves
    ]
    layout = ParamLayout(passing, names, jax.tree.unflatten(treedef, shapes))
    return layout.rows(leaves, fits, dtype), layout


def _columns(value: Any, fits: int, name: str) -> list[Any] | None:
    """Split an array or a sequence into one entry per param, or return None for a tree."""
    if _is_array(value) and jnp.ndim(value) in (1, 2):
        value = jnp.asarray(value)
        if value.ndim == 2 and value.shape[0] != fits:
            raise ValueError(
                f"{NAME}: {name} has shape {value.shape}, expected [n] (shared by all "
                f"fits) or ({fits}, n) (one row per fit)."
            )
        return [value[..., i] for i in range(value.shape[-1])]
    if not isinstance(value, (list, tuple)) or hasattr(value, "_fields"):
        return None
    columns = [_per_fit(str(i), as_vector(p), fits, name) for i, p in enumerate(value)]
    return None if any(jnp.ndim(p) > 1 for p in columns) else columns


def checked_box(bounds: Any, p0: Any, x0: jax.Array, layout: ParamLayout) -> Box | None:
    """Convert and check the bounds of all fits.

    Args:
        bounds: The bounds, as the user passed them.
        p0: The initial guess, as the user passed it.
        x0: The initial guesses of all fits, of shape `[fits, n]`.
        layout: The layout of the params in a row of `x0`.

    Returns:
        Bounds of shape `[fits, n]`; None if all bounds are infinite.
    """
    pair = checked_bounds(bounds_by_name(bounds, p0) if layout.passing == "names" else bounds)
    if pair is None:
        return None
    box = Box(*(_side(side, p0, x0, layout) for side in pair))
    names = layout.names if len(layout.names) == x0.shape[1] else range(x0.shape[1])
    name = lambda i: f"param {names[i[1]]} of fit {i[0]}"  # noqa: E731
    check_bounds(*box, x0, name, f"{NAME}: ")
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
            f"{NAME}: bounds = {side!r} for {count_text(n, 'param')}, expected a number, a "
            f"sequence of {count_text(n, 'entry', 'entries')}, or an array of shape [{n}] or "
            f"[fits, {n}]."
        )
    return layout.rows(columns, fits, x0.dtype)


def _is_number(side: Any) -> bool:
    return isinstance(side, (int, float)) or (_is_array(side) and jnp.ndim(side) == 0)


def _is_array(p: Any) -> bool:
    return isinstance(p, (jax.Array, np.ndarray))


def _per_fit(path: str, leaf: Any, fits: int, what: str) -> Any:
    """Check that a leaf is a scalar or has a leading axis of fits."""
    # Without x64, JAX converts a float64 array of NumPy to float32.
    leaf = jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf
    if isinstance(leaf, (int, float)) or jnp.ndim(leaf) == 0 or leaf.shape[0] == fits:
        return leaf
    raise ValueError(
        f"{NAME}: {what}: {leaf_text(path)} has shape {jnp.shape(leaf)}, expected a "
        f"scalar (shared by all fits) or a leading axis of length {fits} (one entry per "
        "fit)."
    )


def _dtype(x: Any, y: jax.Array, leaves: list[Any]) -> Any:
    """Common dtype of all floating arrays (not Python numbers), at least float32."""
    dtypes = [a.dtype for a in [*jax.tree.leaves(x), *leaves] if _is_array(a) and is_inexact(a)]
    return compute_dtype(y.dtype, *dtypes)
