"""Selection of leaves by masks and labels."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.core import leaf_text, leaves_with_names, names_text, where
from fnopt.transforms._selectors import Label, Labels, Selector, as_label, by_pattern


def _labels_of_tree(tree: Any, what: str) -> Labels:
    known: dict[str, Label] = {}
    for path, leaf in leaves_with_names(tree)[0]:
        label = as_label(leaf, f"{what}: {leaf_text(path)}")
        if known.setdefault(path, label) != label:
            raise ValueError(
                f"{where()}{what}: {leaf_text(path)} stands twice, with different labels."
            )
    return Labels(tuple(sorted(known)), tuple(known[path] for path in sorted(known)))


def as_selector(given: Any, what: str = "labels") -> Selector:
    """A selector as it is; a tree of labels as `Labels`.

    Args:
        given: A selector, or a tree of labels with the structure of the params or a prefix of it.
            A tree is a tree also if it can be called, as an Equinox module can.
        what: What it is, for the message of an error.

    Returns:
        A selector.

    Raises:
        TypeError: For a bare function, and for a leaf that isn't a label.
    """
    if isinstance(given, Selector):
        return given
    if callable(given) and jax.tree.leaves(given) == [given]:
        name = getattr(given, "__qualname__", repr(given))
        raise TypeError(
            f"{where()}{what} = {name} is a function: write fnopt.by_path(fn), where "
            "fn(path, leaf) gives the label of one leaf. A function of all params, as optax takes "
            f"it, is called first: {what}=fn(params)."
        )
    return _labels_of_tree(given, what)


def as_mask(given: Any) -> Selector:
    """The user's `mask` as a selector; a bare string is a pattern, several are a list of them.

    Args:
        given: A selector, a tree of bools with the structure of the params or a prefix of it, or
            a pattern such as `'*/bias'`, or several.

    Returns:
        A selector. Use it as `convert` of a static field, and `select_mask` in `init` and
        `update`.

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
    """The user's `labels` of a partition as a selector; one label is for all leaves."""
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
        ValueError: If leaves have no label (they are listed), or the selector fits no leaf.
        TypeError: If the selector is a bare function or a bare pattern, or a label is no string,
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
        # A node that holds nothing is a leaf that a wrapper or a filter has taken out.
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
    """Labels every leaf of a tree with True or False; anything else is a TypeError."""
    selected = select(as_mask(mask), tree)
    for path, value in leaves_with_names(selected)[0]:
        _check_bool(path, value)
    return selected
