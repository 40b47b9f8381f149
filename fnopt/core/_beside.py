"""A fresh state beside the params: on the same devices, its slots divided as the params are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding, reshard

from fnopt.core._owners import fits, owners
from fnopt.core._spread import axes_of, is_spread, laid_like


def beside(state: Any, params: Any) -> Any:
    """The arrays of a fresh state, put where the params are.

    Slots lie as their params do; counts and other numbers, which depend on no param and would be
    made on the first device, are copied to all devices of the params' mesh. In a function that is
    traced (`jax.jit(tx.init)`), the compiler is told so: what a slot of zeros depends on is
    nothing, and all of the state would be on one device.

    Args:
        state: What an `init` made.
        params: What it was made for. Without a mesh, and not committed to a device, the state is
            returned as it is.
    """
    home = next(_homes(params), None)
    if home is None:
        return state
    if isinstance(home, NamedSharding) and isinstance(home.mesh, jax.sharding.AbstractMesh):
        return _told(state, params, home)
    return jax.tree.map(lambda x: _put(x, home), state)


def _homes(params: Any) -> Iterator[Any]:
    """The memory and devices of the whole copies of params, for every leaf that names them."""
    for p in jax.tree.leaves(params):
        if isinstance(p, Tracer):
            mesh = jax.typeof(p).sharding.mesh
            if not mesh.empty and AxisType.Manual not in mesh.axis_types:
                yield NamedSharding(mesh, PartitionSpec())
        elif isinstance(p, jax.Array):
            if isinstance(p.sharding, NamedSharding):
                yield NamedSharding(
                    p.sharding.mesh, PartitionSpec(), memory_kind=p.sharding.memory_kind
                )
            elif isinstance(p.sharding, SingleDeviceSharding) and p.committed:
                yield p.sharding


def _put(x: Any, home: Any) -> Any:
    if isinstance(x, Tracer) or not isinstance(x, jax.Array):
        return x
    here = x.committed and x.sharding.device_set == home.device_set
    return x if here else jax.device_put(x, home)


def _told(state: Any, params: Any, home: NamedSharding) -> Any:
    found = owners(state, params)
    leaves = [_whole(x, home) if p is None else _alike(x, p) for _, x, p in found]
    if leaves and not any(p is not None and fits(x, p) for _, x, p in found):
        # Of params that nothing depends on, the compiled function would not know the devices.
        smallest = min(filter(_is_array, jax.tree.leaves(params)), key=jnp.size)
        *leaves, _ = jax.lax.optimization_barrier((*leaves, smallest))
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


def _alike(x: Any, p: Any) -> Any:
    # A slot of another layout, or in another memory: the compiler knows where it was put.
    if not fits(x, p) or _memory_of(x) != _memory_of(p):
        return x
    p = jnp.broadcast_to(jnp.real(p), jnp.shape(x)).astype(x.dtype)
    if axes_of(p) != axes_of(x):
        return x if is_spread(x) else laid_like(x, p)
    # A choice that is never made, but which the compiler can't see: what is chosen from lies alike.
    never = jax.lax.optimization_barrier(jnp.zeros((), bool))
    return jnp.where(never, p, x)


def _memory_of(x: Any) -> Any:
    return getattr(jax.typeof(x), "memory_space", None)  # JAX 0.7 has no such types


def _whole(x: Any, home: NamedSharding) -> Any:
    if not jax.typeof(x).sharding.mesh.empty:  # its type says already where it is
        return x
    if AxisType.Explicit in home.mesh.axis_types:
        return reshard(x, home)
    return jax.lax.with_sharding_constraint(x, home)
