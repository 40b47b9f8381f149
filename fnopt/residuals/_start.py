"""Whole numbers among the params to start from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import default_float, leaves_with_names
from fnopt.residuals._parameters import fixed, kinds_of


def floating_start(params: Any, constraints: Any = None) -> Any:
    """Params to start from, with whole numbers as floats where they are fitted.

    People write `p0=[1, 1]`. What is held keeps its dtype. Flags and unsigned integers, which keys
    of random generators are, are no numbers to fit: they stay as they are, for others to refuse.

    Args:
        params: The params, a pytree.
        constraints: As in :func:`parametrised`.

    Returns:
        The same tree, in which Python's integers and arrays of signed ones are default floats.

    Raises:
        TypeError: If a constraint is none.
        ValueError: If one matches no leaf.

    Example:
        >>> from fnopt.residuals import fixed, floating_start
        >>> floating_start({"a": 1, "order": 2}, {"order": fixed()})
        {'a': Array(1., dtype=float32), 'order': 2}
    """
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


def _is_whole(leaf: Any) -> bool:
    if isinstance(leaf, int):
        return not isinstance(leaf, bool)
    return jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.signedinteger)
