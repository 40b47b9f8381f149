"""Matching of saved leaves to those of a fresh tree, also between trees and flat vectors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fnopt.core import is_array_like
from fnopt.tree._named_leaves import NamedLeaf, NamedLeaves, SlotPlace, join_path


def repack(fresh: NamedLeaves, saved: NamedLeaves, matching: Matching) -> dict[str, Any]:
    """Convert saved slots between trees and flat vectors, as the fresh slots need.

    Returns:
        The arrays by the names of fresh leaves; `matching` says from where.
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
        arrays = [leaf.leaf for leaf in saved_slot]
        torn = len(saved_slot) == 1
        packed |= (
            _split_vector(arrays[0], fresh_slot)
            if torn
            else {fresh_slot[0].name: _join_leaves(arrays, fresh_slot[0])}
        )
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
        place = leaf.slot or _guess_place(field, leaf.path)
        if place is not None and place.field == field:
            found[place.state].append(leaf._replace(slot=place))
    return [*found.values()]


def _guess_place(field: str, path: str) -> SlotPlace | None:
    """The place in a slot of a leaf that was saved in a plain dict."""
    before, here, after = f"/{path}/".partition(f"/{field}/")
    return SlotPlace(before.strip("/"), field, after.strip("/")) if here else None


def _split_vector(vector: Any, leaves: list[NamedLeaf]) -> dict[str, Any]:
    ends = np.cumsum([jnp.size(x.leaf) for x in leaves])[:-1]
    parts = jnp.split(jnp.asarray(vector), ends.tolist())
    return {x.name: p.reshape(jnp.shape(x.leaf)) for x, p in zip(leaves, parts, strict=True)}


def _is_vector_of(x: Any, leaves: list[Any]) -> bool:
    """Whether an array has the numbers of these in a row, as `fnopt.flatten` lays them."""
    return jnp.shape(x) == (sum(map(jnp.size, leaves)),)


def _join_leaves(leaves: list[Any], like: NamedLeaf) -> jax.Array:
    dtype = jnp.result_type(like.leaf)
    return jnp.concatenate([jnp.ravel(jnp.asarray(x)).astype(dtype) for x in leaves])


# Fields of a state with slots that count steps for others too: those inside of it.
_STEPS_MADE = ("gradient_step", "step")


def are_equal(a: Any, b: Any) -> bool:
    """Whether two leaves are known to be equal: traced ones are if they are one object."""
    if a is b or isinstance(a, Tracer) or isinstance(b, Tracer):
        return a is b
    return np.array_equal(a, b)


class Matching(NamedTuple):
    """Map from fresh leaves to their saved leaves.

    Attributes:
        found: From the names of fresh leaves to saved leaves; one may have several.
        used: The paths of the saved leaves that were found.
    """

    found: dict[str, NamedLeaf]
    used: set[str]

    def add(self, name: str, leaf: NamedLeaf) -> None:
        """Note the saved leaf of a fresh one."""
        self.found[name] = leaf
        self.used.add(leaf.path)


def match_slots(fresh: NamedLeaves, saved: NamedLeaves) -> Matching:
    """Find slots by the names of slot and param, and other leaves by their path.

    A saved tree of plain dicts and lists doesn't say where its slots are. A leaf of it belongs to
    the slot and param that its path ends with, of several such ones to those of the longest name;
    if several leaves end so, those count that stand where most other slots are. Where a name occurs
    several times, equally often in either tree, the order decides; if it doesn't occur equally
    often, only leaves of equal paths belong together.
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
    """The leaves of the highest scores; all, if their number differs."""
    least = sorted(scores, reverse=True)[:number][-1:]
    best = [leaf for leaf, score in zip(leaves, scores, strict=True) if [score] >= least]
    return best if len(best) == number else leaves


def _state_path(leaf: NamedLeaf, key: tuple[str, str]) -> str:
    """The path of the state that a leaf is in, if it is in this slot of it."""
    return leaf.path.removesuffix(join_path(*key)).rstrip("/")


def match_scalars(fresh: NamedLeaves, saved: NamedLeaves, matching: Matching) -> set[str]:
    """Match scalars of a state to the saved state that its slots came from.

    Returns:
        The names of leaves that stay fresh: numbers of states whose slots all do. A count without
        its moments would make the next step wrong.
    """
    by_path = {leaf.path: leaf for leaf in saved.leaves}
    sources: dict[str, set[str]] = defaultdict(set)
    for leaf in fresh.leaves:
        if leaf.slot is not None:
            known = matching.found.get(leaf.name)
            sources[leaf.slot.state] |= set() if known is None else {_state_of(leaf, known)}
    stay: set[str] = set()
    for leaf in fresh.leaves:
        state = _nearest(leaf.path, sources) if leaf.slot is None else None
        if state is None:
            continue
        rest = leaf.path.removeprefix(state).lstrip("/")
        if not sources[state]:
            if "/" not in rest and rest not in _STEPS_MADE:
                stay.add(leaf.name)
                matching.found.pop(leaf.name, None)
            continue
        candidates = [by_path.get(join_path(source, rest)) for source in sorted(sources[state])]
        candidates = [other for other in candidates if other is not None]
        # Slots of several states in one, as of the groups of a partition, need equal counts.
        if candidates and all(are_equal(other.leaf, candidates[0].leaf) for other in candidates):
            for other in candidates:
                matching.add(leaf.name, other)
    return stay


def match_counts(
    fresh: NamedLeaves, saved: NamedLeaves, matching: Matching, stay: set[str]
) -> None:
    """Match the remaining counts by path, if no other state owns that count."""
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


def _state_of(leaf: NamedLeaf, saved: NamedLeaf) -> str:
    """The path of the state that a saved leaf of a slot is in."""
    if saved.slot is not None:
        return saved.slot.state
    assert leaf.slot is not None
    return _state_path(saved, leaf.slot[1:])


def _nearest(path: str, states: Iterable[str]) -> str | None:
    """The innermost of some states that a leaf is in."""
    inside = [state for state in states if not state or path.startswith(f"{state}/")]
    return max(inside, key=len, default=None)
