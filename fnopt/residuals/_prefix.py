"""Prefix trees: a leaf of the prefix applies to a whole branch of a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.errors import leaf_text, leaves_with_names, names_text, where


def broadcast_prefix(
    prefix: Any, tree: Any, what: str, is_leaf: Callable[[Any], bool] | None = None
) -> list[Any]:
    """Broadcast a tree that may end at branches to the leaves of another tree.

    Args:
        prefix: A single value, or a tree that is a prefix of `tree`. `None` is a value. A list or
            tuple of numbers is an array if `tree` is an array.
        tree: The tree.
        what: Names of a value (`'loss'`) and of the tree, for messages.
        is_leaf: Whether a node of `prefix` is a value and not a branch; by default for numbers.

    Returns:
        A list in the order of the leaves of `tree`.

    Raises:
        ValueError: If `prefix` isn't a prefix of `tree`.

    Example:
        >>> from fnopt.residuals._prefix import broadcast_prefix
        >>> broadcast_prefix({"a": 1.0, "b": None}, {"a": [5, 6], "b": 7}, "sigma")
        [1.0, 1.0, None]
    """
    if is_leaf is None:
        prefix = _as_row(prefix, tree)

    def ends(node: Any) -> bool:
        return node is None or (is_leaf is not None and is_leaf(node))

    try:
        parts = jax.tree.map(
            lambda value, branch: [value] * len(jax.tree.leaves(branch)),
            prefix,
            tree,
            is_leaf=ends,
        )
    except ValueError:
        came, fits = (
            names_text([name or "(one array)" for name, _ in leaves_with_names(node, ends)[0]])
            for node in (prefix, tree)
        )
        raise ValueError(
            f"{where()}{what} have the leaves {came}, expected one value for all, or a "
            f"tree prefix of the tree with the leaves {fits}."
        ) from None
    # Leaves are matched in order, because the prefix may contain lists as values.
    lists = jax.tree.structure(prefix, is_leaf=ends).flatten_up_to(parts)
    return [value for part in lists for value in part]


def _as_row(prefix: Any, tree: Any) -> Any:
    """Convert a list or tuple of numbers to an array if the tree is a single array."""
    single = jax.tree_util.treedef_is_leaf(jax.tree.structure(tree))
    if not single or not isinstance(prefix, (list, tuple)):
        return prefix
    known = not any(isinstance(number, Tracer) for number in jax.tree.leaves(prefix))
    return np.asarray(prefix, float) if known else jnp.asarray(prefix)


def first_bad(good: Callable[..., Any], *values: Any) -> tuple[int, ...] | None:
    """Index of the first entry that fails `good`; None if all pass or an array is traced."""
    if any(isinstance(value, Tracer) for value in values):
        return None
    bad = np.argwhere(~good(*map(np.asarray, values)))
    return tuple(map(int, bad[0])) if len(bad) else None


def named(what: str, path: str) -> str:
    """Name of an option and its leaf for a message."""
    return f"{what} for {leaf_text(path)}" if path else what


def as_leaf(value: Any, leaf: Any, path: str, what: str, dtype: Any) -> jax.Array:
    """Broadcast a value to its leaf, as a flat array.

    Raises:
        ValueError: If the value doesn't broadcast to the shape of the leaf.
    """
    value = jnp.asarray(value, dtype)
    shape = jnp.shape(leaf)
    if not shape and value.size == 1:  # a list of one number is accepted for a scalar
        value = jnp.reshape(value, ())
    try:
        return jnp.ravel(jnp.broadcast_to(value, shape))
    except ValueError:
        raise ValueError(
            f"{where()}{named(what, path)} have shape {value.shape}, expected {shape} or one "
            "that broadcasts to it."
        ) from None
