"""Conversion of pytrees to vectors, and of complex trees to real vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.errors import check_inexact
from fnopt.numerics import compute_dtype, is_inexact
from fnopt.sharding import concatenate, explicit_spec, replicate, reshape, reshard_like


def ravel(tree: Any, what: str = "tree") -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    r"""Flatten a pytree to one vector.

    Args:
        tree: A pytree of floating arrays of any shapes.
        what: Name of the tree (`'params'`), for the message if a leaf isn't floating.

    Returns:
        The vector of shape `[n]`, and the inverse function. The vector has the leaves' common dtype
        (at least float32). The inverse function restores the structure, shapes, dtypes and
        shardings.

    Raises:
        TypeError: If a leaf is not floating.

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
    types = [jax.typeof(leaf) for leaf in leaves]  # with the shardings of the leaves
    dtype = compute_dtype(*dtypes)
    sizes = [math.prod(shape) for shape in shapes]

    def unravel(vector: jax.Array) -> Any:
        # The transpose of one `split` is one concatenation; the transpose of many slices is a sum
        # of padded vectors.
        parts = jax.lax.split(vector, sizes)
        rows = zip(parts, shapes, dtypes, types, strict=True)
        return jax.tree.unflatten(
            treedef,
            [reshard_like(p.reshape(shape).astype(dtype), leaf) for p, shape, dtype, leaf in rows],
        )

    if not leaves:
        return jnp.zeros((0,), dtype), unravel
    # The vector is replicated, because solvers would otherwise gather it in every operation.
    parts = [jnp.ravel(replicate(jnp.asarray(leaf, dtype))) for leaf in leaves]
    return jnp.concatenate(parts), unravel


def held_as_zeros(tree: Any) -> Any:
    """Replace the non-floating leaves of a tree, which are fixed in a fit, by floating zeros."""
    leaves, treedef = jax.tree.flatten(tree)
    dtype = compute_dtype(*(jnp.result_type(leaf) for leaf in leaves if is_inexact(leaf)))
    return jax.tree.unflatten(
        treedef,
        [leaf if is_inexact(leaf) else jnp.zeros(jnp.shape(leaf), dtype) for leaf in leaves],
    )


def ravel_with_held(tree: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """Flatten a pytree like :func:`ravel`, with zeros in place of non-floating leaves.

    Args:
        tree: A pytree of arrays.

    Returns:
        The vector, and the inverse function, which returns the original non-floating leaves.
    """
    x, unravel = ravel(held_as_zeros(tree))
    leaves, treedef = jax.tree.flatten(tree)

    def unravel_floating(vector: jax.Array) -> Any:
        pairs = zip(leaves, jax.tree.leaves(unravel(vector)), strict=True)
        return jax.tree.unflatten(treedef, [v if is_inexact(leaf) else leaf for leaf, v in pairs])

    return x, unravel_floating


class RealVector(NamedTuple):
    """Layout of a tree as a real vector, with real parts before imaginary parts of a leaf."""

    size: int
    flatten: Callable[[Any], jax.Array]  # the tree -> [size]
    unflatten: Callable[[jax.Array], Any]  # [size, ...] -> the tree, with leaves [*shape, ...]


def real_vector(shapes: Any, dtype: Any) -> RealVector:
    """Make the layout of a tree of real or complex arrays as one real vector.

    The real part of a complex leaf comes before its imaginary part.

    Args:
        shapes: A tree of floating or complex arrays, or of `jax.ShapeDtypeStruct`.
        dtype: The real dtype of the vector.

    Returns:
        The length of the vector, and the functions that flatten and unflatten.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.jacobians import real_vector
        >>> tree = {"a": jnp.asarray([1.0, 2.0]), "z": jnp.asarray(3.0 + 4.0j)}
        >>> layout = real_vector(tree, jnp.float32)
        >>> layout.flatten(tree)
        Array([1., 2., 3., 4.], dtype=float32)
        >>> layout.unflatten(layout.flatten(tree))["z"]
        Array(3.+4.j, dtype=complex64)
    """
    leaves, treedef = jax.tree.flatten(shapes)

    def flatten(tree: Any) -> jax.Array:
        parts = [part for leaf in treedef.flatten_up_to(tree) for part in _real_parts(leaf)]
        return concatenate(
            [reshape(_shard_rows_only(part), part.size).astype(dtype) for part in parts]
        )

    def unflatten(vector: jax.Array) -> Any:
        return jax.tree.unflatten(treedef, _split(vector, leaves))

    return RealVector(sum(leaf.size * _width(leaf) for leaf in leaves), flatten, unflatten)


def _shard_rows_only(part: jax.Array) -> jax.Array:
    """Replicate all axes except the first, because Jacobians are sharded by rows."""
    if part.ndim < 2 or explicit_spec(part)[0] is None:
        return part
    return replicate(part, *range(1, part.ndim))


def _width(leaf: Any) -> int:
    """Number of reals per element."""
    return 2 if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else 1


def _real_parts(leaf: Any) -> tuple[jax.Array, ...]:
    leaf = jnp.asarray(leaf)
    return (jnp.real(leaf), jnp.imag(leaf)) if jnp.iscomplexobj(leaf) else (leaf,)


def _split(vector: jax.Array, leaves: list[Any]) -> list[jax.Array]:
    """Split an array `[size, ...]` into arrays `[*leaf.shape, ...]`."""
    arrays, start = [], 0
    for leaf in leaves:
        real_parts = []
        for _ in range(_width(leaf)):
            part = replicate(vector, 0)[start : start + leaf.size]
            real_parts.append(part.reshape(*leaf.shape, *vector.shape[1:]))
            start += leaf.size
        array = jax.lax.complex(*real_parts) if len(real_parts) == 2 else real_parts[0]
        arrays.append(_reshard(array.astype(leaf.dtype), leaf))
    return arrays


def _reshard(array: jax.Array, leaf: Any) -> jax.Array:
    """Give an array the sharding of a leaf, unless the array has additional axes."""
    return reshard_like(array, leaf) if array.ndim == len(leaf.shape) else array
