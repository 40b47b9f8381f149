"""Selection of leaves by path, pattern, or a tree of labels."""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from fnopt.core import Value, static
from fnopt.errors import (
    accepts_args,
    leaf_text,
    leaves_with_names,
    matches,
    names_text,
    type_text,
    where,
)


def as_selector(labels: Any, what: str = "labels") -> Selector:
    """Convert a tree (or prefix tree) of labels to `Labels`; return a selector unchanged."""
    if isinstance(labels, Selector):
        return labels
    # An Equinox module is callable too, but a module is a tree of labels, not a leaf.
    if callable(labels) and jax.tree.leaves(labels) == [labels]:
        name = getattr(labels, "__qualname__", repr(labels))
        raise TypeError(
            f"{where()}{what} = {name} is a function, expected a tree or a selector. Write "
            "fnopt.by_path(fn), where fn(path, leaf) returns the label of a leaf. If the function "
            f"takes all params, as in optax, pass its result: {what}=fn(params)."
        )
    label_of: dict[str, Label] = {}
    for path, leaf in leaves_with_names(labels)[0]:
        label = as_label(leaf, f"{what}: {leaf_text(path)}")
        if label_of.setdefault(path, label) != label:
            text = f"{leaf_text(path)} is listed twice, with different labels"
            raise ValueError(f"{where()}{what}: {text}, expected one label per path.")
    return Labels(tuple(sorted(label_of)), tuple(label_of[path] for path in sorted(label_of)))


def as_mask(mask: Any) -> Selector:
    """Convert the `mask` argument to a selector; strings are patterns.

    Args:
        mask: A selector, a tree of bools (or a prefix tree), or patterns such as `'*/bias'`.

    Returns:
        A selector, for `convert` of a static field; `init` and `update` call `select_mask`.

    Raises:
        TypeError: For a plain function, and for a leaf that isn't a bool.
    """
    are_patterns = isinstance(mask, list | tuple) and mask and all(isinstance(p, str) for p in mask)
    if isinstance(mask, str) or are_patterns:
        return by_pattern(mask)
    selector = as_selector(mask, "mask")
    if isinstance(selector, Labels):
        for path, value in zip(selector.paths, selector.values, strict=True):
            _check_bool(path, value)
    return selector


def as_labels(labels: Any) -> Selector:
    """Convert the `labels` of a partition to a selector; one label applies to all leaves."""
    if isinstance(labels, str) and set("*?[/") & set(labels):
        raise TypeError(
            f"labels = {labels!r} looks like a pattern, expected a tree of labels, one label for "
            f"all leaves, fnopt.by_path(fn), or fnopt.by_pattern({{{labels!r}: label, ...}})."
        )
    if isinstance(labels, (str, int)):
        return by_pattern({"*": labels}, default=labels)
    return as_selector(labels, "labels")


