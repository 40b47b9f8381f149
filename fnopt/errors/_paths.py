"""Framework-independent names of the leaves of a pytree, and glob patterns for the names."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import jax
from jax import tree_util

from fnopt.errors._text import names_text

_IsLeaf = Callable[[Any], bool]

# flax wraps arrays in boxes (nnx.Param, linen's Partitioned). Paths omit the field `.value` of a
# box, which doesn't identify a parameter. Boxes are recognized by their class, because a model may
# have a field called `value` too (query, key, value).
_BOX_CLASSES = frozenset({"Variable", "VariableState", "AxisMetadata"})


def _is_box(node: Any) -> bool:
    bases = type(node).__mro__
    return any(b.__name__ in _BOX_CLASSES and b.__module__.startswith("flax.") for b in bases)


def _key_name(key: Any) -> str:
    match key:
        case tree_util.DictKey(key=name) | tree_util.FlattenedIndexKey(key=name):
            return str(name)
        case tree_util.GetAttrKey(name=name):
            return str(name)
        case tree_util.SequenceKey(idx=index):
            return str(index)
    return str(key)


def path_name(path: tuple[Any, ...]) -> str:
    """Convert a key path to text: `'dense/kernel'`.

    Args:
        path: A key path of `jax.tree_util.tree_flatten_with_path`.

    Returns:
        The keys joined by `/`; `''` for a tree that is a single leaf.

    Example:
        >>> path = jax.tree_util.tree_flatten_with_path({"dense": [1.0]})[0][0][0]
        >>> fnopt.errors.path_name(path)
        'dense/0'
    """
    return "/".join(map(_key_name, path))


def leaves_with_names(tree: Any, is_leaf: _IsLeaf | None = None) -> tuple[list[Any], Any]:
    """Flatten a tree to leaves with normalized paths, and a treedef.

    Args:
        tree: Any pytree.
        is_leaf: As in `jax.tree.flatten`.

    Returns:
        A list of `(name, leaf)` in the order of `jax.tree.leaves`, and the treedef.

    Example:
        >>> fnopt.errors.leaves_with_names({"b": [2.0], "a": 1.0})[0]
        [('a', 1.0), ('b/0', 2.0)]
    """
    outer, _ = tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: _is_box(node) or (is_leaf is not None and is_leaf(node))
    )
    pairs = [
        (path_name(path), leaf)
        for path, node in outer
        for leaf in (jax.tree.leaves(node, is_leaf=is_leaf) if _is_box(node) else (node,))
    ]
    return pairs, jax.tree.structure(tree, is_leaf=is_leaf)


def leaf_paths(tree: Any) -> Any:
    """Replace every leaf of a tree by its name.

    A path doesn't depend on the type of the containers: dicts, flax's `FrozenDict` and nnx `State`,
    Equinox modules, NamedTuples or dataclasses. The field `.value` of a flax box isn't part of it.

    Args:
        tree: Any pytree.

    Returns:
        The same structure with strings such as `'dense/kernel'` as leaves.

    Example:
        >>> fnopt.leaf_paths({"dense": {"kernel": 1.0, "bias": 2.0}})
        {'dense': {'bias': 'dense/bias', 'kernel': 'dense/kernel'}}
    """
    pairs, treedef = leaves_with_names(tree)
    return jax.tree.unflatten(treedef, [name for name, _ in pairs])


def unboxed(tree: Any) -> Any:
    """Replace the boxes of flax, such as the variables of an `nnx.Optimizer`, by their arrays."""

    def content(node: Any) -> Any:
        if not _is_box(node):
            return node
        leaves = jax.tree.leaves(node)
        return leaves[0] if leaves else None  # a frozen param has no slot

    return jax.tree.map(content, tree, is_leaf=_is_box)


def leaf_text(path: str) -> str:
    """Name of a leaf in an error message."""
    return f"leaf {path!r}" if path else "the only leaf"


def differences(names: list[str], other_names: list[str], what: str, other_what: str) -> str:
    """Describe the differences between the leaf names of two trees; `''` for equal names."""
    for paths, tree_name in ((names, what), (other_names, other_what)):
        if paths == [""]:
            return f"{tree_name} are a single array"
    extra = [p for p in names if p not in set(other_names)]
    missing = [p for p in other_names if p not in set(names)]
    texts = [f"{what} lack {names_text(missing)}"] if missing else []
    texts += [f"{what} have {names_text(extra)}, which {other_what} lack"] if extra else []
    return "; ".join(texts)


def matches(path: str, pattern: str) -> bool:
    """Whether a glob pattern matches the path of a leaf or of one of its parents.

    `*` matches any text, including slashes, `?` matches one character, `[ab]` matches one of a set.
    A leading `*/` also matches the empty text, so `'*/bias'` also matches `'bias'` at the top
    level. A pattern that matches a branch selects all leaves of the branch, and `''` selects the
    whole tree.

    Args:
        path: A leaf's path, as in `leaf_paths`.
        pattern: A path, the path of a branch, or a glob of either; case-sensitive.

    Returns:
        True if the leaf is selected.

    Example:
        >>> path = "encoder/dense/bias"
        >>> [fnopt.errors.matches(path, p) for p in ("encoder", "*/bias", "*/dense", "bias", "enc")]
        [True, True, True, False, False]
    """
    branch = f"{pattern.rstrip('/')}/*"
    return any(fnmatchcase(p, q) for p in (path, f"/{path}") for q in (pattern, branch))
