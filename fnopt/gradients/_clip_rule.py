"""Clipping rules: from the norm of an example's gradient to its scale factor."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import leaf_text, leaves_with_names, type_text
from fnopt.gradients._checks import check_clip_norm

RULES = ("clip", "automatic")

# The stability constant of the paper that proposes automatic clipping; not sensitive, it says.
_GAMMA = 0.01


class Blocks(NamedTuple):
    """Groups of parameters that share a norm and a scale.

    Attributes:
        of_leaf: The number of the block of every leaf.
        limits: The largest norm of every block.
        tree: The structure of the limits as they were given.
    """

    of_leaf: tuple[int, ...]
    limits: tuple[Any, ...]
    tree: Any

    @property
    def several(self) -> bool:
        """Whether limits were given as a tree."""
        return not jax.tree_util.treedef_is_leaf(self.tree)


def check_limits(clip_norm: Any, name: str) -> None:
    """Refuses what isn't one positive number, or a tree of them."""
    pairs = leaves_with_names(clip_norm)[0]
    if jax.tree_util.all_leaves([clip_norm]) or not pairs:
        check_clip_norm(clip_norm, name)
        return
    for path, limit in pairs:
        check_clip_norm(limit, f"{name}: {leaf_text(path)}")


def blocks_of(params: Any, clip_norm: Any, name: str) -> Blocks:
    """Blocks of parameters that share a limit: all, or one for each subtree with a limit.

    Args:
        params: The differentiated argument (a tuple for several).
        clip_norm: A number, or a tree of numbers that the params continue.
        name: The public function, for messages.
    """
    limits, tree = jax.tree.flatten(clip_norm)
    try:
        sizes = [len(jax.tree.leaves(sub)) for sub in tree.flatten_up_to(params)]
    except ValueError as error:
        raise ValueError(
            f"{name}: clip_norm is {tree}, expected one number, or a tree that the params "
            f"{jax.tree.structure(params)} continue: {error}"
        ) from None
    of_leaf = tuple(i for i, size in enumerate(sizes) for _ in range(size))
    return Blocks(of_leaf, tuple(limits), tree)


def clip_factors(norms: jax.Array, clip_norm: Any, rule: str) -> jax.Array:
    """The scale factor of a gradient of this norm."""
    limit = jnp.asarray(clip_norm).astype(norms.dtype)
    if rule == "automatic":
        return limit / (norms + jnp.asarray(_GAMMA, norms.dtype))
    over = norms > limit
    one = jnp.ones((), norms.dtype)
    # The inner select keeps a division by zero out of the derivative.
    return jnp.where(over, limit / jnp.where(over, norms, one), one)


def check_where(where: Any, size: int, name: str) -> jax.Array | None:
    """A bool for every example, or `None`."""
    if where is None:
        return None
    if getattr(where, "shape", None) != (size,) or where.dtype != jnp.bool_:
        raise ValueError(f"{name}: where is {type_text(where)}, expected bool[{size}].")
    return jnp.asarray(where)
