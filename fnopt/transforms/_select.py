"""Selection of leaves: by path, pattern, or a tree of labels."""

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


def as_selector(given: Any, what: str = "labels") -> Selector:
    """Convert a tree (or prefix tree) of labels to `Labels`; return a selector unchanged."""
    if isinstance(given, Selector):
        return given
    # An Equinox module can be called, too, but it is a tree of labels, not a leaf.
    if callable(given) and jax.tree.leaves(given) == [given]:
        name = getattr(given, "__qualname__", repr(given))
        raise TypeError(
            f"{where()}{what} = {name} is a function: write fnopt.by_path(fn), where "
            "fn(path, leaf) gives the label of one leaf. Call a function of all params, "
            f"as optax takes it, first: {what}=fn(params)."
        )
    known: dict[str, Label] = {}
    for path, leaf in leaves_with_names(given)[0]:
        label = as_label(leaf, f"{what}: {leaf_text(path)}")
        if known.setdefault(path, label) != label:
            raise ValueError(
                f"{where()}{what}: {leaf_text(path)} is listed twice, with different labels."
            )
    return Labels(tuple(sorted(known)), tuple(known[path] for path in sorted(known)))


def as_mask(given: Any) -> Selector:
    """Convert the `mask` argument to a selector; strings are patterns.

    Args:
        given: A selector, a tree of bools or a prefix of one, or patterns such as `'*/bias'`.

    Returns:
        A selector, for `convert` of a static field; `init` and `update` call `select_mask`.

    Raises:
        TypeError: For a bare function, and for a leaf that isn't a bool.
    """
    several = isinstance(given, list | tuple) and given and all(isinstance(p, str) for p in given)
    if isinstance(given, str) or several:
        return by_pattern(given)
    mask = as_selector(given, "mask")
    if isinstance(mask, Labels):
        for path, value in zip(mask.paths, mask.values, strict=True):
            _check_bool(path, value)
    return mask


def as_labels(given: Any) -> Selector:
    """Convert the `labels` of a partition to a selector; one label applies to all leaves."""
    if isinstance(given, str) and set("*?[/") & set(given):
        raise TypeError(
            f"labels = {given!r} looks like a pattern, expected a tree of labels, fnopt.by_path(fn)"
            f", fnopt.by_pattern({{{given!r}: label, ...}}), or one label for all leaves."
        )
    if isinstance(given, (str, int)):
        return by_pattern({"*": given}, default=given)
    return as_selector(given, "labels")


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
        tree: A tree of arrays (abstract or traced ones too).

    Returns:
        A tree of the same structure, with a string or bool in place of every leaf.

    Raises:
        ValueError: If leaves have no label (they are listed), or the selector matches no leaf.
        TypeError: If the selector is a bare function or a bare pattern, or a label isn't a string,
            int or bool.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> params = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "scale": 1.0}
        >>> fnopt.select({"dense": "slow", "scale": "fast"}, params)
        {'dense': {'bias': 'slow', 'kernel': 'slow'}, 'scale': 'fast'}
    """
    selector = as_labels(selector)
    leaves, treedef = leaves_with_names(tree)
    if leaves:
        # A node without leaves is a leaf that a wrapper or a filter has taken out.
        is_empty = lambda node: node is None or (isinstance(node, (tuple, list, dict)) and not node)  # noqa: E731
        selector.check([path for path, _ in leaves_with_names(tree, is_leaf=is_empty)[0]])
    chosen = selector.choose(leaves)
    unlabelled = [path for (path, _), label in zip(leaves, chosen, strict=True) if label is None]
    if unlabelled:
        raise ValueError(
            f"{where()}leaves without a label: {names_text(unlabelled)}. Give every leaf one "
            "(by_pattern takes default=...)."
        )
    pairs = zip(leaves, chosen, strict=True)
    return treedef.unflatten(
        [as_label(x, f"the label of {leaf_text(path)}") for (path, _), x in pairs]
    )


def select_mask(mask: Any, tree: Any) -> Any:
    """Label every leaf of a tree with True or False; raise a TypeError for other labels."""
    selected = select(as_mask(mask), tree)
    for path, value in leaves_with_names(selected)[0]:
        _check_bool(path, value)
    return selected


Label = str | bool | int
"""Value that a selector assigns to a leaf: a bool in a mask, a name or number in a partition."""

Leaves = list[tuple[str, Any]]
"""The leaves of a tree with their paths."""


def as_label(label: Any, what: str) -> Label:
    """Convert a label to str, bool or int.

    Boolean scalars of NumPy and JAX are converted to `bool`. Other hashable objects, such as enum
    members, are identified by their text. Floats are rejected, because they are probably a mask or
    a factor.
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
            "whole leaf; for a mask per element, multiply the gradients by it."
        )
    traced = "a traced " if isinstance(label, Tracer) else ""
    array = hasattr(label, "dtype")
    came = traced + type_text(label) if array else f"{label!r}, a {type(label).__name__}"
    raise TypeError(
        f"{where()}{what} is {came}, expected a bool, a string or an int (or a member of an enum), "
        "decided from the path, shape and dtype."
    )


