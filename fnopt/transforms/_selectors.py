"""The kinds of selectors: by function, by pattern, and by a tree of labels."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from jax.core import Tracer

from fnopt.core import Value, accepts_args, matches, names_text, static, type_text, where

Label = str | bool | int
"""What a selector says about a leaf: True or False in a mask, a name or number in a partition."""

Leaves = list[tuple[str, Any]]
"""The leaves of a tree with their paths."""


def as_label(label: Any, what: str) -> Label:
    """A label as str, bool or int.

    NumPy's and JAX's single booleans are Python's here; what else can be hashed, such as a member
    of an enum, is known by its text. Fractions are no labels: a mask was meant, or a factor.
    """
    if isinstance(label, (str, bool, int)) and not isinstance(label, enum.Enum):
        return label
    if _has_a_text(label):
        return str(label)
    if getattr(label, "dtype", None) == np.bool_ and not isinstance(label, Tracer):
        if np.ndim(label) == 0:
            return bool(label)
        raise TypeError(
            f"{where()}{what} is an array of shape {np.shape(label)}, expected one label for the "
            "whole leaf; for a mask per element, multiply the gradients by it."
        )
    raise TypeError(
        f"{where()}{what} is {_label_text(label)}, expected a bool, a string or an int (or a "
        "member of an enum), decided from the path, shape and dtype."
    )


def _label_text(label: Any) -> str:
    if not hasattr(label, "dtype"):
        return f"{label!r}, a {type(label).__name__}"
    return f"a traced {type_text(label)}" if isinstance(label, Tracer) else type_text(label)


def _has_a_text(label: Any) -> bool:
    is_number = isinstance(label, (float, complex)) or hasattr(label, "dtype")
    return isinstance(label, Hashable) and not (is_number or callable(label))


class Selector(Value):
    """Give every leaf of a tree a label, from its path, shape and dtype.

    The kinds are `by_path` (a function), `by_pattern` (patterns on the path) and `Labels` (a tree
    of labels, made where a plain tree is given). A selector is a value: it compares, hashes,
    prints, pickles, and goes to and from a configuration.

    Example:
        >>> import fnopt
        >>> isinstance(fnopt.by_pattern("*/bias"), fnopt.Selector)
        True
    """

    def choose(self, leaves: Leaves) -> list[Any]:
        """A label for every leaf; None for one that this selector says nothing about."""
        raise NotImplementedError(f"{type(self).__name__} must define choose(self, leaves)")

    def check(self, positions: list[str]) -> None:
        """Raise a ValueError if the selector does not fit a tree of these paths."""


class by_path(Selector):
    """Select by a function of the leaf's path and the leaf.

    The function is called while JAX traces, so it decides from the path, shape and dtype: values
    are not known then.

    Args:
        fn: `fn(path, leaf)` returns the label of one leaf: a bool for a mask, a string or
            an int for a partition. `path` is spelled as by `leaf_paths`. A function defined at
            the top of a module can be pickled and put in a configuration.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> matrices = fnopt.by_path(lambda path, leaf: leaf.ndim > 1)
        >>> fnopt.select(matrices, {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)})
        {'bias': False, 'kernel': True}
    """

    fn: Callable[[str, Any], Any] = static()

    def __post_init__(self) -> None:
        super().__post_init__()
        if callable(self.fn) and not accepts_args(self.fn, "path", None):
            name = getattr(self.fn, "__name__", self.fn)
            raise TypeError(f"by_path: {name} can't be called as fn(path, leaf).")

    def choose(self, leaves: Leaves) -> list[Any]:
        """The labels that the function gives."""
        return [self.fn(path, leaf) for path, leaf in leaves]


def _pattern_pairs(patterns: Any) -> tuple[tuple[str, Any], ...]:
    if isinstance(patterns, str):
        patterns = (patterns,)
    items = patterns.items() if isinstance(patterns, Mapping) else patterns
    if not isinstance(items, Iterable):
        items = (items,)  # refused below
    return tuple((p, True) if isinstance(p, str) else _pair(p) for p in items)


def _pair(item: Any) -> tuple[str, Any]:
    match item:
        case (str(pattern), label):
            # What has fields (dimension numbers) is for who asked for it; `select` wants labels.
            if isinstance(label, Value) or hasattr(label, "_fields"):
                return pattern, label
            return pattern, as_label(label, f"by_pattern: the label of {pattern!r}")
    raise TypeError(
        f"by_pattern: {item!r} is a {type(item).__name__}, expected patterns (strings), or a dict "
        "from pattern to label."
    )


class by_pattern(Selector):
    """Select by glob patterns on the leaf's path; the first pattern that matches decides.

    `*` matches any text, also slashes, `?` one character, `[ab]` one of a set. A leading `*/` also
    matches the empty text, so `'*/bias'` finds `'bias'` at the top too; the path of a branch
    (`'encoder'`) selects all leaves below it.

    Args:
        patterns: A pattern or several, whose leaves are labelled True; or a mapping from pattern
            to label. A value such as `fnopt.MatrixDimensionNumbers` is handed on as it is.
        default: The label of the leaves that no pattern matches. Without it they are labelled
            False if the patterns' labels are all True, else they are an error.

    Raises:
        ValueError: In use, if there is no default and no pattern matches any leaf, or one that
            is a name (without `*`, `?` and `[`) matches none.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> params = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}
        >>> fnopt.select(fnopt.by_pattern("*/bias"), params)
        {'dense': {'bias': True, 'kernel': False}}
        >>> fnopt.select(fnopt.by_pattern({"*/bias": "fast"}, default="slow"), params)
        {'dense': {'bias': 'fast', 'kernel': 'slow'}}
    """

    patterns: Any = static(convert=_pattern_pairs)
    default: Any = static(default=None)

    def choose(self, leaves: Leaves) -> list[Any]:
        """The label of the first pattern that matches, for every leaf."""
        other = self.default
        if other is None and all(label is True for _, label in self.patterns):
            other = False
        return [
            next((label for pattern, label in self.patterns if matches(path, pattern)), other)
            for path, _ in leaves
        ]

    @staticmethod
    def finds(pattern: str, positions: list[str]) -> bool:
        """Whether a pattern matches any of the paths."""
        return any(matches(position, pattern) for position in positions)

    def check(self, positions: list[str]) -> None:
        """Check that names exist and that at least one pattern matches."""
        lost = [pattern for pattern, _ in self.patterns if not self.finds(pattern, positions)]
        names = [pattern for pattern in lost if not set("*?[") & set(pattern)]
        if self.default is not None or not (names or len(lost) == len(self.patterns)):
            return
        raise ValueError(
            f"{where()}by_pattern: none of {names_text(names or lost)} matches a leaf of "
            f"{names_text(positions)}. If that is meant, say so with a default, as in "
            f"fnopt.by_pattern({lost[0]!r}, default=False)."
        )


class Labels(Selector):
    """A tree of labels by leaf path, made of a plain tree that is given as mask or labels.

    Paths instead of the tree itself make it hashable and independent of containers. Labels in a
    plain dict fit a `FrozenDict`, an nnx `State` or an Equinox module of the same names.

    Args:
        paths: The paths, spelled as by `leaf_paths`; one that names a branch labels all of its
            leaves, `''` labels all leaves of the tree.
        values: A label for every path.

    Example:
        >>> import fnopt
        >>> frozen = {"encoder": True, "head": {"kernel": False, "bias": False}}
        >>> fnopt.freeze(fnopt.sgd(0.1), frozen).mask
        Labels(paths=('encoder', 'head/bias', 'head/kernel'), values=(True, False, False))
    """

    paths: tuple[str, ...] = static(convert=tuple)
    values: tuple[Label, ...] = static(convert=tuple)

    def choose(self, leaves: Leaves) -> list[Any]:
        """For every leaf its own label, or that of the nearest branch above it."""
        known = dict(zip(self.paths, self.values, strict=True))
        found = [[known[b] for b in _branches(path) if b in known] for path, _ in leaves]
        return [labels[0] if labels else None for labels in found]

    def check(self, positions: list[str]) -> None:
        """Refuse labels for leaves that the tree lacks."""
        here = {branch for position in positions for branch in _branches(position)}
        # A position may also lie above the label: a whole branch that is None for now.
        above = set(positions)
        lost = [p for p in self.paths if p not in here and not above.intersection(_branches(p))]
        if lost:
            raise ValueError(
                f"{where()}labels are given for {names_text(lost)}, but the tree has no such "
                f"leaves; it has {names_text(positions)}."
            )


def _branches(path: str) -> list[str]:
    """The path and its ancestors, nearest first: `a/b`, `a` and the root."""
    parts = path.split("/") if path else []
    return ["/".join(parts[:n]) for n in range(len(parts), -1, -1)]
