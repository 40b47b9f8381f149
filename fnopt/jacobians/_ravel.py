"""The one place that turns a pytree into a vector and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import check_inexact, compute_dtype, is_inexact
from fnopt.sharding import replicate, reshard_like


def ravel(tree: Any, what: str = "tree") -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    r"""Flatten a pytree to one vector.

    Args:
        tree: A pytree of floating arrays of any shapes.
        what: What the tree is (`'params'`), for the message if a leaf isn't floating.

    Returns:
        The vector of shape `[n]`, in the leaves' common dtype (at least float32), and the function
        that takes such a vector back to the tree's structure, shapes and dtypes.

    Raises:
        TypeError: If a leaf is not floating; the message names it.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.jacobians import ravel
        >>> vector, unravel = ravel({"a": jnp.ones(2), "b": jnp.zeros(())})
        >>> vector.shape, unravel(vector)["a"].shape
        ((3,), (2,))
    """
    check_inexact(tree, what, fitted=True)
    leaves, treedef = jax.tree.flatten(tree)
    shapes = [jnp.shape(leaf) for leaf in leaves]
    dtypes = [jnp.result_type(leaf) for leaf in leaves]
    places = [jax.typeof(leaf) for leaf in leaves]
    dtype = compute_dtype(*dtypes)
    sizes = [math.prod(shape) for shape in shapes]

    def unravel(vector: jax.Array) -> Any:
        # One equation for all leaves; and its transpose, a concatenation, another one.
        parts = jax.lax.split(vector, sizes)
        rows = zip(parts, shapes, dtypes, places, strict=True)
        return jax.tree.unflatten(
            treedef,
            [reshard_like(p.reshape(shape).astype(dtype), leaf) for p, shape, dtype, leaf in rows],
        )

    if not leaves:
        return jnp.zeros((0,), dtype), unravel
    # Whole on every device: what solvers do with it would gather it again and again.
    parts = [jnp.ravel(replicate(jnp.asarray(leaf, dtype))) for leaf in leaves]
    return jnp.concatenate(parts), unravel


def held_as_zeros(tree: Any) -> Any:
    """The tree with zeros for leaves that aren't floating: those that a fit holds."""
    leaves, treedef = jax.tree.flatten(tree)
    dtype = compute_dtype(*(jnp.result_type(leaf) for leaf in leaves if is_inexact(leaf)))
    return jax.tree.unflatten(
        treedef,
        [leaf if is_inexact(leaf) else jnp.zeros(jnp.shape(leaf), dtype) for leaf in leaves],
    )


def ravel_with_held(tree: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """The vector of :func:`ravel`, with zeros for leaves that aren't floating and are held.

    Args:
        tree: A pytree of arrays.

    Returns:
        The vector, and the function back to the tree.
    """
    x, unravel = ravel(held_as_zeros(tree))
    leaves, treedef = jax.tree.flatten(tree)

    def back(vector: jax.Array) -> Any:
        pairs = zip(leaves, jax.tree.leaves(unravel(vector)), strict=True)
        return jax.tree.unflatten(treedef, [v if is_inexact(leaf) else leaf for leaf, v in pairs])

    return x, back
