"""Matching of saved leaves to leaves of a fresh tree, including trees to flat vectors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import slots, step_counts
from fnopt.errors import leaves_with_names
from fnopt.numerics import is_array_like


class SlotPlace(NamedTuple):
    """The place of a leaf in a slot: the path of the state, the slot's field, the param's name."""

    state: str
    field: str
    param: str


class NamedLeaf(NamedTuple):
    """A leaf with its name: slot and param for leaves of slots, else the path."""

    name: str
    path: str
    leaf: Any
    slot: SlotPlace | None


class NamedLeaves(NamedTuple):
    """The leaves of a tree by name.

    Attributes:
        leaves: The leaves, in tree order.
        treedef: The structure of the tree.
        counts: The names of the tree's step counts.
    """

    leaves: list[NamedLeaf]
    treedef: Any
    counts: list[str]

    @property
    def names(self) -> set[str]:
        """The names of all leaves."""
        return {leaf.name for leaf in self.leaves}


def named_leaves(tree: Any, rename: Mapping[str, str] | None = None) -> NamedLeaves:
    """Name all leaves of a tree; its NamedTuples identify slots and counts."""
    leaves, treedef = leaves_with_names(tree)
    # Every leaf becomes a unique object, which its identity locates in the NamedTuples below.
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
    """Join the nonempty parts of a path."""
    return "/".join(filter(None, parts))


def rename_path(name: str, rename: Mapping[str, str]) -> str:
    """Replace the longest known prefix of a name."""
    parts = name.split("/")
    for i in range(len(parts), 0, -1):
        start = "/".join(parts[:i])
        if start in rename:
            return "/".join([*filter(None, [rename[start]]), *parts[i:]])
    return name


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def repack(fresh: NamedLeaves, saved: NamedLeaves, matching: Matching) -> dict[str, Any]:
    """Convert saved slots between trees and flat vectors, as the fresh slots need.

    Returns:
        The arrays, keyed by the names of fresh leaves; `matching` contains their sources.
    """
    slots: dict[tuple[str, str], list[NamedLeaf]] = defaultdict(list)
    for leaf in fresh.leaves:
        if leaf.slot is not None and is_array_like(leaf.leaf):
            slots[leaf.slot[:2]].append(leaf)
    packed: dict[str, Any] = {}
    for (_, field), fresh_slot in slots.items():
        if any(leaf.name in matching.found for leaf in fresh_slot):
            continue
        free = [x for x in saved.leaves if x.path not in matching.used]
        fitting = [
            saved_slot for saved_slot in _slots_of(field, free) if _fits(fresh_slot, saved_slot)
        ]
        if len(fitting) != 1:
            continue
        (saved_slot,) = fitting
        arrays = [jnp.asarray(leaf.leaf) for leaf in saved_slot]
        if len(saved_slot) == 1:
            ends = np.cumsum([jnp.size(x.leaf) for x in fresh_slot])[:-1]
            parts = zip(fresh_slot, jnp.split(arrays[0], ends.tolist()), strict=True)
            packed |= {x.name: part.reshape(jnp.shape(x.leaf)) for x, part in parts}
        else:
            dtype = jnp.result_type(fresh_slot[0].leaf)
            vector = jnp.concatenate([jnp.ravel(x).astype(dtype) for x in arrays])
            packed[fresh_slot[0].name] = vector
        for leaf in fresh_slot:
            matching.add(leaf.name, saved_slot[0])
        matching.used.update(leaf.path for leaf in saved_slot)
    return packed


def _fits(fresh_slot: list[NamedLeaf], saved_slot: list[NamedLeaf]) -> bool:
    """Whether one of two slots is a vector of the other."""
    mine, theirs = ([leaf.leaf for leaf in leaves] for leaves in (fresh_slot, saved_slot))
    if len(saved_slot) == 1:
        return _is_vector_of(theirs[0], mine)
    castable = all(
        jnp.can_cast(jnp.result_type(x), jnp.result_type(mine[0]), casting="same_kind")
        for x in theirs
    )
    return len(fresh_slot) == 1 and _is_vector_of(mine[0], theirs) and castable


def _slots_of(field: str, saved: list[NamedLeaf]) -> list[list[NamedLeaf]]:
    """The saved slots with this name."""
    found: dict[str, list[NamedLeaf]] = defaultdict(list)
    for leaf in saved:
        # A plain dict doesn't declare its slots. The path gives state, field and param.
        before, here, after = f"/{leaf.path}/".partition(f"/{field}/")
        guess = SlotPlace(before.strip("/"), field, after.strip("/")) if here else None
        place = leaf.slot or guess
        if place is not None and place.field == field:
            found[place.state].append(leaf._replace(slot=place))
    return [*found.values()]


def _is_vector_of(x: Any, leaves: list[Any]) -> bool:
    """Whether an array has the size of all leaves together, as `fnopt.flatten` joins them."""
    return jnp.shape(x) == (sum(map(jnp.size, leaves)),)


# The step counts of wrappers that don't pass every call on: `accumulate`, `conditionally_mask`.
# Optimizers inside count only the steps that reach them.
WRAPPER_COUNTS = ("gradient_step", "step")


def are_equal(a: Any, b: Any) -> bool:
    """Whether two leaves are known to be equal: for traced leaves, the same object."""
    if a is b or isinstance(a, Tracer) or isinstance(b, Tracer):
        return a is b
    return np.array_equal(a, b)


class Matching(NamedTuple):
    """Map from fresh leaves to their saved leaves.

    Attributes:
        found: A dict from names of fresh leaves to saved leaves; a saved leaf may have several
            names.
        used: The paths of the saved leaves that were found.
    """

    found: dict[str, NamedLeaf]
    used: set[str]

    def add(self, name: str, leaf: NamedLeaf) -> None:
        """Record the saved leaf of a fresh leaf."""
        self.found[name] = leaf
        self.used.add(leaf.path)


def match_slots(fresh: NamedLeaves, saved: NamedLeaves) -> Matching:
    """Match slots by the names of slot and param, and other leaves by their path.

    A saved tree of plain dicts and lists doesn't identify its slots. A leaf in such a tree matches
    the slot and param whose names are at the end of its path; of several, the longest name is
    taken. If several leaves have the same ending, the leaves next to the most other slots are
    taken. If a name occurs equally often in both trees, leaves match in order; otherwise only
    leaves of equal paths match.
    """
    matching = Matching({}, set())
    by_path = {leaf.path: leaf for leaf in saved.leaves if leaf.slot is None}
    for leaf in fresh.leaves:
        if leaf.slot is None and leaf.name not in fresh.counts and leaf.path in by_path:
            matching.add(leaf.name, by_path[leaf.path])
    declared, endings = _group_by_slot(saved.leaves), _group_by_ending(by_path.values())
    wanted = _group_by_slot(fresh.leaves)
    slots_at = Counter(
        _state_path(leaf, key) for key in wanted for leaf in endings.get(join_path(*key), [])
    )
    # Long names first: their leaves end with the shorter names, too.
    for key in sorted(wanted, key=lambda key: -join_path(*key).count("/")):
        candidates = declared.get(key)
        if candidates is None:
            free = [x for x in endings.get(join_path(*key), []) if x.path not in matching.used]
            candidates = _leaves_of_highest_score(
                free, [slots_at[_state_path(x, key)] for x in free], len(wanted[key])
            )
        _assign(wanted[key], candidates, matching)
    return matching


def _leaves_of_highest_score(
    leaves: list[NamedLeaf], scores: list[int], number: int
) -> list[NamedLeaf]:
    """The leaves with the highest scores; all leaves if their number differs."""
    least = sorted(scores, reverse=True)[:number][-1:]
    best = [leaf for leaf, score in zip(leaves, scores, strict=True) if [score] >= least]
    return best if len(best) == number else leaves


def _state_path(leaf: NamedLeaf, key: tuple[str, str]) -> str:
    """Path of the state whose slot `key` contains the leaf."""
    return leaf.path.removesuffix(join_path(*key)).rstrip("/")


def match_scalars(fresh: NamedLeaves, saved: NamedLeaves, matching: Matching) -> set[str]:
    """Match scalars of a state to the saved state from which its slots were restored.

    Returns:
        The names of leaves that remain fresh: scalars of states whose slots all remain fresh. If a
        count were restored without its moments, the next step would be wrong.
    """
    by_path = {leaf.path: leaf for leaf in saved.leaves}
    sources: dict[str, set[str]] = defaultdict(set)
    for leaf in fresh.leaves:
        if leaf.slot is not None:
            known, states = matching.found.get(leaf.name), sources[leaf.slot.state]
            if known is not None:
                slot = known.slot
                states.add(slot.state if slot else _state_path(known, leaf.slot[1:]))
    stay: set[str] = set()
    for leaf in fresh.leaves:
        state = _nearest(leaf.path, sources) if leaf.slot is None else None
        if state is None:
            continue
        rest = leaf.path.removeprefix(state).lstrip("/")
        if not sources[state]:
            if "/" not in rest and rest not in WRAPPER_COUNTS:
                stay.add(leaf.name)
                matching.found.pop(leaf.name, None)
            continue
        candidates = [by_path.get(join_path(source, rest)) for source in sorted(sources[state])]
        candidates = [other for other in candidates if other is not None]
        # Slots of several states, as of the groups of a partition, join only with equal counts.
        if candidates and all(are_equal(other.leaf, candidates[0].leaf) for other in candidates):
            for other in candidates:
                matching.add(leaf.name, other)
    return stay


def match_counts(
    fresh: NamedLeaves, saved: NamedLeaves, matching: Matching, stay: set[str]
) -> None:
    """Match the remaining counts by path, unless another state contains the count."""
    by_path = {leaf.path: leaf for leaf in saved.leaves if leaf.slot is None}
    for leaf in fresh.leaves:
        free = leaf.name in fresh.counts and leaf.name not in matching.found.keys() | stay
        if free and leaf.path in by_path.keys() - matching.used:
            matching.add(leaf.name, by_path[leaf.path])


def _group_by_slot(leaves: Iterable[NamedLeaf]) -> dict[tuple[str, str], list[NamedLeaf]]:
    found: dict[tuple[str, str], list[NamedLeaf]] = defaultdict(list)
    for leaf in leaves:
        if leaf.slot is not None:
            found[leaf.slot.field, leaf.slot.param].append(leaf)
    return found


def _group_by_ending(leaves: Iterable[NamedLeaf]) -> dict[str, list[NamedLeaf]]:
    """Leaves by every ending of their path that consists of whole parts."""
    found: dict[str, list[NamedLeaf]] = defaultdict(list)
    for leaf in leaves:
        parts = leaf.path.split("/")
        for i in range(len(parts)):
            found["/".join(parts[i:])].append(leaf)
    return found


def _assign(wanted: list[NamedLeaf], candidates: list[NamedLeaf], matching: Matching) -> None:
    if len(wanted) == len(candidates):
        for leaf, other in zip(wanted, candidates, strict=True):
            matching.add(leaf.name, other)
        return
    by_path = {leaf.path: leaf for leaf in candidates}
    for leaf in wanted:
        if leaf.path in by_path:
            matching.add(leaf.name, by_path[leaf.path])


def _nearest(path: str, states: Iterable[str]) -> str | None:
    """Innermost state that contains a leaf."""
    inside = [state for state in states if not state or path.startswith(f"{state}/")]
    return max(inside, key=len, default=None)
