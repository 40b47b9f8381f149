"""Name by which leaves of saved and fresh trees are matched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import is_array_like, leaves_with_names, slots, step_counts


class SlotPlace(NamedTuple):
    """The place of a leaf in a slot: the path of the state, the slot's field, the param's name."""

    state: str
    field: str
    param: str


class NamedLeaf(NamedTuple):
    """A leaf with its name; in slots the name is that of slot and param, else it is the path."""

    name: str
    path: str
    leaf: Any
    slot: SlotPlace | None


class NamedLeaves(NamedTuple):
    """The leaves of a tree by name.

    Attributes:
        leaves: The leaves in their order.
        treedef: The structure of the tree.
        counts: The names of its step counts.
    """

    leaves: list[NamedLeaf]
    treedef: Any
    counts: list[str]

    @property
    def names(self) -> set[str]:
        """The names of all leaves."""
        return {leaf.name for leaf in self.leaves}


def named_leaves(tree: Any, rename: Mapping[str, str] | None = None) -> NamedLeaves:
    """All leaves of a tree; slots and counts are looked for in its NamedTuples."""
    leaves, treedef = leaves_with_names(tree)
    # Objects that are in one place only, to be known again by their identity.
    shapes = [_shape(x) if is_array_like(x) else x for _, x in leaves]
    nodes = jax.tree.leaves(treedef.unflatten(shapes), is_leaf=is_named_tuple)
    states = tuple(node for node in nodes if is_named_tuple(node))
    ends: dict[int, tuple[str, str]] = {}
    for slot, part in slots(states).items():
        field = slot.rpartition("/")[2]
        ends |= {id(x): (field, param) for param, x in leaves_with_names(part)[0]}
    places = [_place(path, ends.get(id(x))) for x, (path, _) in zip(shapes, leaves, strict=True)]
    times = Counter(field for _, field in {place[:2] for place in places if place is not None})
    named = [
        _name_leaf(path, leaf, place, times, rename or {})
        for (path, leaf), place in zip(leaves, places, strict=True)
    ]
    steps = {*map(id, step_counts(states))}
    counts = [y.name for y, x in zip(named, shapes, strict=True) if id(x) in steps]
    return NamedLeaves(named, treedef, counts)


def is_named_tuple(node: Any) -> bool:
    """Whether a node of a tree is a NamedTuple, as states are."""
    return isinstance(node, tuple) and hasattr(node, "_fields")


def _place(path: str, end: tuple[str, str] | None) -> SlotPlace | None:
    if end is None:
        return None
    return SlotPlace(path.removesuffix(join_path(*end)).rstrip("/"), *end)


def _name_leaf(
    path: str,
    leaf: Any,
    place: SlotPlace | None,
    times: Mapping[str, int],
    rename: Mapping[str, str],
) -> NamedLeaf:
    path = rename_path(path, rename)
    if place is None:
        return NamedLeaf(path, path, leaf, None)
    slot = place.field if times[place.field] == 1 else join_path(place.state, place.field)
    name = rename_path(join_path(slot, place.param), rename)
    param = name.removeprefix(f"{slot}/") if name.startswith(f"{slot}/") else place.param
    state = rename_path(place.state, rename) if place.state else place.state
    return NamedLeaf(name, path, leaf, SlotPlace(state, place.field, param))


def join_path(*parts: str) -> str:
    """A path of parts, of which some may be empty."""
    return "/".join(filter(None, parts))


def rename_path(name: str, rename: Mapping[str, str]) -> str:
    """The name with its beginning replaced, the longest that fits."""
    parts = name.split("/")
    for i in range(len(parts), 0, -1):
        start = "/".join(parts[:i])
        if start in rename:
            return "/".join([*filter(None, [rename[start]]), *parts[i:]])
    return name


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
