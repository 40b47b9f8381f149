"""The names that leaves of saved and of fresh trees are known by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import is_array_like, leaves_with_names, slots, step_counts


class NamedLeaves(NamedTuple):
    """The leaves of a tree by name.

    Attributes:
        pairs: Name and leaf of each; in slots the name is that of slot and param.
        paths: Their places in the tree.
        treedef: The structure of the tree.
        slots: The names of its slots.
        counts: The names of its step counts.
    """

    pairs: list[tuple[str, Any]]
    paths: list[str]
    treedef: Any
    slots: list[str]
    counts: list[str]


def named_leaves(tree: Any) -> NamedLeaves:
    """All leaves of a tree; slots and counts are looked for in states."""
    leaves, treedef = leaves_with_names(tree)
    # Objects that are in one place only, to be known again by their identity.
    shapes = [_shape(x) if is_array_like(x) else x for _, x in leaves]
    state = treedef.unflatten(shapes) if isinstance(tree, (tuple, dict)) else ()
    found = slots(state) if isinstance(tree, tuple) else {}
    called: dict[int, str] = {}
    for slot, part in found.items():
        for path, x in leaves_with_names(part)[0]:
            called[id(x)] = f"{slot}/{path}".rstrip("/")
    names = [called.get(id(x)) or path for x, (path, _) in zip(shapes, leaves, strict=True)]
    steps = {*map(id, step_counts(state))}
    return NamedLeaves(
        pairs=[(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)],
        paths=[path for path, _ in leaves],
        treedef=treedef,
        slots=[*found],
        counts=[name for name, x in zip(names, shapes, strict=True) if id(x) in steps],
    )


def renamed(name: str, rename: Mapping[str, str]) -> str:
    """The name with its beginning replaced, the longest that fits."""
    parts = name.split("/")
    for i in range(len(parts), 0, -1):
        start = "/".join(parts[:i])
        if start in rename:
            return "/".join([*filter(None, [rename[start]]), *parts[i:]])
    return name


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