def _has_text(label: Any) -> bool:
    others = callable(label) or hasattr(label, "dtype") or isinstance(label, (float, complex))
    return isinstance(label, Hashable) and not others


class Selector(Value):
    """Label every leaf of a tree by its path, shape and dtype.

    The kinds are `by_path` (a function), `by_pattern` (patterns on the path) and `Labels` (a tree
    of labels, made from a plain tree). A selector is a value. You can compare, hash, print and
    pickle it, and store it in a configuration.

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
            an int for a partition. `path` is spelled as by `leaf_paths`. A function defined at
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
            raise TypeError(f"by_path: {name} can't be called as fn(path, leaf).")

    def choose(self, leaves: Leaves) -> list[Any]:
        """Return the labels that the function returns."""
        return [self.fn(path, leaf) for path, leaf in leaves]


def _pattern_pairs(patterns: Any) -> tuple[tuple[str, Any], ...]:
    if isinstance(patterns, str):
        patterns = (patterns,)
    items = patterns.items() if isinstance(patterns, Mapping) else patterns
    if not isinstance(items, Iterable):
        items = (items,)  # rejected below
    return tuple((p, True) if isinstance(p, str) else _check_pair(p) for p in items)


def _check_pair(item: Any) -> tuple[str, Any]:
    if not (isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str)):
        raise TypeError(
            f"by_pattern: {item!r} is a {type(item).__name__}, expected patterns (strings), or a "
            "dict from pattern to label."
        )
    pattern, label = item
    # Values with fields, such as dimension numbers, are for the transform; `select` wants labels.
    has_fields = isinstance(label, Value) or hasattr(label, "_fields")
    what = f"by_pattern: the label of {pattern!r}"
    return pattern, label if has_fields else as_label(label, what)


class by_pattern(Selector):
    """Select by glob patterns on the leaf's path; the first matching pattern applies.

    `*` matches any text, including slashes, `?` one character, `[ab]` one of a set. A leading `*/`
    also matches the empty text, so `'*/bias'` also matches `'bias'` at the top level. The path of a
    branch (`'encoder'`) selects all leaves of the branch.

    Args:
        patterns: A pattern or several, whose leaves are labeled True; or a mapping from pattern to
            label. A value such as `fnopt.MatrixDimensionNumbers` is used unchanged.
        default: The label of the leaves that no pattern matches. Without a default these leaves are
            labeled False if the patterns' labels are all True; otherwise they raise an error.

    Raises:
        ValueError: In use without a default, if no pattern matches any leaf, or if a pattern that
            is a name (without `*`, `?` and `[`) matches no leaf.

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
        """Return the label of the first matching pattern, for every leaf."""
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
            f"{names_text(positions)}. If this is intended, pass a default, as in "
            f"fnopt.by_pattern({lost[0]!r}, default=False)."
        )


class Labels(Selector):
    """A tree of labels by leaf path, made from a plain tree of masks or labels.

    Stored paths make `Labels` hashable and independent of containers. Labels in a plain dict match
    a `FrozenDict`, an nnx `State` or an Equinox module with the same names.

    Args:
        paths: The paths, spelled as by `leaf_paths`; the path of a branch labels all of its leaves,
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
        known = dict(zip(self.paths, self.values, strict=True))
        found = [[known[b] for b in _branches(path) if b in known] for path, _ in leaves]
        return [labels[0] if labels else None for labels in found]

    def check(self, positions: list[str]) -> None:
        """Raise an error for labels of leaves that aren't in the tree."""
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
