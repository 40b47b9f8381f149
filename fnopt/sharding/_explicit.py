"""Shardings on meshes with explicit axes, where JAX requires a choice.

On such a mesh the type of an array has a `PartitionSpec`. JAX raises an error for an operation
whose result could have several `PartitionSpec`s. This module chooses the `PartitionSpec` for the
whole library. On automatic meshes, and on one device, the functions are equal to the functions of
`jax.numpy`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray, Tracer
from jax.sharding import NamedSharding, PartitionSpec, reshard

Spec = tuple[Any, ...]
"""The mesh axis (or axes) over which each dimension is sharded, or None."""


def axis_names(axes: Any) -> tuple[Any, ...]:
    """Tuple of axis names from None, one name, or several."""
    if axes is None:
        return ()
    return tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)


def explicit_spec(x: Any) -> Spec:
    """The explicit mesh axes over which each dimension is sharded; all None on automatic meshes."""
    aval = x if isinstance(x, ShapedArray) else jax.typeof(x)
    spec = tuple(aval.sharding.spec)
    return spec + (None,) * (aval.ndim - len(spec))


def is_sharded(x: Any) -> bool:
    """Whether the type of an array shards it over explicit mesh axes."""
    return any(jax.typeof(x).sharding.spec)


def reshard_to(x: jax.Array, spec: Spec) -> jax.Array:
    """Reshard an array over the given axes of its mesh."""
    if explicit_spec(x) == spec:
        return x
    mesh = jax.typeof(x).sharding.mesh
    # An array that was made before the mesh was set has no mesh.
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    return reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))


def replicate(x: jax.Array, *dimensions: int) -> jax.Array:
    """Replicate an array along the given dimensions (all by default)."""
    if not is_sharded(x):
        return x
    gathered = {d % x.ndim for d in dimensions} or set(range(x.ndim))
    return reshard_to(
        x, tuple(None if i in gathered else a for i, a in enumerate(explicit_spec(x)))
    )


def replicate_for_batch(shared: Any, batch: Any) -> Any:
    """Replicate arrays that all examples share over the mesh axes of the examples.

    Params that are sharded over the axis of the batch (FSDP) have to be gathered. `jax.vmap` raises
    an error if another argument is sharded over the mesh axis of the mapped dimension.

    Args:
        shared: A tree; leaves that aren't arrays are returned unchanged.
        batch: A tree of arrays with a leading axis of examples.
    """
    batch_names = {
        name
        for x in jax.tree.leaves(batch)
        for axis in explicit_spec(x)[:1]
        for name in axis_names(axis)
    }

    def replicate_leaf(x: Any) -> Any:
        spec = explicit_spec(x) if hasattr(x, "dtype") else ()
        shared_axes = [d for d, axis in enumerate(spec) if batch_names & {*axis_names(axis)}]
        return replicate(x, *shared_axes) if shared_axes else x

    return jax.tree.map(replicate_leaf, shared) if batch_names else shared


def reshard_like(x: jax.Array, like: Any) -> jax.Array:
    """Reshard an array like another array, type or `ShapeDtypeStruct` of its shape."""
    is_type = isinstance(like, (jax.ShapeDtypeStruct, ShapedArray))
    sharding = getattr(like if is_type else jax.typeof(like), "sharding", None)
    if not isinstance(sharding, NamedSharding) or not any(sharding.spec):
        return replicate(x)
    spec = (*sharding.spec, *(None,) * jnp.ndim(x))[: jnp.ndim(x)]
    return (
        x if explicit_spec(x) == spec else reshard(x, NamedSharding(sharding.mesh, sharding.spec))
    )


def sharded_full_like(x: Any, fill_value: Any, dtype: Any = None) -> jax.Array:
    """`jnp.full_like` with the sharding of `x`.

    JAX 0.12 loses the sharding if no mesh is set. Without `jax.jit`, JAX 0.10 loses the sharding of
    an array that a branch or the body of a loop closes over.
    """
    full = jnp.full_like(x, fill_value, dtype=dtype)
    return reshard_like(full, x) if isinstance(full, Tracer) and is_sharded(x) else full


def reshape(x: jax.Array, *shape: int) -> jax.Array:
    """Reshape an array; replicate it first if JAX can't infer the sharding of the result."""
    if is_sharded(x):
        # JAX is tried first, because newer releases infer more shardings (0.10 more than 0.7). An
        # invalid shape raises an error in the second call, too.
        with contextlib.suppress(Exception):
            return x.reshape(shape)
    return replicate(x).reshape(shape)


