"""Conversion of an initial guess to floating arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import leaves_with_names
from fnopt.numerics import default_float, is_inexact
from fnopt.residuals._parameters import fixed, leaf_constraints


def floating_start(params: Any, constraints: Any = None) -> Any:
    """Convert a list of numbers to a vector, and free integers of an initial guess to floats.

    Users pass `x0=[1, 1]` for a function of an array. With constraints, the numbers of a list stay
    separate leaves, because constraints refer to leaves. Fixed params keep their dtype. Booleans
    and unsigned integers, such as random keys, aren't converted, because they aren't parameters.

    Args:
        params: The initial guess, a pytree.
        constraints: As in :func:`parametrize`.

    Returns:
        An array of shape `[n]` for a list or tuple of numbers without constraints. Otherwise a tree
        like `params`, with floats in place of Python integers and signed integer arrays.

    Raises:
        TypeError: If a constraint isn't a :class:`Constraint`.
        ValueError: If a constraint matches no leaf.

    Example:
        >>> from fnopt.residuals import fixed, floating_start
        >>> floating_start({"a": 1, "order": 2}, {"order": fixed()})
        {'a': Array(1., dtype=float32), 'order': 2}
        >>> floating_start([1, 2.5])
        Array([1. , 2.5], dtype=float32)
    """
    params = params if constraints else as_vector(params)
    if not any(map(_is_signed_integer, jax.tree.leaves(params))):
        return params
    pairs, treedef = leaves_with_names(params)
    kinds = leaf_constraints(constraints, [path for path, _ in pairs])
    leaves = [
        jnp.asarray(leaf, default_float())
        if _is_signed_integer(leaf) and not isinstance(kind, fixed)
        else leaf
        for kind, (_, leaf) in zip(kinds, pairs, strict=True)
    ]
    return jax.tree.unflatten(treedef, leaves)


def as_vector(tree: Any) -> Any:
    """Convert a list or tuple of numbers to an array, and return other trees unchanged."""
    if not is_number_list(tree):
        return tree
    # Users mix integers and floats in a list, which strict promotion would reject.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.asarray(tree)


def is_number_list(tree: Any) -> bool:
    """Whether a tree is a list or tuple of numbers."""
    return type(tree) in (list, tuple) and len(tree) > 0 and all(map(_is_number, tree))


def _is_number(leaf: Any) -> bool:
    return (is_inexact(leaf) or _is_signed_integer(leaf)) and jnp.ndim(leaf) == 0


def _is_signed_integer(leaf: Any) -> bool:
    if isinstance(leaf, int):
        return not isinstance(leaf, bool)
    return jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.signedinteger)
