"""Matching of saved leaves to those of a fresh tree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from fnopt.tree._named_leaves import NamedLeaf, NamedLeaves, join_path
from fnopt.tree._recount import same

# Fields of a state with slots that count steps for others too: those inside of it.
_STEPS_MADE = ("gradient_step", "step")


class Matching(NamedTuple):
    """The saved leaves of fresh ones.

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
    """Finds slots by the names of slot and param, and other leaves by their path.

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
    """The leaves of the highest scores; all, if that isn't so many of them."""
    least = sorted(scores, reverse=True)[:number][-1:]
    best = [leaf for leaf, score in zip(leaves, scores, strict=True) if [score] >= least]
    return best if len(best) == number else leaves


def _state_path(leaf: NamedLeaf, key: tuple[str, str]) -> str:
    """The path of the state that a leaf is in, if it is in this slot of it."""
    return leaf.path.removesuffix(join_path(*key)).rstrip("/")


def match_scalars(fresh: NamedLeaves, saved: NamedLeaves, matching: Matching) -> set[str]:
    """Takes counts and other numbers of a state from where its slots came from.

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
        there = [by_path.get(join_path(source, rest)) for source in sorted(sources[state])]
        there = [other for other in there if other is not None]
        # Slots of several states in one, as of the groups of a partition, need equal counts.
        if there and all(same(other.leaf, there[0].leaf) for other in there):
            for other in there:
                matching.add(leaf.name, other)
    return stay


def match_counts(
    fresh: NamedLeaves, saved: NamedLeaves, matching: Matching, stay: set[str]
) -> None:
    """Takes the other counts from their path, if that isn't another state's count."""
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
