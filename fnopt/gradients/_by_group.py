"""Norms by leaf, or by groups of leaves that patterns name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from fnopt.core import leaves_with_names, matches, names_text


class LeafGroups(NamedTuple):
    """Groups of leaves that share a norm, and the container of the result."""

    of_leaf: tuple[int, ...]  # the number of the group of every leaf
    count: int
    tree: Any  # the structure of the result

    def result(self, norms: list[jax.Array]) -> Any:
        """The container of the norms of the groups; leaves of no group are left out."""
        return jax.tree.unflatten(self.tree, norms[: self.tree.num_leaves])


def groups_of(params: Any, groups: Any, name: str) -> LeafGroups:
    """The groups of the leaves of params.

    Args:
        params: The differentiated argument (a tuple for several).
        groups: `'leaf'`, or a mapping from names to a pattern or patterns.
        name: The public function, for messages.
    """
    paths = [path for path, _ in leaves_with_names(params)[0]]
    if isinstance(groups, str) and groups == "leaf":
        return LeafGroups(tuple(range(len(paths))), len(paths), jax.tree.structure(params))
    if not isinstance(groups, Mapping) or not groups:
        raise ValueError(
            f"{name}: groups = {groups!r}, expected None (all params together), 'leaf', or a dict "
            "from names to patterns, such as {'encoder': 'encoder', 'biases': '*/bias'}."
        )
    given = {key: (p,) if isinstance(p, str) else tuple(p) for key, p in groups.items()}
    lost = [q for patterns in given.values() for q in patterns if not _any_match(paths, q)]
    if lost:
        raise ValueError(
            f"{name}: groups: {names_text(lost)} match no leaf of {names_text(paths)}; see "
            "fnopt.leaf_paths(params)."
        )
    keys = sorted(given)  # the order in which JAX takes a dict apart
    fits = [next((k for k in given if _any_match([path], *given[k])), None) for path in paths]
    empty = [key for key in given if key not in fits]
    if empty:
        raise ValueError(
            f"{name}: groups: every leaf that {names_text(empty)} matches is in an earlier group, "
            "since the first match decides. Put narrow groups first, or call twice."
        )
    of_leaf = tuple(len(keys) if fit is None else keys.index(fit) for fit in fits)
    return LeafGroups(of_leaf, len(keys) + 1, jax.tree.structure(dict.fromkeys(keys, 0)))


def _any_match(paths: list[str], *patterns: str) -> bool:
    return any(matches(path, pattern) for path in paths for pattern in patterns)
