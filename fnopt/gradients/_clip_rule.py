"""Clipping rules: groups of leaves that share a norm, and the scale factor of a gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import leaf_text, leaves_with_names, matches, names_text, type_text
from fnopt.gradients._loss import check_clip_norm


class LeafGroups(NamedTuple):
    """Groups of leaves that share a norm, and the container of the result."""

    of_leaf: tuple[int, ...]  # the group index of every leaf
    count: int
    tree: Any  # the structure of the result

    def result(self, norms: list[jax.Array]) -> Any:
        """Return the norms of the groups in the container; omit leaves without a group."""
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
    keys = sorted(given)  # the order in which JAX flattens a dict
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


RULES = ("clip", "automatic")

# Bu et al. (2022), arXiv:2206.07136: the default of the stability constant of automatic clipping.
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
    def several(self) -> bool:
        """Whether the limits are a tree instead of a single number."""
        return not jax.tree_util.treedef_is_leaf(self.tree)


def check_limits(clip_norm: Any, name: str) -> None:
    """Check that limits are one positive number, or a tree of positive numbers."""
    pairs = leaves_with_names(clip_norm)[0]
    if jax.tree_util.all_leaves([clip_norm]) or not pairs:
        check_clip_norm(clip_norm, name)
        return
    for path, limit in pairs:
        check_clip_norm(limit, f"{name}: {leaf_text(path)}")


def blocks_of(params: Any, clip_norm: Any, name: str) -> Blocks:
    """Return the blocks of parameters: one for each subtree with a limit, or one for all.

    Args:
        params: The differentiated argument (a tuple for several).
        clip_norm: A number, or a tree of numbers that is a prefix of the params.
        name: The public function, for messages.
    """
    # A limit for a subtree is one for all its leaves, so the tree of limits is a prefix of the
    # params.
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
    """Return the scale factor of a gradient with a given norm."""
    limit = jnp.asarray(clip_norm).astype(norms.dtype)
    if rule == "automatic":
        return limit / (norms + jnp.asarray(_GAMMA, norms.dtype))
    over = norms > limit
    one = jnp.ones((), norms.dtype)
    # The inner select keeps a division by zero out of the derivative.
    return jnp.where(over, limit / jnp.where(over, norms, one), one)


def check_where(where: Any, size: int, name: str) -> jax.Array | None:
    """Check that `where` is a bool for every example, or `None`."""
    if where is None:
        return None
    if getattr(where, "shape", None) != (size,) or where.dtype != jnp.bool_:
        raise ValueError(f"{name}: where is {type_text(where)}, expected bool[{size}].")
    return jnp.asarray(where)
