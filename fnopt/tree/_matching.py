"""Match saved leaves to the leaves of a fresh tree, and convert slots between trees and vectors."""

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
    """Location of a leaf in a slot: path of the state, field of the slot, and name of the param."""

    state: str
    field: str
    param: str


class NamedLeaf(NamedTuple):
    """A leaf with its name: slot and param for a leaf of a slot, the path for other leaves."""

    name: str
    path: str
    leaf: Any
    slot: SlotPlace | None


class NamedLeaves(NamedTuple):
    """The leaves of a tree with their names.

    Attributes:
        leaves: The leaves, in the order of `jax.tree.leaves`.
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
    """Name all leaves of a tree, whose NamedTuples declare slots and step counts."""
    leaves, treedef = leaves_with_names(tree)
    # Each leaf is replaced by a distinct object, so that `id` finds the leaf in the NamedTuples.
    shapes = [_shape(x) if is_array_like(x) else x for _, x in leaves]
    nodes = jax.tree.leaves(treedef.unflatten(shapes), is_leaf=is_named_tuple)
    states = tuple(node for node in nodes if is_named_tuple(node))
    keys: dict[int, tuple[str, str]] = {}
    for slot, part in slots(states).items():
        field = slot.rpartition("/")[2]
        keys |= {id(x): (field, param) for param, x in leaves_with_names(part)[0]}
    places = [_place(path, keys.get(id(x))) for x, (path, _) in zip(shapes, leaves, strict=True)]
    # A field name that only one state has identifies a slot without the path of the state.
    states_of = Counter(field for _, field in {place[:2] for place in places if place is not None})
    result = [
        _name_leaf(path, leaf, place, states_of, rename or {})
        for (path, leaf), place in zip(leaves, places, strict=True)
    ]
    count_ids = {*map(id, step_counts(states))}
    counts = [y.name for y, x in zip(result, shapes, strict=True) if id(x) in count_ids]
    return NamedLeaves(result, treedef, counts)


def is_named_tuple(node: Any) -> bool:
    """Whether a node of a tree is a NamedTuple, as states are."""
    return isinstance(node, tuple) and hasattr(node, "_fields")


def _place(path: str, slot_key: tuple[str, str] | None) -> SlotPlace | None:
    if slot_key is None:
        return None
    return SlotPlace(path.removesuffix(join_path(*slot_key)).rstrip("/"), *slot_key)


def _name_leaf(
    path: str,
    leaf: Any,
    place: SlotPlace | None,
    states_of: Mapping[str, int],
    rename: Mapping[str, str],
) -> NamedLeaf:
    path = rename_path(path, rename)
    if place is None:
        return NamedLeaf(path, path, leaf, None)
    slot = place.field if states_of[place.field] == 1 else join_path(place.state, place.field)
    name = rename_path(join_path(slot, place.param), rename)
    param = name.removeprefix(f"{slot}/") if name.startswith(f"{slot}/") else place.param
    state = rename_path(place.state, rename) if place.state else place.state
    return NamedLeaf(name, path, leaf, SlotPlace(state, place.field, param))


def join_path(*parts: str) -> str:
    """Join the nonempty parts of a path."""
    return "/".join(filter(None, parts))


def rename_path(name: str, rename: Mapping[str, str]) -> str:
    """Replace the longest prefix of a path that is a key of `rename`."""
    parts = name.split("/")
    for i in range(len(parts), 0, -1):
        start = "/".join(parts[:i])
        if start in rename:
            return "/".join([*filter(None, [rename[start]]), *parts[i:]])
    return name


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def repack(fresh: NamedLeaves, saved: NamedLeaves, matching: Matching) -> dict[str, Any]:
    """Convert saved slots from trees to vectors, or from vectors to trees, like the fresh slots.

    The function adds the sources of the converted leaves to `matching`.

    Returns:
        The converted arrays, keyed by the names of fresh leaves.
    """
    slots: dict[tuple[str, str], list[NamedLeaf]] = defaultdict(list)
    for leaf in fresh.leaves:
        if leaf.slot is not None and is_array_like(leaf.leaf):
            slots[leaf.slot[:2]].append(leaf)
    packed: dict[str, Any] = {}
    for (_, field), fresh_slot in slots.items():
        if any(leaf.name in matching.found for leaf in fresh_slot):
            continue
        unused = [x for x in saved.leaves if x.path not in matching.used]
        candidates = [
            saved_slot for saved_slot in _slots_of(field, unused) if _fits(fresh_slot, saved_slot)
        ]
        if len(candidates) != 1:  # several candidates would be ambiguous
            continue
        (saved_slot,) = candidates
        arrays = [jnp.asarray(leaf.leaf) for leaf in saved_slot]
        if len(saved_slot) == 1:  # a vector, for one leaf or several leaves of the fresh slot
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
    """Whether one slot is the flat vector of the other slot."""
    fresh, saved = ([leaf.leaf for leaf in leaves] for leaves in (fresh_slot, saved_slot))
    if len(saved_slot) == 1:
        return _is_vector_of(saved[0], fresh)
    castable = all(
        jnp.can_cast(jnp.result_type(x), jnp.result_type(fresh[0]), casting="same_kind")
        for x in saved
    )
    return len(fresh_slot) == 1 and _is_vector_of(fresh[0], saved) and castable


def _slots_of(field: str, saved: list[NamedLeaf]) -> list[list[NamedLeaf]]:
    """Group the saved leaves of the field by state, one list per slot."""
    slots_by_state: dict[str, list[NamedLeaf]] = defaultdict(list)
    for leaf in saved:
        # A plain dict doesn't declare its slots, so state and param are parsed from the path.
        state, separator, param = f"/{leaf.path}/".partition(f"/{field}/")
        parsed = SlotPlace(state.strip("/"), field, param.strip("/")) if separator else None
        place = leaf.slot or parsed
        if place is not None and place.field == field:
            slots_by_state[place.state].append(leaf._replace(slot=place))
    return [*slots_by_state.values()]


def _is_vector_of(x: Any, leaves: list[Any]) -> bool:
    """Whether an array is a vector of the leaves' total size, as `fnopt.flatten` makes it."""
    return jnp.shape(x) == (sum(map(jnp.size, leaves)),)


