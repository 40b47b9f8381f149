"""Groups of leaves that are measured together, and the pairing of weights and biases."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fnopt.errors import is_integer, leaves_with_names, matches, names_text, where
from fnopt.numerics import is_inexact

REST = "other"
"""The name of the group of all leaves that no pattern matches."""

Groups = None | int | tuple[tuple[str, tuple[str, ...]], ...]
"""The grouping: by leaf, by the first parts of the path, or by named patterns."""


class Grouping(NamedTuple):
    """The groups of the leaves of a tree; static, because they depend only on its structure."""

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
        raise ValueError(f"{where()}groups: a group is empty, expected at least one pattern in it.")
    return tuple(patterns)


def as_groups(given: Any) -> Groups:
    """Convert the argument `groups` to its hashable form.

    Args:
        given: None makes every leaf a group. A number groups leaves by that many first parts of
            their paths (1 groups all leaves under one top-level name). A list of patterns makes one
            group per pattern, named after it. A mapping contains the pattern or patterns of each
            group by name.

    Returns:
        None, the number, or pairs of a name and its patterns.

    Raises:
        ValueError: For a number below 1 or an empty collection.
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
        # The function returns pairs, and may get its own result again.
        named = [p if isinstance(p, (tuple, list)) and len(p) == 2 else (p, p) for p in given]
        pairs = tuple((str(name).rstrip("/"), _patterns(p)) for name, p in named)
    else:
        raise TypeError(
            f"{where()}groups = {given!r} is a {type(given).__name__}, expected None (every leaf), "
            "a number of path parts, a list of patterns, or a dict from name to patterns."
        )
    if not pairs:
        raise ValueError(
            f"{where()}groups is empty, expected at least one group, or None for every leaf."
        )
    return pairs


def _label(path: str, groups: Groups) -> str:
    if groups is None:
        return path
    if isinstance(groups, int):
        return "/".join(path.split("/")[:groups])
    fits = (name for name, patterns in groups if any(matches(path, p) for p in patterns))
    return next(fits, REST)


def _check_found(groups: Groups, paths: list[str]) -> None:
    """Check that every pattern matches a leaf."""
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
    """Sort the floating leaves of a tree into groups, in the order of the patterns or leaves."""
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


Shape = tuple[int, ...]

_MANY = 64  # sibling leaves: a layer has a handful, a list of parameters hundreds


# Names and shapes are static, so a structure is analyzed once, not in every trace.
@functools.lru_cache(maxsize=64)
def weights_of(names: tuple[str, ...], shapes: tuple[Shape | None, ...]) -> tuple[int, ...]:
    """For every bias the index of its weights; for other leaves their own index.

    A bias is a sibling of its weights in the tree and has some of their axes: `[64]` for weights
    `[128, 64]`, `[4, 16]` for weights `[64, 4, 16]`. If several weights match, the weights with the
    most similar name are taken: `b1` belongs to `w1`.

    Args:
        names: The paths of the leaves.
        shapes: The shapes of the leaves; `None` for groups of several leaves.
    """
    found = list(range(len(names)))
    by_parent = sorted(range(len(names)), key=lambda i: _parent(names[i]))
    for _, group in itertools.groupby(by_parent, key=lambda i: _parent(names[i])):
        siblings = list(group)
        if len(siblings) > _MANY:
            continue
        for i in siblings:
            weights = [j for j in siblings if _is_bias(shapes[i], shapes[j])]
            found[i] = max(weights, key=lambda j: _common_ends(names[i], names[j]), default=i)
    return tuple(found)


def biases_of(weights: Sequence[int], shapes: Sequence[Shape | None]) -> tuple[int | None, ...]:
    """For every leaf, the bias whose zeros show how many units are inactive.

    The bias is the leaf itself if it is a vector or has weights, and `None` for matrices without a
    bias. The zeros of such a matrix may be due to unused rows of an embedding, or to inputs that
    are always zero.
    """
    first = {w: i for i, w in reversed([*enumerate(weights)]) if w != i}
    return tuple(
        i if weights[i] != i or shape is None or len(shape) < 2 else first.get(i)
        for i, shape in enumerate(shapes)
    )


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _is_bias(bias: Shape | None, weights: Shape | None) -> bool:
    if bias is None or weights is None:
        return False
    own, others = ([n for n in shape if n != 1] for shape in (bias, weights))
    remaining = iter(others)  # Equinox has [channels, 1, 1]
    return 0 < len(own) < len(others) and all(n in remaining for n in own)


def _common_ends(a: str, b: str) -> int:
    """Length of the common prefix and suffix of two names."""
    both = zip(a, b, strict=False), zip(a[::-1], b[::-1], strict=False)
    return sum(len([*itertools.takewhile(lambda pair: pair[0] == pair[1], x)]) for x in both)
