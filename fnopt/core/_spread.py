"""Shardings of arrays on explicit meshes: the choices that JAX leaves open.

On a mesh with explicit axes the type of an array says how it lies, and an operation whose result
could lie in more than one way is an error. The choices are made here, for the whole library. On
automatic meshes, and on one device, nothing here does anything.
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

Axes = tuple[Any, ...]
"""By dimension: the mesh axis (or axes) that it is spread over, or None."""


def axes_of(x: Any) -> Axes:
    """Over which explicit mesh axes every dimension is spread; all None on automatic meshes."""
    aval = x if isinstance(x, ShapedArray) else jax.typeof(x)
    spec = tuple(aval.sharding.spec)
    return spec + (None,) * (aval.ndim - len(spec))


def is_spread(x: Any) -> bool:
    """Whether the type says that the array is spread over devices."""
    return any(jax.typeof(x).sharding.spec)


def laid(x: jax.Array, axes: Axes) -> jax.Array:
    """The array, spread over these axes of its mesh."""
    if axes_of(x) == axes:
        return x
    mesh = jax.typeof(x).sharding.mesh
    # What was made before the mesh was known has none.
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    return reshard(x, NamedSharding(mesh, PartitionSpec(*axes)))


def gathered(x: jax.Array, *dimensions: int) -> jax.Array:
    """The array with these dimensions (all by default) whole on every device."""
    if not is_spread(x):
        return x
    whole = {d % x.ndim for d in dimensions} or set(range(x.ndim))
    return laid(x, tuple(None if i in whole else a for i, a in enumerate(axes_of(x))))


def whole_for(shared: Any, batch: Any) -> Any:
    """What examples share, whole along the explicit mesh axes that they are spread over.

    Params that are divided over the axis of the batch (FSDP), say: JAX maps no function over an
    axis that something else which it is called with is spread over.

    Args:
        shared: A tree; its leaves may be anything.
        batch: A tree of arrays with a leading axis of examples.
    """
    taken = {
        name for x in jax.tree.leaves(batch) for axis in axes_of(x)[:1] for name in _names(axis)
    }

    def one(x: Any) -> Any:
        axes = axes_of(x) if hasattr(x, "dtype") else ()
        met = [d for d, axis in enumerate(axes) if taken & {*_names(axis)}]
        return gathered(x, *met) if met else x

    return jax.tree.map(one, shared) if taken else shared


def laid_like(x: jax.Array, like: Any) -> jax.Array:
    """The array in the sharding of an array, a type or a `ShapeDtypeStruct` of its shape."""
    sharding = getattr(like if _is_type(like) else jax.typeof(like), "sharding", None)
    if not isinstance(sharding, NamedSharding) or not any(sharding.spec):
        return gathered(x)
    axes = (*sharding.spec, *(None,) * jnp.ndim(x))[: jnp.ndim(x)]
    return x if axes_of(x) == axes else reshard(x, NamedSharding(sharding.mesh, sharding.spec))


def filled_like(x: Any, fill_value: Any, dtype: Any = None) -> jax.Array:
    """`jnp.full_like`, lying as `x` does.

    JAX 0.12 forgets it where no mesh is set, and 0.10 of an array that what is traced closes over:
    a branch or a loop of a function that isn't under `jax.jit`.
    """
    full = jnp.full_like(x, fill_value, dtype=dtype)
    return laid_like(full, x) if isinstance(full, Tracer) and is_spread(x) else full


def _is_type(x: Any) -> bool:
    return isinstance(x, (jax.ShapeDtypeStruct, ShapedArray))


def reshaped(x: jax.Array, *shape: int) -> jax.Array:
    """`x.reshape(shape)`; what can't stay spread is gathered first."""
    if not is_spread(x):
        return x.reshape(shape)
    try:
        return x.reshape(shape)
    except Exception as error:
        if not _is_about_sharding(error):
            raise
        return gathered(x).reshape(shape)


def joined(parts: list[jax.Array], axis: int = 0) -> jax.Array:
    """`jnp.concatenate`; parts that lie differently are laid alike first."""
    lies = {axes_of(part) for part in parts}
    if len(lies) > 1:
        spread = next(part for part in parts if is_spread(part))
        sharding = NamedSharding(jax.typeof(spread).sharding.mesh, _common(lies, axis))
        parts = [
            part if axes_of(part) == (*sharding.spec,) else reshard(part, sharding)
            for part in parts
        ]
    return jnp.concatenate(parts, axis=axis)


def _common(lies: set[Axes], joint: int) -> PartitionSpec:
    """What arrays that are joined can keep: whole ones are cut for nothing, rows aren't sent."""
    kept = []
    for i, found in enumerate(map(set, zip(*lies, strict=True))):
        is_joint = i == joint % len(next(iter(lies)))
        some = found if is_joint else found - {None}
        kept.append(some.pop() if len(some) == 1 else None)
    names = [name for axes in kept for name in _names(axes)]
    return PartitionSpec(*(kept if len({*names}) == len(names) else [None] * len(kept)))


def _is_about_sharding(error: Exception) -> bool:
    return "Sharding" in type(error).__name__ or "shard" in str(error)


def product_sharding(
    a: Any, b: Any, summed: tuple[int, int], batch: int = 0
) -> NamedSharding | None:
    """The sharding of the product of two arrays, from their free axes; None where JAX knows it.

    Args:
        a: An array.
        b: Another.
        summed: The dimension of either that is summed over.
        batch: How many leading dimensions of both go along.
    """
    if not (is_spread(a) or is_spread(b)):
        return None
    left = _without(axes_of(a), summed[0])
    taken = {name for axes in left for name in _names(axes)}
    right = _without(axes_of(b), summed[1])[batch:]
    free = [None if taken & {*_names(axes)} else axes for axes in right]
    mesh = jax.typeof(a if is_spread(a) else b).sharding.mesh
    return NamedSharding(mesh, PartitionSpec(*left, *free))


def _without(axes: Axes, dimension: int) -> Axes:
    dimension %= len(axes)
    return axes[:dimension] + axes[dimension + 1 :]


def _names(axes: Any) -> tuple[Any, ...]:
    return axes if isinstance(axes, tuple) else (() if axes is None else (axes,))


@contextlib.contextmanager
def mesh_of(*trees: Any) -> Iterator[None]:
    """The context of the mesh that arrays are spread over, where none is set."""
    spread = [x for x in jax.tree.leaves(trees) if hasattr(x, "dtype") and is_spread(x)]
    unknown = not hasattr(jax, "set_mesh")  # before JAX 0.8 the caller has to set the mesh
    if not spread or unknown or not jax.sharding.get_abstract_mesh().empty:
        yield
        return
    tracer = next((x for x in spread if isinstance(x, Tracer)), None)
    if tracer is not None or is_staged():
        first = spread[0] if tracer is None else tracer
        with jax.sharding.use_abstract_mesh(jax.typeof(first).sharding.mesh):
            yield
    else:
        with jax.set_mesh(spread[0].sharding.mesh):
            yield


def is_staged() -> bool:
    """Whether operations are being recorded, where no mesh can be set."""
    return isinstance(jax.lax.add(np.int32(0), np.int32(0)), Tracer)
