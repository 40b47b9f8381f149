"""Random trees."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import check_key


def split_key_like(rng_key: Any, target_tree: Any) -> Any:
    """A PRNG key for every leaf of a tree.

    Args:
        rng_key: One PRNG key.
        target_tree: A tree.

    Returns:
        A tree of the same structure with keys as leaves.

    Raises:
        TypeError: If it isn't one key.

    Example:
        >>> from fnopt import tree
        >>> tree.split_key_like(jax.random.key(0), {"w": jnp.ones(2)})["w"].shape
        ()
    """
    check_key(rng_key, "tree.split_key_like")
    treedef = jax.tree.structure(target_tree)
    keys = jax.random.split(rng_key, treedef.num_leaves) if treedef.num_leaves else ()
    return jax.tree.unflatten(treedef, list(keys))


def random_like(
    rng_key: Any,
    target_tree: Any,
    sampler: Callable[..., Any] = jax.random.normal,
    dtype: Any = None,
) -> Any:
    """A tree of random numbers.

    Args:
        rng_key: One PRNG key.
        target_tree: A tree of arrays.
        sampler: `sampler(key, shape, dtype)`; one with an `out_sharding` parameter gets the
            sharding of the leaf too.
        dtype: The dtype; by default that of each leaf.

    Returns:
        A tree of the same structure and shapes.

    Example:
        >>> from fnopt import tree
        >>> tree.random_like(jax.random.key(0), {"w": jnp.ones((2, 3))})["w"].shape
        (2, 3)
    """
    sharded = "out_sharding" in inspect.signature(sampler).parameters

    def sample_leaf(leaf: Any, key: Any) -> jax.Array:
        leaf = jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
        extra = {"out_sharding": jax.typeof(leaf).sharding} if sharded else {}
        return sampler(key, leaf.shape, leaf.dtype if dtype is None else dtype, **extra)

    return jax.tree.map(sample_leaf, target_tree, split_key_like(rng_key, target_tree))


def unwrap_random_key_data(input_tree: Any) -> Any:
    """A tree with typed PRNG keys as plain arrays: for files and comparisons.

    Args:
        input_tree: Any tree.

    Returns:
        The same with `jax.random.key_data` of every key; all other leaves as they are.

    Example:
        >>> from fnopt import tree
        >>> tree.unwrap_random_key_data({"key": jax.random.key(7)})
        {'key': Array([0, 7], dtype=uint32)}
    """

    def unwrap_leaf(x: Any) -> Any:
        typed = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if typed else x

    return jax.tree.map(unwrap_leaf, input_tree)
