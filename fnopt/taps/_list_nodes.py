"""Listing the nodes of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fnopt.programs import Node
from fnopt.taps._program import trace_program

_ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


def nodes(fn: Callable[..., Any], *, scopes: bool = False) -> Callable[..., tuple[Node, ...]]:
    """List the nodes inside a function without running it.

    Args:
        fn: Any JAX function.
        scopes: Whether to list its named scopes too, besides the taps.

    Returns:
        A function of the arguments of `fn` (arrays or `jax.ShapeDtypeStruct`s) that gives a tuple
        of `Node`s in the order of the program: name, shape, dtype, and a note where a node has no
        cotangent.

    Example:
        >>> from fnopt.taps import nodes, tap
        >>> def model(w, x):
        ...     with jax.named_scope("layer"):
        ...         return jnp.tanh(tap("linear", w * x))
        >>> for node in nodes(model, scopes=True)(jnp.ones(3), jnp.ones(3)):
        ...     print(node.name, node.shape)
        linear (3,)
        scope:layer (3,)
    """

    def listed(*args: Any, **kwargs: Any) -> tuple[Node, ...]:
        leaves, treedef = jax.tree.flatten((args, kwargs))
        abstract = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, _ARRAYS)}
        found: list[Node] = []

        def look(arrays: dict[int, Any]) -> None:
            args, kwargs = jax.tree.unflatten(treedef, [arrays.get(i, x) for i, x in pairs])
            found.extend(trace_program("nodes", fn, args, kwargs, scopes=scopes).nodes)

        pairs = list(enumerate(leaves))
        jax.eval_shape(look, abstract)
        return tuple(found)

    return listed