# The step counts of wrappers that don't forward every call: `accumulate`, `conditionally_mask`.
# The inner optimizer counts only forwarded steps, so its counts differ from counts outside.
WRAPPER_COUNTS = ("gradient_step", "step")


def are_equal(a: Any, b: Any) -> bool:
    """Whether two leaves are provably equal; a traced leaf equals only itself."""
    if a is b or isinstance(a, Tracer) or isinstance(b, Tracer):
        return a is b
    return np.array_equal(a, b)


class Matching(NamedTuple):
    """Map from fresh leaves to their saved leaves.

    Attributes:
        found: Saved leaves, keyed by the names of fresh leaves. Several fresh leaves may share a
            saved leaf.
        used: The paths of the matched saved leaves.
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
    the slot and param whose names are the suffix of its path. Longer names have priority. If
    several leaves have the same suffix, leaves of the state with the most matching slots have
    priority. If a name occurs equally often in both trees, leaves match in tree order; otherwise
    only leaves with equal paths match.
    """
    matching = Matching({}, set())
    by_path = {leaf.path: leaf for leaf in saved.leaves if leaf.slot is None}
    for leaf in fresh.leaves:
        if leaf.slot is None and leaf.name not in fresh.counts and leaf.path in by_path:
            matching.add(leaf.name, by_path[leaf.path])
    declared, endings = _group_by_slot(saved.leaves), _group_by_ending(by_path.values())
    targets = _group_by_slot(fresh.leaves)
    scores = Counter(
        _state_path(leaf, key) for key in targets for leaf in endings.get(join_path(*key), [])
    )
    # Long names are matched first, because their paths also end with the shorter names.
    for key in sorted(targets, key=lambda key: -join_path(*key).count("/")):
        candidates = declared.get(key)
        if candidates is None:
            unused = [x for x in endings.get(join_path(*key), []) if x.path not in matching.used]
            candidates = _leaves_of_highest_score(
                unused,
                [scores[_state_path(x, key)] for x in unused],
                len(targets[key]),
            )
        _assign(targets[key], candidates, matching)
    return matching


