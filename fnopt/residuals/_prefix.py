"""Tree prefixes: each leaf of a prefix applies to a whole branch of a tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.errors import leaf_text, leaves_with_names, names_text, where
from fnopt.numerics import is_array_like


def broadcast_prefix(
    prefix: Any, tree: Any, what: str, is_leaf: Callable[[Any], bool] | None = None
) -> list[Any]:
    """Broadcast a tree prefix to the leaves of a tree.

    Args:
        prefix: A single value, or a tree that is a prefix of `tree`. `None` is a value. A list or
            tuple of numbers is converted to an array if `tree` is an array.
        tree: The tree.
        what: The name of the option, such as `'loss'`, for messages.
        is_leaf: Function that returns whether a node of `prefix` is a value instead of a branch.

    Returns:
        The value for every leaf of `tree`, as a list in the order of the leaves.

    Raises:
        ValueError: If `prefix` isn't a prefix of `tree`.

    Example:
        >>> from fnopt.residuals._prefix import broadcast_prefix
        >>> broadcast_prefix({"a": 1.0, "b": None}, {"a": [5, 6], "b": 7}, "sigma")
        [1.0, 1.0, None]
    """
    if is_leaf is None:
        prefix = _list_to_array(prefix, tree, what)

    def is_value(node: Any) -> bool:
        return node is None or (is_leaf is not None and is_leaf(node))

    try:
        parts = jax.tree.map(
            lambda value, branch: [value] * len(jax.tree.leaves(branch)),
            prefix,
            tree,
            is_leaf=is_value,
        )
    except ValueError:
        prefix_leaves, tree_leaves = (
            names_text([name or "(one array)" for name, _ in leaves_with_names(node, is_value)[0]])
            for node in (prefix, tree)
        )
        raise ValueError(
            f"{where()}the argument `{what}` has the leaves {prefix_leaves}, expected a single "
            f"value or a tree prefix of the tree with the leaves {tree_leaves}."
        ) from None
    # `jax.tree.leaves` of `parts` would also flatten values that are lists or None.
    lists = jax.tree.structure(prefix, is_leaf=is_value).flatten_up_to(parts)
    return [value for part in lists for value in part]


def _list_to_array(prefix: Any, tree: Any, what: str) -> Any:
    """Convert a list or tuple of numbers to an array if the tree is a single array."""
    single = jax.tree_util.treedef_is_leaf(jax.tree.structure(tree))
    if not single or not isinstance(prefix, (list, tuple)):
        return prefix
    numbers = jax.tree.leaves(prefix)
    for number in numbers:
        check_real_numbers(number, f"{where()}{what}")
    is_traced = any(isinstance(number, Tracer) for number in numbers)
    # A NumPy array stays concrete under jit, so that its values can be checked.
    return jnp.asarray(prefix) if is_traced else np.asarray(prefix, float)


def check_real_numbers(value: Any, what: str) -> None:
    """Raise an error unless a value is a real number or an array of real numbers."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if not is_array_like(value) or isinstance(value, complex) or kind in "cOSUmM":
        raise TypeError(f"{what} contains {value!r:.60}, expected real numbers.")


def first_bad(good: Callable[..., Any], *values: Any) -> tuple[int, ...] | None:
    """Index of the first entry where `good` is False, or None if all pass or an array is traced."""
    if any(isinstance(value, Tracer) for value in values):
        return None
    indices = np.argwhere(~good(*map(np.asarray, values)))
    return tuple(map(int, indices[0])) if len(indices) else None


def named(what: str, path: str) -> str:
    """Name of an option for the leaf at a path, in a message."""
    return f"{what} for {leaf_text(path)}" if path else what


def as_leaf(value: Any, leaf: Any, path: str, what: str, dtype: Any) -> jax.Array:
    """Broadcast a value to the shape of a leaf, and ravel the result.

    Raises:
        TypeError: If the value isn't real.
        ValueError: If the value doesn't broadcast to the shape of the leaf.
    """
    check_real_numbers(value, f"{where()}{named(what, path)}")
    value = jnp.asarray(value, dtype)
    shape = jnp.shape(leaf)
    if not shape and value.size == 1:  # a list of one number is accepted for a scalar
        value = jnp.reshape(value, ())
    try:
        return jnp.ravel(jnp.broadcast_to(value, shape))
    except ValueError:
        raise ValueError(
            f"{where()}{named(what, path)}: got shape {value.shape}, expected {shape} or a shape "
            "that broadcasts to it."
        ) from None
