"""Clipping rules, and the groups of leaves whose gradients share a norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import leaf_text, leaves_with_names, matches, names_text, type_text
from fnopt.gradients._loss import check_clip_norm


class LeafGroups(NamedTuple):
    """Groups of leaves that share a norm.

    Attributes:
        of_leaf: Group index of every leaf. Leaves without a group have the last index.
        count: Number of group indices.
        tree: Tree structure of the result.
    """

    of_leaf: tuple[int, ...]
    count: int
    tree: Any

    def result(self, norms: list[jax.Array]) -> Any:
        """Tree of the groups' norms, without the norm of the leaves that have no group."""
        return jax.tree.unflatten(self.tree, norms[: self.tree.num_leaves])


def groups_of(params: Any, groups: Any, name: str) -> LeafGroups:
    """Assign the leaves of the params to groups.

    Args:
        params: The differentiated argument (a tuple for several).
        groups: `'leaf'`, or a mapping from group names to one or several path patterns.
        name: The public function, for messages.
    """
    paths = [path for path, _ in leaves_with_names(params)[0]]
    if isinstance(groups, str) and groups == "leaf":
        return LeafGroups(tuple(range(len(paths))), len(paths), jax.tree.structure(params))
    if not isinstance(groups, Mapping) or not groups:
        raise ValueError(
            f"{name}: groups is {groups!r}, expected None (one norm of all params), 'leaf', or a "
            "dict from names to patterns, such as {'encoder': 'encoder', 'biases': '*/bias'}."
        )
    patterns = {key: (p,) if isinstance(p, str) else tuple(p) for key, p in groups.items()}
    unmatched = [q for ps in patterns.values() for q in ps if not _any_match(paths, q)]
    if unmatched:
        raise ValueError(
            f"{name}: the patterns {names_text(unmatched)} in groups match no leaf, expected "
            f"patterns that match a leaf of {names_text(paths)}. fnopt.leaf_paths(params) lists "
            "the paths."
        )
    keys = sorted(patterns)  # the order in which JAX flattens a dict
    leaf_keys = [
        next((k for k in patterns if _any_match([path], *patterns[k])), None) for path in paths
    ]
    empty = [key for key in patterns if key not in leaf_keys]
    if empty:
        raise ValueError(
            f"{name}: the groups {names_text(empty)} are empty, because earlier groups match all "
            "their leaves; expected at least one leaf per group. List narrow groups first."
        )
    of_leaf = tuple(len(keys) if key is None else keys.index(key) for key in leaf_keys)
    return LeafGroups(of_leaf, len(keys) + 1, jax.tree.structure(dict.fromkeys(keys, 0)))


def _any_match(paths: list[str], *patterns: str) -> bool:
    return any(matches(path, pattern) for path in paths for pattern in patterns)


RULES = ("clip", "automatic")

# Stability constant of automatic clipping: the default of Bu et al. (2022), arXiv:2206.07136.
_GAMMA = 0.01


class Blocks(NamedTuple):
    """Groups of parameters that share a norm and a scale.

    Attributes:
        of_leaf: Block index of every leaf.
        limits: Largest norm of every block.
        tree: Tree structure of the user's limits.
    """

    of_leaf: tuple[int, ...]
    limits: tuple[Any, ...]
    tree: Any

    @property
    def is_tree(self) -> bool:
        """Whether the limits are a tree instead of a single number."""
        return not jax.tree_util.treedef_is_leaf(self.tree)


def check_limits(clip_norm: Any, name: str) -> None:
    """Check that `clip_norm` is a positive number or a tree of positive numbers."""
    pairs = leaves_with_names(clip_norm)[0]
    if jax.tree_util.all_leaves([clip_norm]) or not pairs:
        check_clip_norm(clip_norm, name)
        return
    for path, limit in pairs:
        check_clip_norm(limit, f"{name}: {leaf_text(path)}")


def blocks_of(params: Any, clip_norm: Any, name: str) -> Blocks:
    """Assign the leaves of the params to blocks, one block per limit in `clip_norm`.

    Args:
        params: The differentiated argument (a tuple for several).
        clip_norm: A number, or a tree of numbers that is a prefix of the params.
        name: The public function, for messages.
    """
    # The leaves of a subtree with one limit share a norm, so the limits form a tree prefix.
    limits, tree = jax.tree.flatten(clip_norm)
    try:
        sizes = [len(jax.tree.leaves(sub)) for sub in tree.flatten_up_to(params)]
    except ValueError as error:
        raise ValueError(
            f"{name}: clip_norm is {tree}, expected one number, or a tree prefix of the "
            f"params {jax.tree.structure(params)}: {error}"
        ) from None
    of_leaf = tuple(i for i, size in enumerate(sizes) for _ in range(size))
    return Blocks(of_leaf, tuple(limits), tree)


def clip_factors(norms: jax.Array, clip_norm: Any, rule: str) -> jax.Array:
    """Scale factors of gradients with the given norms."""
    limit = jnp.asarray(clip_norm).astype(norms.dtype)
    if rule == "automatic":
        return limit / (norms + jnp.asarray(_GAMMA, norms.dtype))
    over = norms > limit
    one = jnp.ones((), norms.dtype)
    # Without the inner select, `0 * inf` of the branch not taken would make the derivative NaN.
    return jnp.where(over, limit / jnp.where(over, norms, one), one)


def check_where(where: Any, size: int, name: str) -> jax.Array | None:
    """Check that `where` is a bool for every example, or `None`."""
    if where is None:
        return None
    if getattr(where, "shape", None) != (size,) or where.dtype != jnp.bool_:
        raise ValueError(
            f"{name}: the argument `where` is {type_text(where)}, expected bool[{size}], one entry "
            "per example."
        )
    return jnp.asarray(where)
