"""Params to start from as SciPy's users write them: whole numbers, numbers in a row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import default_float, is_inexact, leaves_with_names
from fnopt.residuals._parameters import fixed, kinds_of


def floating_start(params: Any, constraints: Any = None) -> Any:
    """Params to start from: numbers in a row as a vector, whole ones as floats where fitted.

    People write `x0=[1, 1]`, and functions of an array. Constraints are by leaf: with them the
    numbers of a list stay leaves. What is held keeps its dtype. Flags and unsigned integers, which
    keys of random generators are, are no numbers to fit: they stay as they are, for others to
    refuse.

    Args:
        params: The params, a pytree.
        constraints: As in :func:`parametrised`.

    Returns:
        The same tree, in which Python's integers and arrays of signed ones are default floats; an
        array of shape `[n]` for a list or tuple of numbers.

    Raises:
        TypeError: If a constraint is none.
        ValueError: If one matches no leaf.

    Example:
        >>> from fnopt.residuals import fixed, floating_start
        >>> floating_start({"a": 1, "order": 2}, {"order": fixed()})
        {'a': Array(1., dtype=float32), 'order': 2}
        >>> floating_start([1, 2.5])
        Array([1. , 2.5], dtype=float32)
    """
    params = params if constraints else as_vector(params)
    if not any(map(_is_whole, jax.tree.leaves(params))):
        return params
    pairs, treedef = leaves_with_names(params)
    kinds = kinds_of(constraints, [path for path, _ in pairs])
    leaves = [
        jnp.asarray(leaf, default_float())
        if _is_whole(leaf) and not isinstance(kind, fixed)
        else leaf
        for kind, (_, leaf) in zip(kinds, pairs, strict=True)
    ]
    return jax.tree.unflatten(treedef, leaves)


def as_vector(tree: Any) -> Any:
    """Numbers in a list or tuple as an array of them, as in NumPy; any other tree as it is."""
    if not are_in_a_row(tree):
        return tree
    with jax.numpy_dtype_promotion("standard"):  # in a list kinds are mixed without thinking
        return jnp.asarray(tree)


def are_in_a_row(tree: Any) -> bool:
    """Whether a tree is a list or tuple, not a named one, of numbers to fit."""
    return type(tree) in (list, tuple) and len(tree) > 0 and all(map(_is_number, tree))


def _is_number(leaf: Any) -> bool:
    return (is_inexact(leaf) or _is_whole(leaf)) and jnp.ndim(leaf) == 0


def _is_whole(leaf: Any) -> bool:
    if isinstance(leaf, int):
        return not isinstance(leaf, bool)
    return jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.signedinteger)
