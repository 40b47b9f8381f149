"""Names of the leaves of a pytree, spelled alike for every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import tree_util

# Boxes that flax puts around an array add a key that says nothing about the model.
_BOX_KEYS = frozenset({"value", "raw_value"})


def _key_name(key: Any) -> str:
    match key:
        case tree_util.DictKey(key=name) | tree_util.FlattenedIndexKey(key=name):
            return str(name)
        case tree_util.GetAttrKey(name=name):
            return str(name)
        case tree_util.SequenceKey(idx=index):
            return str(index)
    return str(key)


def _is_box(key: Any) -> bool:
    # A box is an attribute or an index-less node; a dict entry that is called "value" is a name.
    return isinstance(key, tree_util.GetAttrKey) and key.name in _BOX_KEYS


def path_name(path: tuple[Any, ...]) -> str:
    """One key path as text: `'dense/kernel'`, also for flax boxes, Equinox modules, dataclasses.

    Args:
        path: A key path, as `jax.tree_util.tree_flatten_with_path` gives it.

    Returns:
        The keys joined by `/`; `''` for a tree that is a single leaf.

    Example:
        >>> import jax, fnopt
        >>> path = jax.tree_util.tree_flatten_with_path({"dense": [1.0]})[0][0][0]
        >>> fnopt.core.path_name(path)
        'dense/0'
    """
    if path and _is_box(path[-1]):
        path = path[:-1]
    return "/".join(_key_name(key) for key in path)


def leaves_with_names(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[str, Any]], Any]:
    """The leaves of a tree with their normalised paths, and the tree's structure."""
    pairs, treedef = tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return [(path_name(path), leaf) for path, leaf in pairs], treedef


def leaf_paths(tree: Any) -> Any:
    """A tree of the same structure that holds the name of every leaf.

    Paths are spelled alike whatever the containers: plain dicts, flax `FrozenDict`, nnx `State`
    (the `.value` of a box is dropped), Equinox modules, NamedTuples and dataclasses.

    Args:
        tree: Any pytree.

    Returns:
        The same structure with strings such as `'dense/kernel'` as leaves.

    Example:
        >>> import fnopt
        >>> fnopt.leaf_paths({"dense": {"kernel": 1.0, "bias": 2.0}})
        {'dense': {'bias': 'dense/bias', 'kernel': 'dense/kernel'}}
    """
    return tree_util.tree_map_with_path(lambda path, _: path_name(path), tree)


def shown(path: str) -> str:
    """A leaf's name for a message."""
    return f"leaf {path!r}" if path else "the only leaf"


__all__ = ["leaf_paths", "leaves_with_names", "path_name", "shown"]
