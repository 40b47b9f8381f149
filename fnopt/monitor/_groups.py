"""Groups of leaves that are measured together, and pairs of weights and biases."""

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
"""Name of the group of the leaves that no pattern matches."""

Groups = None | int | tuple[tuple[str, tuple[str, ...]], ...]
"""How leaves are grouped: each leaf alone, by the first parts of the path, or by patterns."""


class Grouping(NamedTuple):
    """Groups of the leaves of a tree; static, because groups depend only on the structure.

    Attributes:
        names: The names of the groups.
        sizes: Number of elements of each group.
        shapes: The shape of each group with a single leaf; `None` for other groups.
        members: Indices of the leaves of each group.
        skipped: The paths of the leaves that aren't floating.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    shapes: tuple[tuple[int, ...] | None, ...]
    members: tuple[tuple[int, ...], ...]
    skipped: tuple[str, ...]


def _patterns(value: Any) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else value
    if not isinstance(patterns, (tuple, list)) or not all(isinstance(p, str) for p in patterns):
        raise TypeError(
            f"{where()}groups: {value!r} is a {type(value).__name__}, expected a pattern such as "
            "'encoder/*', or a list of patterns."
        )
    if not patterns:
        raise ValueError(
            f"{where()}groups: the patterns of a group are empty, expected at least one pattern."
        )
    return tuple(patterns)


def as_groups(groups: Any) -> Groups:
    """Convert the argument `groups` to a hashable value.

    Args:
        groups: `None` makes every leaf a group. An integer `n` groups leaves that share the first
            `n` parts of their paths. A list of patterns makes one group per pattern, with the
            pattern as its name. A dict maps the name of each group to one or several patterns.

    Returns:
        `None`, the integer, or pairs of a name and a tuple of patterns.

    Raises:
        ValueError: If the integer is below 1, or the collection is empty.
        TypeError: If the argument has another type.
    """
    if groups is None:
        return None
    if is_integer(groups):
        if groups < 1:
            raise ValueError(f"{where()}groups is {groups}, expected at least 1 part of the path.")
        return int(groups)
    if isinstance(groups, Mapping):
        pairs = tuple((str(name), _patterns(p)) for name, p in groups.items())
    elif isinstance(groups, (tuple, list)):
        # Pairs of a name and patterns are results of this function, which may be called twice.
        items = [p if isinstance(p, (tuple, list)) and len(p) == 2 else (p, p) for p in groups]
        pairs = tuple((str(name).rstrip("/"), _patterns(p)) for name, p in items)
    else:
        raise TypeError(
            f"{where()}groups: {groups!r} is a {type(groups).__name__}, expected None (every "
            "leaf), a number of path parts, a list of patterns, or a dict from names to patterns."
        )
    if not pairs:
        raise ValueError(
            f"{where()}groups is empty, expected at least one group, or None for every leaf."
        )
    return pairs


def _group_name(path: str, groups: Groups) -> str:
    if groups is None:
        return path
    if isinstance(groups, int):
        return "/".join(path.split("/")[:groups])
    names = (name for name, patterns in groups if any(matches(path, p) for p in patterns))
    return next(names, REST)


def _check_patterns(groups: Groups, paths: list[str]) -> None:
    """Check that every pattern matches a leaf."""
    if not isinstance(groups, tuple) or not paths:
        return
    patterns = [pattern for _, patterns in groups for pattern in patterns]
    unmatched = [q for q in patterns if not any(matches(path, q) for path in paths)]
    if unmatched:
        raise ValueError(
            f"{where()}the patterns {names_text(unmatched)} in groups match no leaf, expected "
            f"patterns that match a leaf of {names_text(paths)}. A pattern must match a full path "
            "or the leading parts of a path; fnopt.leaf_paths(params) lists the paths."
        )


def group(tree: Any, groups: Groups) -> Grouping:
    """Group the floating leaves of a tree, in the order of the patterns or leaves."""
    pairs = leaves_with_names(tree)[0]
    paths = [path for path, _ in pairs]
    _check_patterns(groups, paths)
    skipped = tuple(path for path, leaf in pairs if not is_inexact(leaf))
    names = [name for name, _ in groups] if isinstance(groups, tuple) else []
    members: dict[str, list[int]] = {name: [] for name in names}
    for i, (path, leaf) in enumerate(pairs):
        if is_inexact(leaf):
            members.setdefault(_group_name(path, groups), []).append(i)
    members = {name: indices for name, indices in members.items() if indices}
    leaf_shapes = [[jnp.shape(pairs[i][1]) for i in indices] for indices in members.values()]
    sizes = tuple(sum(map(math.prod, group)) for group in leaf_shapes)
    shapes = tuple(group[0] if len(group) == 1 else None for group in leaf_shapes)
    return Grouping(tuple(members), sizes, shapes, tuple(map(tuple, members.values())), skipped)


Shape = tuple[int, ...]

# Maximum number of siblings that are paired. A layer has a few leaves; a tree node with more leaves
# is a list of parameters, for which the quadratic search would take long.
_MAX_SIBLINGS = 64


# The result is cached, because names and shapes are static, and every trace would repeat the
# analysis.
@functools.lru_cache(maxsize=64)
def weights_of(names: tuple[str, ...], shapes: tuple[Shape | None, ...]) -> tuple[int, ...]:
    """Index of the weights of every bias; for other leaves, the index of the leaf itself.

    A bias is a sibling of the weights in the tree and has some of their axes: `[64]` for weights
    `[128, 64]`, `[4, 16]` for weights `[64, 4, 16]`. If several weights match, the weights with the
    most similar name are selected: `w1` for `b1`.

    Args:
        names: The paths of the leaves.
        shapes: The shapes of the leaves; `None` for groups of several leaves.
    """
    weights_index = list(range(len(names)))
    by_parent = sorted(range(len(names)), key=lambda i: _parent(names[i]))
    for _, group in itertools.groupby(by_parent, key=lambda i: _parent(names[i])):
        siblings = list(group)
        if len(siblings) > _MAX_SIBLINGS:
            continue
        for i in siblings:
            weights = [j for j in siblings if _is_bias(shapes[i], shapes[j])]
            weights_index[i] = max(
                weights, key=lambda j: _common_ends(names[i], names[j]), default=i
            )
    return tuple(weights_index)


def biases_of(weights: Sequence[int], shapes: Sequence[Shape | None]) -> tuple[int | None, ...]:
    """Index of the bias of every leaf, whose zeros show how many units are inactive.

    For a vector or a bias, the index is the index of the leaf itself. For a matrix without a bias,
    the index is `None`: zeros of the matrix may be due to unused embedding rows or to inputs that
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
    # Axes of length 1 are ignored, because the bias of an Equinox convolution is [channels, 1, 1].
    bias_axes, weight_axes = ([n for n in shape if n != 1] for shape in (bias, weights))
    # `n in remaining` consumes the iterator, so that the bias axes must be a subsequence.
    remaining = iter(weight_axes)
    return 0 < len(bias_axes) < len(weight_axes) and all(n in remaining for n in bias_axes)


def _common_ends(a: str, b: str) -> int:
    """Total length of the common prefix and suffix of two names."""
    directions = zip(a, b, strict=False), zip(a[::-1], b[::-1], strict=False)
    return sum(len([*itertools.takewhile(lambda pair: pair[0] == pair[1], x)]) for x in directions)