def _check_bool(path: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(
            f"{where()}mask: {leaf_text(path)} has the label {value!r}, expected True or False."
        )


def select(selector: Any, tree: Any) -> Any:
    """Label every leaf of a tree.

    Args:
        selector: `by_path`, `by_pattern`, or a tree of labels with the structure of `tree` or a
            prefix of it; containers may differ as long as the leaf paths agree.
        tree: A tree of arrays, which may be abstract or traced.

    Returns:
        A tree of the same structure, with a string or bool in place of every leaf.

    Raises:
        ValueError: If leaves have no label, or the selector matches no leaf.
        TypeError: If the selector is a plain function or pattern, or a label isn't a string, int or
            bool.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> params = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "scale": 1.0}
        >>> fnopt.select({"dense": "slow", "scale": "fast"}, params)
        {'dense': {'bias': 'slow', 'kernel': 'slow'}, 'scale': 'fast'}
    """
    selector = as_labels(selector)
    leaves, treedef = leaves_with_names(tree)
    if leaves:
        # Empty nodes count as leaves, because wrappers and filters replace leaves by None or ().
        is_empty = lambda node: node is None or (isinstance(node, (tuple, list, dict)) and not node)  # noqa: E731
        selector.check([path for path, _ in leaves_with_names(tree, is_leaf=is_empty)[0]])
    labels = selector.choose(leaves)
    unlabeled = [path for (path, _), label in zip(leaves, labels, strict=True) if label is None]
    if unlabeled:
        raise ValueError(
            f"{where()}leaves without a label: {names_text(unlabeled)}, expected a label for every "
            "leaf. Add labels, or pass default=... to by_pattern."
        )
    pairs = zip(leaves, labels, strict=True)
    return treedef.unflatten(
        [as_label(x, f"the label of {leaf_text(path)}") for (path, _), x in pairs]
    )


def select_mask(mask: Any, tree: Any) -> Any:
    """Label every leaf of a tree with True or False; raise a TypeError for other labels."""
    bools = select(as_mask(mask), tree)
    for path, value in leaves_with_names(bools)[0]:
        _check_bool(path, value)
    return bools


Label = str | bool | int
"""Value that a selector assigns to a leaf: a bool in a mask, a name or number in a partition."""

Leaves = list[tuple[str, Any]]
"""The leaves of a tree with their paths."""


def as_label(label: Any, what: str) -> Label:
    """Convert a label to str, bool or int.

    Boolean scalars of NumPy and JAX are converted to `bool`. Other hashable objects, such as enum
    members, are converted to text. Floats raise an error, because they are rarely meant as labels.
    """
    if isinstance(label, (str, bool, int)) and not isinstance(label, enum.Enum):
        return label
    if _has_text(label):
        return str(label)
    if getattr(label, "dtype", None) == np.bool_ and not isinstance(label, Tracer):
        if np.ndim(label) == 0:
            return bool(label)
        raise TypeError(
            f"{where()}{what} is an array of shape {np.shape(label)}, expected one label for the "
            "whole leaf. To mask elements, multiply the gradients by the mask."
        )
    prefix = "a traced " if isinstance(label, Tracer) else ""
    is_array = hasattr(label, "dtype")
    text = prefix + type_text(label) if is_array else f"{label!r}, a {type(label).__name__}"
    raise TypeError(
        f"{where()}{what} is {text}, expected a bool, a string, an int or a member of an enum. "
        "Compute labels from the path, shape and dtype."
    )


def _has_text(label: Any) -> bool:
    """Whether a label is an object, such as an enum member, that its text identifies."""
    is_number = hasattr(label, "dtype") or isinstance(label, (float, complex))
    return isinstance(label, Hashable) and not (callable(label) or is_number)


class Selector(Value):
    """Base class of values that label every leaf of a tree by its path, shape and dtype.

    The subclasses are `by_path` (a function), `by_pattern` (patterns on the path) and `Labels` (a
    tree of labels). You can compare, hash, print and pickle a selector, and store it in a
    configuration.

    Example:
        >>> import fnopt
        >>> isinstance(fnopt.by_pattern("*/bias"), fnopt.Selector)
        True
    """

    def choose(self, leaves: Leaves) -> list[Any]:
        """Return a label for every leaf; None for a leaf that the selector doesn't cover."""
        raise NotImplementedError(f"{type(self).__name__} must define choose(self, leaves)")

    def check(self, positions: list[str]) -> None:
        """Raise a ValueError if the selector doesn't match a tree with these paths."""


class by_path(Selector):
    """Select by a function of the leaf's path and the leaf.

    The function is called while JAX traces, so it can use the path, shape and dtype, but not the
    values.

    Args:
        fn: `fn(path, leaf)` returns the label of one leaf: a bool for a mask, a string or
            an int for a partition. `path` is the path in `leaf_paths`. A function defined at
            module level can be pickled and stored in a configuration.

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
            text = f"by_path: {name} can't be called as fn(path, leaf)"
            raise TypeError(f"{text}, expected a function of two arguments.")

    def choose(self, leaves: Leaves) -> list[Any]:
        """Return the labels that the function returns."""
        return [self.fn(path, leaf) for path, leaf in leaves]


def _pattern_pairs(patterns: Any) -> tuple[tuple[str, Any], ...]:
    if isinstance(patterns, str):
        patterns = (patterns,)
    items = patterns.items() if isinstance(patterns, Mapping) else patterns
    if not isinstance(items, Iterable):
        items = (items,)  # `_check_pair` raises the error
    return tuple((p, True) if isinstance(p, str) else _check_pair(p) for p in items)


def _check_pair(item: Any) -> tuple[str, Any]:
    if not (isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str)):
        raise TypeError(
            f"by_pattern: {item!r} is a {type(item).__name__}, expected patterns (strings), or a "
            "dict from pattern to label."
        )
    pattern, label = item
    # Values with fields, such as dimension numbers, are passed to the transform unchanged.
    has_fields = isinstance(label, Value) or hasattr(label, "_fields")
    what = f"by_pattern: the label of {pattern!r}"
    return pattern, label if has_fields else as_label(label, what)


class by_pattern(Selector):
    """Select by glob patterns on the leaf's path; the first matching pattern applies.

    `*` matches any text, including slashes, `?` matches one character, `[ab]` matches one of a set.
    A leading `*/` also matches the empty text, so `'*/bias'` also matches `'bias'` at the top
    level. The path of a branch (`'encoder'`) selects all leaves of the branch.

    Args:
        patterns: One or several patterns, whose leaves are labeled True, or a mapping from pattern
            to label. A label such as `fnopt.MatrixDimensionNumbers` is used unchanged.
        default: The label of the leaves that no pattern matches. Without a default, these leaves
            are labeled False if the label of every pattern is True; otherwise they raise an error.

    Raises:
        ValueError: From `select` without a default, if no pattern matches, or if a pattern without
            `*`, `?` and `[` doesn't match.

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
        """Return the label of the first matching pattern for every leaf."""
        default = self.default
        if default is None and all(label is True for _, label in self.patterns):
            default = False
        return [
            next((label for pattern, label in self.patterns if matches(path, pattern)), default)
            for path, _ in leaves
        ]

    @staticmethod
    def finds(pattern: str, positions: list[str]) -> bool:
        """Whether a pattern matches any of the paths."""
        return any(matches(position, pattern) for position in positions)

    def check(self, positions: list[str]) -> None:
        """Check that patterns without wildcards match, and that at least one pattern matches."""
        unmatched = [pattern for pattern, _ in self.patterns if not self.finds(pattern, positions)]
        names = [pattern for pattern in unmatched if not set("*?[") & set(pattern)]
        if self.default is not None or not (names or len(unmatched) == len(self.patterns)):
            return
        raise ValueError(
            f"{where()}by_pattern: the patterns {names_text(names or unmatched)} match no leaf, "
            f"expected patterns for some of the leaves {names_text(positions)}. If no match is "
            f"intended, pass a default: fnopt.by_pattern({unmatched[0]!r}, default=False)."
        )


class Labels(Selector):
    """Labels of leaves, stored with the leaf paths; `mask` and `labels` arguments become `Labels`.

    The stored paths are hashable and independent of containers. Labels in a plain dict match a
    `FrozenDict`, an nnx `State` or an Equinox module with the same names.

    Args:
        paths: The paths, as in `leaf_paths`. The path of a branch labels all leaves of the branch,
            and `''` labels all leaves of the tree.
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
        """Return the label of every leaf, or of the nearest branch above the leaf."""
        values = dict(zip(self.paths, self.values, strict=True))
        branches = [[b for b in _branches(path) if b in values] for path, _ in leaves]
        return [values[names[0]] if names else None for names in branches]

    def check(self, positions: list[str]) -> None:
        """Raise an error for labels of leaves that aren't in the tree."""
        branches = {branch for position in positions for branch in _branches(position)}
        # A label may also belong to a leaf of a branch that a wrapper has replaced by None.
        leaves = set(positions)
        unmatched = [p for p in self.paths if p not in branches and leaves.isdisjoint(_branches(p))]
        if unmatched:
            raise ValueError(
                f"{where()}got labels for the paths {names_text(unmatched)}, which the tree lacks, "
                f"expected some of the paths {names_text(positions)}."
            )


def _branches(path: str) -> list[str]:
    """List a path and its ancestors, nearest first: `a/b`, `a` and the root."""
    parts = path.split("/") if path else []
    return ["/".join(parts[:n]) for n in range(len(parts), -1, -1)]
