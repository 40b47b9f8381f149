"""Groups of leaves that are measured together, and their names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.core import is_inexact, is_integer, leaves_with_names, matches, names_text, where

REST = "other"
"""The group of the leaves that no pattern matches."""

Groups = None | int | tuple[tuple[str, tuple[str, ...]], ...]
"""Per leaf, by the first parts of the path, or by patterns with names."""


class Grouping(NamedTuple):
    """The groups of the leaves of a tree; static, since the structure alone decides."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    members: tuple[tuple[int, ...], ...]
    skipped: tuple[str, ...]


def _patterns(given: Any) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, (tuple, list)) or not all(isinstance(p, str) for p in patterns):
        raise TypeError(
            f"{where()}groups: {given!r} is a {type(given).__name__}, expected a pattern such as "
            "'encoder/*', or several."
        )
    if not patterns:
        raise ValueError(f"{where()}groups: a group has no pattern.")
    return tuple(patterns)


def as_groups(given: Any) -> Groups:
    """Brings what a user may give as `groups` to one hashable form.

    Args:
        given: None for every leaf by itself; a number of path parts (1 makes a group of
            everything under one top-level name); a list of patterns, which name themselves; or a
            mapping from name to pattern or patterns.

    Returns:
        None, the number, or pairs of a name and its patterns.

    Raises:
        ValueError: For a number below 1 or no groups at all.
        TypeError: For anything else.
    """
    if given is None:
        return None
    if is_integer(given):
        if given < 1:
            raise ValueError(f"{where()}groups = {given}, expected at least 1 part of the path.")
        return int(given)
    if isinstance(given, Mapping):
        pairs = tuple((str(name), _patterns(p)) for name, p in given.items())
    elif isinstance(given, (tuple, list)):
        # Pairs are what this function makes: it may see its own result again.
        named = [p if isinstance(p, (tuple, list)) and len(p) == 2 else (p, p) for p in given]
        pairs = tuple((str(name).rstrip("/"), _patterns(p)) for name, p in named)
    else:
        raise TypeError(
            f"{where()}groups = {given!r} is a {type(given).__name__}, expected None (every leaf), "
            "a number of path parts, a list of patterns, or a dict from name to patterns."
        )
    if not pairs:
        raise ValueError(f"{where()}groups is empty; None looks at every leaf by itself.")
    return pairs


def _label(path: str, groups: Groups) -> str:
    if groups is None:
        return path
    if isinstance(groups, int):
        return "/".join(path.split("/")[:groups])
    fits = (name for name, patterns in groups if any(matches(path, p) for p in patterns))
    return next(fits, REST)


def _check_found(groups: Groups, paths: list[str]) -> None:
    """Refuses a pattern that fits no leaf: a name is misspelled."""
    if not isinstance(groups, tuple) or not paths:
        return
    every = [pattern for _, patterns in groups for pattern in patterns]
    lost = [q for q in every if not any(matches(path, q) for path in paths)]
    if lost:
        raise ValueError(
            f"{where()}groups: {names_text(lost)} match no leaf of {names_text(paths)}. Patterns "
            "are compared with whole paths; see fnopt.leaf_paths(params)."
        )


def group(tree: Any, groups: Groups) -> Grouping:
    """Sorts the floating leaves of a tree into groups, in the order of the patterns or leaves."""
    pairs = leaves_with_names(tree)[0]
    paths = [path for path, _ in pairs]
    _check_found(groups, paths)
    skipped = tuple(path for path, leaf in pairs if not is_inexact(leaf))
    named = [name for name, _ in groups] if isinstance(groups, tuple) else []
    members: dict[str, list[int]] = {name: [] for name in named}
    for i, (path, leaf) in enumerate(pairs):
        if is_inexact(leaf):
            members.setdefault(_label(path, groups), []).append(i)
    members = {name: own for name, own in members.items() if own}
    found = [[jnp.shape(pairs[i][1]) for i in own] for own in members.values()]
    sizes = tuple(sum(map(math.prod, own)) for own in found)
    shapes = tuple(own[0] if len(own) == 1 else None for own in found)
    return Grouping(tuple(members), sizes, shapes, tuple(map(tuple, members.values())), skipped)
