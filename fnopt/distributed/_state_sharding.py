"""The shardings of an optimizer's state, and states made in place on their devices."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fnopt.core import fits, leaves_with_names, listing, owners, slots
from fnopt.distributed._meshes import (
    Axis,
    check_axis,
    divided,
    mesh_of_params,
    spec_of,
    whole_on,
)

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
            whole on every device.
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
    on: Any = mesh_of_params(params, mesh, "state_sharding")
    names = () if axis is None else check_axis(axis, on, "state_sharding")
    state = jax.eval_shape(tx.init, whole_on(on, params))
    in_slots = {id(x) for slot in slots(state).values() for x in jax.tree.leaves(slot)}

    def one(leaf: Any, owner: Any) -> NamedSharding:
        spec = spec_of(leaf)
        if not any(spec) and owner is not None and fits(leaf, owner):
            spec = (None,) * (len(leaf.shape) - len(owner.shape)) + spec_of(owner)
        if names and id(leaf) in in_slots:
            spec = divided(leaf.shape, spec, names, on)
        while spec and spec[-1] is None:
            spec = spec[:-1]
        return NamedSharding(on, PartitionSpec(*spec))

    leaves = [one(leaf, owner) for _, leaf, owner in owners(state, params)]
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def init_sharded(
    tx: Any, params: Any, *, mesh: Mesh | None = None, axis: Axis | None = None
) -> Any:
    """Initialise a state in its shardings, without forming whole arrays on one device.

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
    with _set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        if all(isinstance(p, (jax.Array, np.ndarray, float)) for p in jax.tree.leaves(params)):
            return jax.jit(tx.init, out_shardings=where)(params)
        _check_needs_shapes_only(tx, params)
        return jax.jit(lambda: tx.init(_zeros(params)), out_shardings=where)()


def _zeros(params: Any) -> Any:
    return jax.tree.map(lambda p: jnp.zeros(p.shape, p.dtype, device=p.sharding), params)


def _check_needs_shapes_only(tx: Any, params: Any) -> None:
    bare = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
    closed, state = jax.make_jaxpr(tx.init, return_shape=True)(bare)
    known = {*closed.jaxpr.invars}
    for eqn in closed.jaxpr.eqns:
        if known & {x for x in eqn.invars if not isinstance(x, jex.Literal)}:
            known |= {*eqn.outvars}
    outs = closed.jaxpr.outvars
    names = [
        name
        for (name, _), x in zip(leaves_with_names(state)[0], outs, strict=True)
        if not isinstance(x, jex.Literal) and x in known
    ]
    if names:
        raise ValueError(
            f"init_sharded: the state's {listing(names)} begin with values of the params, of which "
            "only shapes were given: give the params as arrays."
        )