def _leaves_of_highest_score(
    leaves: list[NamedLeaf], scores: list[int], number: int
) -> list[NamedLeaf]:
    """Return the `number` leaves of the highest scores, or all leaves if ties change the number."""
    # A slice instead of an index, because there may be fewer scores than `number`, even none.
    threshold = sorted(scores, reverse=True)[:number][-1:]
    best = [leaf for leaf, score in zip(leaves, scores, strict=True) if [score] >= threshold]
    return best if len(best) == number else leaves


def _state_path(leaf: NamedLeaf, key: tuple[str, str]) -> str:
    """Path of the state whose slot `key` contains the leaf."""
    return leaf.path.removesuffix(join_path(*key)).rstrip("/")


def match_scalars(fresh: NamedLeaves, saved: NamedLeaves, matching: Matching) -> set[str]:
    """Match scalars of a state to the saved state from which its slots were restored.

    Returns:
        The names of scalars that remain fresh: the scalars of states whose slots all remain fresh.
        A saved count with fresh moments would make the next bias correction wrong.
    """
    by_path = {leaf.path: leaf for leaf in saved.leaves}
    sources: dict[str, set[str]] = defaultdict(set)
    for leaf in fresh.leaves:
        if leaf.slot is not None:
            source_leaf, states = matching.found.get(leaf.name), sources[leaf.slot.state]
            if source_leaf is not None:
                slot = source_leaf.slot
                states.add(slot.state if slot else _state_path(source_leaf, leaf.slot[1:]))
    fresh_names: set[str] = set()
    for leaf in fresh.leaves:
        state = _nearest(leaf.path, sources) if leaf.slot is None else None
        if state is None:
            continue
        suffix = leaf.path.removeprefix(state).lstrip("/")
        if not sources[state]:
            if "/" not in suffix and suffix not in WRAPPER_COUNTS:
                fresh_names.add(leaf.name)
                matching.found.pop(leaf.name, None)
            continue
        candidates = [by_path.get(join_path(origin, suffix)) for origin in sorted(sources[state])]
        candidates = [other for other in candidates if other is not None]
        # Slots may come from several saved states (groups of a partition); all scalars must agree.
        if candidates and all(are_equal(other.leaf, candidates[0].leaf) for other in candidates):
            for other in candidates:
                matching.add(leaf.name, other)
    return fresh_names


def match_counts(
    fresh: NamedLeaves, saved: NamedLeaves, matching: Matching, fresh_names: set[str]
) -> None:
    """Match the remaining step counts to unused saved leaves of the same path."""
    by_path = {leaf.path: leaf for leaf in saved.leaves if leaf.slot is None}
    open_counts = {*fresh.counts} - matching.found.keys() - fresh_names
    for leaf in fresh.leaves:
        if leaf.name in open_counts and leaf.path in by_path.keys() - matching.used:
            matching.add(leaf.name, by_path[leaf.path])


def _group_by_slot(leaves: Iterable[NamedLeaf]) -> dict[tuple[str, str], list[NamedLeaf]]:
    groups: dict[tuple[str, str], list[NamedLeaf]] = defaultdict(list)
    for leaf in leaves:
        if leaf.slot is not None:
            groups[leaf.slot.field, leaf.slot.param].append(leaf)
    return groups


def _group_by_ending(leaves: Iterable[NamedLeaf]) -> dict[str, list[NamedLeaf]]:
    """Group leaves by every suffix of their path that consists of whole parts."""
    groups: dict[str, list[NamedLeaf]] = defaultdict(list)
    for leaf in leaves:
        parts = leaf.path.split("/")
        for i in range(len(parts)):
            groups["/".join(parts[i:])].append(leaf)
    return groups


def _assign(targets: list[NamedLeaf], candidates: list[NamedLeaf], matching: Matching) -> None:
    # If the numbers differ, only leaves with equal paths match without ambiguity.
    if len(targets) == len(candidates):
        for leaf, other in zip(targets, candidates, strict=True):
            matching.add(leaf.name, other)
        return
    by_path = {leaf.path: leaf for leaf in candidates}
    for leaf in targets:
        if leaf.path in by_path:
            matching.add(leaf.name, by_path[leaf.path])


def _nearest(path: str, states: Iterable[str]) -> str | None:
    """Path of the innermost state that contains a leaf; None if there is no such state."""
    inside = [state for state in states if not state or path.startswith(f"{state}/")]
    return max(inside, key=len, default=None)
