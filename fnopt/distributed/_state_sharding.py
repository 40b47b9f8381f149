"""Shardings of an optimizer's state, and the creation of sharded states."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fnopt.core import abstract_to_zeros, is_abstract, slots
from fnopt.distributed._meshes import (
    Axis,
    check_axis,
    common_mesh,
    context_mesh,
    divide_further,
    put,
    spec_of,
)
from fnopt.distributed._sharded import without_sharded
from fnopt.sharding import fits_param, is_tracing, match_params

# JAX 0.7 lacks this function; no mesh context is possible there.
_use: Any = getattr(jax.sharding, "use_abstract_mesh", contextlib.nullcontext)
# `jax.set_mesh` is `jax.sharding.use_mesh` in JAX 0.7.
_set_mesh: Any = getattr(jax, "set_mesh", getattr(jax.sharding, "use_mesh", None))


def state_sharding(
    tx: Any, params: Any, *, mesh: Mesh | None = None, axis: Axis | None = None
) -> Any:
    """Return the shardings of an optimizer's state, one per array.

    A slot has the sharding of its param. A slot is an array whose name ends with the param's name,
    with the param's shape or one additional leading axis. All other arrays (counts, factors of
    matrices) are replicated. The state isn't computed.

    With `axis`, slots are also sharded along their longest dimension that is divisible by the
    number of devices. Pass the result to a jitted step as `out_shardings`: the compiler then also
    divides the arithmetic of the optimizer (ZeRO-1). This works for every optimizer. A slot without
    a divisible dimension has the sharding of its param.

    Args:
        tx: An optimizer, fnopt's or another library's.
        params: The params: arrays, or `jax.ShapeDtypeStruct`s with a sharding.
        mesh: The mesh; by default the mesh of the params, or else the mesh set by `jax.set_mesh`.
            Params without a mesh, and traced params on an automatic mesh, are treated as
            replicated.
        axis: A mesh axis, or several, over which slots are sharded.

    Returns:
        A tree like `tx.init(params)` of `NamedSharding`s, for `out_shardings`, `jax.device_put` or
        the restore of a checkpoint. Their attributes `.spec` are the specs for `jax.shard_map`.

    Raises:
        ValueError: If the params have no mesh or different meshes, or the mesh lacks `axis`.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> mesh = jax.make_mesh((1,), ("data",))
        >>> params = jax.device_put({"w": jnp.ones((4, 8))}, NamedSharding(mesh, P()))
        >>> where = distributed.state_sharding(fnopt.adam(1e-3), params, axis="data")
        >>> tuple(fnopt.slots(where)["mu"]["w"].spec), tuple(where[0].count.spec)
        ((None, 'data'), ())
    """
    target_mesh = common_mesh(params, mesh, "state_sharding")
    return _state_sharding(tx, params, target_mesh, axis, "state_sharding")


def _state_sharding(tx: Any, params: Any, mesh: Any, axis: Axis | None, name: str) -> Any:
    names = () if axis is None else check_axis(axis, mesh, name)
    state = _abstract_state(tx, params, mesh)
    in_slots = {id(x) for slot in slots(state).values() for x in jax.tree.leaves(slot)}

    def slot_sharding(leaf: Any, param: Any) -> NamedSharding:
        # The params of the abstract state are replicated, so a spec comes from `init` (`sharded`).
        spec = spec_of(leaf)
        if not any(spec) and param is not None and fits_param(leaf, param):
            spec = (None,) * (len(leaf.shape) - len(param.shape)) + spec_of(param)
        if names and id(leaf) in in_slots:
            spec = divide_further(leaf.shape, spec, names, mesh)
        # `PartitionSpec` compares unequal to a spec with an additional None at the end.
        while spec and spec[-1] is None:
            spec = spec[:-1]
        return NamedSharding(mesh, PartitionSpec(*spec))

    leaves = [slot_sharding(leaf, param) for _, leaf, param in match_params(state, params)]
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def init_sharded(
    tx: Any, params: Any, *, mesh: Mesh | None = None, axis: Axis | None = None
) -> Any:
    """Initialize a state in its shardings, without forming whole arrays on one device.

    For an optimizer `sharded(tx, axis)`, the result equals `sharded(tx, axis).init(params)`. Inside
    `jax.jit`, the function adds a sharding constraint to every array of the state.

    Args:
        tx: An optimizer.
        params: The params: arrays, or `jax.ShapeDtypeStruct`s if the initial state doesn't depend
            on the values of the params. A state with a copy of the params depends on the values.
        mesh: As in `state_sharding`.
        axis: As in `state_sharding`.

    Returns:
        The result of `tx.init(params)`, with the shardings of `state_sharding`.

    Raises:
        ValueError: In the cases listed for `state_sharding`, or if the state depends on values and
            `params` contains only shapes. In a traced call, also if the mesh of `jax.set_mesh`
            differs from the params' mesh.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> whole = NamedSharding(jax.make_mesh((1,), ("data",)), P())
        >>> params = {"w": jax.ShapeDtypeStruct((2,), jnp.float32, sharding=whole)}
        >>> distributed.init_sharded(fnopt.sgd(0.1, momentum=0.9), params, axis="data")[0].trace
        {'w': Array([0., 0.], dtype=float32)}
    """
    target_mesh = common_mesh(params, mesh, "init_sharded")
    _check_context(target_mesh)
    shardings = _state_sharding(tx, params, target_mesh, axis, "init_sharded")

    def init(params: Any) -> Any:
        # A traced leaf without a mesh is replicated over the mesh, because `sharded` reads the mesh
        # from the type of the leaf.
        if is_abstract(params):
            params = abstract_to_zeros(without_sharded(tx).init, params, "init_sharded: ")
        replicated = NamedSharding(target_mesh, PartitionSpec())
        leaves = [
            put(p, replicated) if isinstance(p, Tracer) and jax.typeof(p).sharding.mesh.empty else p
            for p in jax.tree.leaves(params)
        ]
        return tx.init(jax.tree.unflatten(jax.tree.structure(params), leaves))

    if is_tracing():  # no concrete mesh can be set while tracing
        with _use(getattr(target_mesh, "abstract_mesh", target_mesh)):
            return jax.tree.map(put, init(params), shardings)
    with _set_mesh(target_mesh):
        if not is_abstract(params):
            return jax.jit(init, out_shardings=shardings)(params)
        return jax.jit(lambda: init(params), out_shardings=shardings)()


def _check_context(mesh: Any) -> None:
    """Check that a traced call has no mesh context, or the mesh of the params as context."""
    context = context_mesh()
    if is_tracing() and context and dict(context[0].shape) != dict(mesh.shape):
        raise ValueError(
            f"init_sharded: the params (or mesh=) are on the mesh {dict(mesh.shape)}, but "
            f"jax.set_mesh has set {dict(context[0].shape)}; expected one mesh. Set the mesh of "
            "the params, or put the params on the other mesh."
        )


def _abstract_state(tx: Any, params: Any, mesh: Any) -> Any:
    """Types of the state for params that are replicated on a mesh of explicit axes.

    With explicit axes, the types of the optimizer's results contain their shardings, whatever the
    axis types of the given mesh are.
    """
    axis_types = (AxisType.Explicit,) * len(mesh.axis_names)
    abstract = jax.sharding.AbstractMesh(
        tuple(mesh.shape.values()), tuple(mesh.axis_names), axis_types=axis_types
    )
    sharding = NamedSharding(abstract, PartitionSpec())

    def replicated_shape(p: Any) -> Any:
        p = p if hasattr(p, "dtype") else jax.numpy.asarray(p)
        return jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=sharding)

    # The context may have a mesh with other axis types or another size. JAX doesn't allow a direct
    # change to a mesh of another size, so an empty mesh is set in between.
    with _use(jax.sharding.AbstractMesh((), ())), _use(abstract):
        return jax.eval_shape(tx.init, jax.tree.map(replicated_shape, params))
