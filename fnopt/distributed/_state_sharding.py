"""Shardings of an optimizer's state, and states initialized in them."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fnopt.core import is_abstract, slots, zeros_for
from fnopt.distributed._meshes import (
    Axis,
    abstract_state,
    check_axis,
    common_mesh,
    divide_further,
    put,
    spec_of,
)
from fnopt.sharding import fits_param, is_tracing, match_params

# JAX 0.7 has the other name.
_set_mesh: Any = getattr(jax, "set_mesh", getattr(jax.sharding, "use_mesh", None))


def state_sharding(
    tx: Any, params: Any, *, mesh: Mesh | None = None, axis: Axis | None = None
) -> Any:
    """The shardings of an optimizer's state, one per array.

    Slots lie as their params do, which they are known by: the name ends with the param's name, and
    the shape is the same (or has a leading axis more). All else (counts, factors of matrices) is
    whole on every device. Nothing is computed.

    With `axis`, slots are divided further, over the longest dimension that the devices of that axis
    divide: given as the `out_shardings` of a jitted step, the compiler divides the arithmetic of
    the optimizer too (ZeRO-1), for every optimizer. A slot that no dimension of can be divided
    stays whole.

    Args:
        tx: An optimizer, another library's too.
        params: The params: arrays, or `jax.ShapeDtypeStruct`s with a sharding.
        mesh: The mesh; by default the one that the params are on. Params on none are taken to be
            whole on every device; so are traced params of an automatic mesh.
        axis: A mesh axis, or several, to divide slots over.

    Returns:
        A tree like `tx.init(params)` of `NamedSharding`s: for `out_shardings`, `jax.device_put`,
        the restore of a checkpoint. Its `.spec`s are what `jax.shard_map` takes.

    Raises:
        ValueError: If the params are on no mesh, or on different ones, or the mesh lacks `axis`.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> params = jax.device_put({"w": jnp.ones((4, 8))}, NamedSharding(mesh, P()))
        >>> where = distributed.state_sharding(fnopt.adam(1e-3), params, axis="data")
        >>> tuple(fnopt.slots(where)["mu"]["w"].spec), tuple(where[0].count.spec)
        ((None, 'data'), ())
    """
    on: Any = common_mesh(params, mesh, "state_sharding")
    names = () if axis is None else check_axis(axis, on, "state_sharding")
    state = abstract_state(tx, params, on)
    in_slots = {id(x) for slot in slots(state).values() for x in jax.tree.leaves(slot)}

    def slot_sharding(leaf: Any, owner: Any) -> NamedSharding:
        spec = spec_of(leaf)
        if not any(spec) and owner is not None and fits_param(leaf, owner):
            spec = (None,) * (len(leaf.shape) - len(owner.shape)) + spec_of(owner)
        if names and id(leaf) in in_slots:
            spec = divide_further(leaf.shape, spec, names, on)
        while spec and spec[-1] is None:
            spec = spec[:-1]
        return NamedSharding(on, PartitionSpec(*spec))

    leaves = [slot_sharding(leaf, owner) for _, leaf, owner in match_params(state, params)]
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def init_sharded(
    tx: Any, params: Any, *, mesh: Mesh | None = None, axis: Axis | None = None
) -> Any:
    """Initialise a state in its shardings, without forming whole arrays on one device.

    For `sharded(tx, axis)` it returns what `sharded(tx, axis).init(params)` returns. Inside
    `jax.jit` the compiler is told where every array of the state belongs.

    Args:
        tx: An optimizer.
        params: The params: arrays, or `jax.ShapeDtypeStruct`s if the first state depends on no
            value (it does where an optimizer begins with a copy of the params).
        mesh: As in `state_sharding`.
        axis: As in `state_sharding`.

    Returns:
        What `tx.init(params)` returns, with the shardings of `state_sharding`.

    Raises:
        ValueError: As `state_sharding`, or if values are needed and shapes were given.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> whole = NamedSharding(jax.make_mesh((1,), ("data",)), P())
        >>> params = {"w": jax.ShapeDtypeStruct((2,), jnp.float32, sharding=whole)}
        >>> distributed.init_sharded(fnopt.sgd(0.1, momentum=0.9), params, axis="data")[0].trace
        {'w': Array([0., 0.], dtype=float32)}
    """
    where = state_sharding(tx, params, mesh=mesh, axis=axis)
    leaves = jax.tree.leaves(where)
    mesh = leaves[0].mesh if leaves else None

    def zeros() -> Any:
        return zeros_for(tx.init, params, "init_sharded: ") if is_abstract(params) else params

    if is_tracing():  # where no mesh can be set
        return jax.tree.map(put, tx.init(zeros()), where)
    with _set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        if not is_abstract(params):
            return jax.jit(tx.init, out_shardings=where)(params)
        return jax.jit(lambda: tx.init(zeros()), out_shardings=where)()