def concatenate(arrays: list[jax.Array], axis: int = 0) -> jax.Array:
    """Reshard arrays in the same way, and concatenate them."""
    specs = {explicit_spec(x) for x in arrays}
    if len(specs) > 1:
        sharded = next(x for x in arrays if is_sharded(x))
        sharding = NamedSharding(jax.typeof(sharded).sharding.mesh, _common_spec(specs, axis))
        arrays = [
            x if explicit_spec(x) == (*sharding.spec,) else reshard(x, sharding) for x in arrays
        ]
    return jnp.concatenate(arrays, axis=axis)


def _common_spec(specs: set[Spec], joint: int) -> PartitionSpec:
    """Common spec of arrays to concatenate; sharding a replicated array needs no communication."""
    spec = []
    for i, axes in enumerate(map(set, zip(*specs, strict=True))):
        is_joint = i == joint % len(next(iter(specs)))
        candidates = axes if is_joint else axes - {None}
        spec.append(candidates.pop() if len(candidates) == 1 else None)
    # Two dimensions can't be sharded over one mesh axis; then the result is replicated.
    names = [name for axes in spec for name in axis_names(axes)]
    return PartitionSpec(*(spec if len({*names}) == len(names) else [None] * len(spec)))


def product_sharding(
    a: Any, b: Any, summed: tuple[int, int], batch: int = 0
) -> NamedSharding | None:
    """Sharding of the product of two arrays, from their free axes; None if both are unsharded.

    Args:
        a: The first array.
        b: The second array.
        summed: The contracted dimension of each array.
        batch: The number of leading batch dimensions of both arrays.
    """
    if not (is_sharded(a) or is_sharded(b)):
        return None
    left, right = [*explicit_spec(a)], [*explicit_spec(b)]
    del left[summed[0]], right[summed[1]]
    # A mesh axis shards at most one dimension of an array; the left factor has priority.
    used_names = {name for axes in left for name in axis_names(axes)}
    right = right[batch:]
    right_axes = [None if used_names & {*axis_names(axes)} else axes for axes in right]
    mesh = jax.typeof(a if is_sharded(a) else b).sharding.mesh
    return NamedSharding(mesh, PartitionSpec(*left, *right_axes))


@contextlib.contextmanager
def use_mesh_of(*trees: Any) -> Iterator[None]:
    """Context that sets the mesh of the arrays, unless a mesh is already set."""
    arrays = [x for x in jax.tree.leaves(trees) if hasattr(x, "dtype") and is_sharded(x)]
    has_no_set_mesh = not hasattr(jax, "set_mesh")  # before JAX 0.8 the caller has to set the mesh
    if not arrays or has_no_set_mesh or not jax.sharding.get_abstract_mesh().empty:
        yield
        return
    tracer = next((x for x in arrays if isinstance(x, Tracer)), None)
    if tracer is not None or is_tracing():
        array = arrays[0] if tracer is None else tracer
        with jax.sharding.use_abstract_mesh(jax.typeof(array).sharding.mesh):
            yield
    else:
        with jax.set_mesh(arrays[0].sharding.mesh):
            yield


def is_tracing() -> bool:
    """Whether operations are being traced; JAX can't set a concrete mesh during tracing."""
    # Under `jit`, an operation on constants becomes an equation, so its result is a tracer.
    return isinstance(_add(np.int32(0), np.int32(0)), Tracer)


_add = jax.jit(jax.lax.add)  # an eager call takes 4 us; without `jax.jit` it takes 20 us
