"""Trees with the structure of other trees: constant, cast, and random trees."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.errors import check_choice, check_key, leaf_text, leaves_with_names
from fnopt.numerics import default_float
from fnopt.sharding import sharded_full_like
from fnopt.tree._arithmetic import names_bad_leaf, promoted_dtype


def _strong_dtype(leaf: Any, dtype: Any) -> Any:
    """Return `dtype`, or the dtype of the leaf if `dtype` is None; never weakly typed."""
    return jnp.result_type(leaf) if dtype is None else jnp.dtype(dtype)


@names_bad_leaf
def zeros_like(tree: Any, dtype: Any = None) -> Any:
    """A tree of zeros.

    Args:
        tree: A tree of arrays.
        dtype: The dtype; by default the dtype of each leaf.

    Returns:
        A tree with the structure, shapes and shardings of `tree`.

    Example:
        >>> from fnopt import tree
        >>> tree.zeros_like({"w": jnp.ones(2)})
        {'w': Array([0., 0.], dtype=float32)}
    """
    return jax.tree.map(lambda x: sharded_full_like(x, 0, _strong_dtype(x, dtype)), tree)


@names_bad_leaf
def ones_like(tree: Any, dtype: Any = None) -> Any:
    """A tree of ones.

    Args:
        tree: A tree of arrays.
        dtype: The dtype; by default the dtype of each leaf.

    Returns:
        A tree with the structure, shapes and shardings of `tree`.

    Example:
        >>> from fnopt import tree
        >>> tree.ones_like({"w": jnp.zeros(2)})
        {'w': Array([1., 1.], dtype=float32)}
    """
    return jax.tree.map(lambda x: sharded_full_like(x, 1, _strong_dtype(x, dtype)), tree)


@names_bad_leaf
def full_like(tree: Any, fill_value: Any, dtype: Any = None) -> Any:
    """A tree filled with one number.

    Args:
        tree: A tree of arrays.
        fill_value: The number.
        dtype: The dtype; by default the dtype of each leaf.

    Returns:
        A tree with the structure, shapes and shardings of `tree`.

    Example:
        >>> from fnopt import tree
        >>> tree.full_like({"w": jnp.zeros(2)}, 3.0)
        {'w': Array([3., 3.], dtype=float32)}
    """

    def fill_leaf(x: Any) -> jax.Array:
        dt = _strong_dtype(x, dtype)
        return sharded_full_like(x, jnp.asarray(fill_value).astype(dt), dt)

    return jax.tree.map(fill_leaf, tree)


@names_bad_leaf
def batch_shape(tree: Any, shape: tuple[int, ...] = ()) -> Any:
    """Broadcast a tree along new leading axes.

    Args:
        tree: A tree of arrays.
        shape: The lengths of the new axes.

    Returns:
        A tree with leaves of shape `(*shape, *leaf.shape)`, an argument for `jax.vmap`.

    Example:
        >>> from fnopt import tree
        >>> tree.batch_shape({"w": jnp.ones(2)}, (3,))["w"].shape
        (3, 2)
    """

    def repeat_leaf(x: Any) -> jax.Array:
        x = jnp.asarray(x, _strong_dtype(x, None))
        return jnp.broadcast_to(x, (*shape, *x.shape))

    return jax.tree.map(repeat_leaf, tree)


@names_bad_leaf
def cast(tree: Any, dtype: Any) -> Any:
    """Cast a tree to another dtype.

    Args:
        tree: A tree of arrays.
        dtype: The dtype; None changes nothing.

    Returns:
        A tree of the same structure.

    Example:
        >>> from fnopt import tree
        >>> tree.cast({"w": jnp.ones(2)}, jnp.bfloat16)
        {'w': Array([1, 1], dtype=bfloat16)}
    """
    return tree if dtype is None else jax.tree.map(lambda x: jnp.asarray(x).astype(dtype), tree)


def cast_like(tree: Any, other_tree: Any) -> Any:
    """Cast a tree to the dtypes of another tree.

    Args:
        tree: A tree of arrays.
        other_tree: A tree of the same structure; leaves whose counterpart isn't an array aren't
            cast.

    Returns:
        A tree of the structure of `tree`.

    Example:
        >>> from fnopt import tree
        >>> tree.cast_like({"w": jnp.ones(2)}, {"w": jnp.ones(2, jnp.bfloat16)})
        {'w': Array([1, 1], dtype=bfloat16)}
    """

    def cast_leaf(x: Any, other: Any) -> Any:
        return jnp.asarray(x).astype(other.dtype) if hasattr(other, "dtype") else x

    return jax.tree.map(cast_leaf, tree, other_tree)


@names_bad_leaf
def dtype(tree: Any, mixed_dtype_handler: str | None = None) -> Any:
    """The common dtype of a tree.

    Args:
        tree: A tree of arrays.
        mixed_dtype_handler: How to handle several dtypes: `'promote'` returns JAX's promoted dtype.
            `'highest'` returns the dtype to which all others promote. `'lowest'` returns the dtype
            that promotes to all others. None raises an error.

    Returns:
        A NumPy dtype; JAX's default float for an empty tree.

    Raises:
        ValueError: If the dtypes differ and `mixed_dtype_handler` is None, or if there is no
            highest or lowest dtype.

    Example:
        >>> from fnopt import tree
        >>> x = {"a": jnp.ones(2), "b": jnp.ones(2, jnp.bfloat16)}
        >>> tree.dtype(x, "lowest"), tree.dtype(x, "promote")
        (dtype(bfloat16), dtype('float32'))
    """
    dtypes = {name: jnp.asarray(x).dtype for name, x in leaves_with_names(tree)[0]}
    if not dtypes:
        return default_float()
    first = next(iter(dtypes))
    if mixed_dtype_handler is None:
        for name, dt in dtypes.items():
            if dt != dtypes[first]:
                raise ValueError(
                    f"tree.dtype: {leaf_text(name)} has dtype {dt} and {leaf_text(first)} has "
                    f"dtype {dtypes[first]}, expected equal dtypes. Cast the leaves, or pass "
                    "mixed_dtype_handler."
                )
        return dtypes[first]
    check_choice(
        mixed_dtype_handler, ("promote", "highest", "lowest"), "mixed_dtype_handler", "tree.dtype"
    )
    if mixed_dtype_handler == "promote":
        return promoted_dtype(*dtypes.values())
    return functools.reduce(
        lambda a, b: _sort_dtypes(a, b)[mixed_dtype_handler == "highest"], dtypes.values()
    )


def _sort_dtypes(a: Any, b: Any) -> tuple[Any, Any]:
    """Sort two dtypes: the lower dtype, then the higher dtype."""
    promoted = promoted_dtype(a, b)
    if promoted not in (a, b):
        raise ValueError(
            f"tree.dtype: got leaves of {a} and {b}, expected dtypes of which one promotes to the "
            "other. Pass mixed_dtype_handler='promote'."
        )
    return (b, a) if promoted == a else (a, b)


def split_key_like(rng_key: Any, target_tree: Any) -> Any:
    """Split a PRNG key into one key per leaf of a tree.

    Args:
        rng_key: One PRNG key.
        target_tree: A tree.

    Returns:
        A tree of the same structure with keys as leaves.

    Raises:
        TypeError: If `rng_key` isn't one key.

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
    """A tree of random numbers, from a separate key for each leaf.

    Args:
        rng_key: One PRNG key.
        target_tree: A tree of arrays.
        sampler: `sampler(key, shape, dtype)`; a sampler with an `out_sharding` parameter also
            receives the sharding of the leaf.
        dtype: The dtype; by default the dtype of each leaf.

    Returns:
        A tree of the same structure and shapes.

    Example:
        >>> from fnopt import tree
        >>> tree.random_like(jax.random.key(0), {"w": jnp.ones((2, 3))})["w"].shape
        (2, 3)
    """
    # Samplers of `jax.random` accept a sharding; a user's sampler may not.
    takes_sharding = "out_sharding" in inspect.signature(sampler).parameters

    def sample_leaf(leaf: Any, key: Any) -> jax.Array:
        leaf = jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
        # Without a sharding, every device would generate the whole array.
        options = {"out_sharding": jax.typeof(leaf).sharding} if takes_sharding else {}
        return sampler(key, leaf.shape, leaf.dtype if dtype is None else dtype, **options)

    return jax.tree.map(sample_leaf, target_tree, split_key_like(rng_key, target_tree))


def unwrap_random_key_data(input_tree: Any) -> Any:
    """Convert the typed PRNG keys of a tree to plain arrays, for files and comparisons.

    Args:
        input_tree: Any tree.

    Returns:
        A tree with `jax.random.key_data` in place of every key; other leaves are unchanged.

    Example:
        >>> from fnopt import tree
        >>> tree.unwrap_random_key_data({"key": jax.random.key(7)})
        {'key': Array([0, 7], dtype=uint32)}
    """

    def unwrap_leaf(x: Any) -> Any:
        typed = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if typed else x

    return jax.tree.map(unwrap_leaf, input_tree)
