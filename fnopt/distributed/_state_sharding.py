"""Shardings of an optimizer's state, and the creation of sharded states."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fnopt.core import is_abstract, slots, zeros_for
from fnopt.distributed._meshes import (
    Axis,
    check_axis,
    common_mesh,
    context_mesh,
    divide_further,
    put,
    spec_of,
)
from fnopt.distributed._sharded import undivided
from fnopt.sharding import fits_param, is_tracing, match_params

# JAX 0.7 lacks this function; no mesh context is possible there.
_use: Any = getattr(jax.sharding, "use_abstract_mesh", contextlib.nullcontext)
# JAX 0.7 has the other name.
_set_mesh: Any = getattr(jax, "set_mesh", getattr(jax.sharding, "use_mesh", None))


def state_sharding(
    tx: Any, params: Any, *, mesh: Mesh | None = None, axis: Axis | None = None
) -> Any:
    """Return the shardings of an optimizer's state, one per array.

    A slot has the sharding of its param. An array is a slot if its name ends with the param's name,
    and its shape is the param's shape, possibly with an additional leading axis. All other arrays
    (counts, factors of matrices) are replicated. The state isn't computed.

    With `axis`, slots are also sharded along their longest dimension that is divisible by the
    number of devices. If the result is passed to a jitted step as `out_shardings`, the compiler
    also divides the arithmetic of the optimizer (ZeRO-1); this works for every optimizer. A slot
    without a divisible dimension has the sharding of its param.

    Args:
        tx: An optimizer, fnopt's or another library's.
        params: The params: arrays, or `jax.ShapeDtypeStruct`s with a sharding.
        mesh: The mesh; by default the mesh of the params, or else of `jax.set_mesh`. Params without
            a mesh, and traced params on an automatic mesh, are treated as replicated.
        axis: A mesh axis, or several, over which slots are sharded.

    Returns:
        A tree like `tx.init(params)` of `NamedSharding`s: for `out_shardings`, `jax.device_put`, or
        restoring a checkpoint. `jax.shard_map` takes their `.spec`s.

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
    on = common_mesh(params, mesh, "state_sharding")
    return _state_sharding(tx, params, on, axis, "state_sharding")


def _state_sharding(tx: Any, params: Any, on: Any, axis: Axis | None, name: str) -> Any:
    names = () if axis is None else check_axis(axis, on, name)
    state = _abstract_state(tx, params, on)
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
    """Initialize a state in its shardings, without forming whole arrays on one device.

    For `sharded(tx, axis)` it returns the result of `sharded(tx, axis).init(params)`. Inside
    `jax.jit` it adds a sharding constraint to every array of the state.

    Args:
        tx: An optimizer.
        params: The params: arrays, or `jax.ShapeDtypeStruct`s if the initial state doesn't depend
            on the params' values (a copy of the params does).
        mesh: As in `state_sharding`.
        axis: As in `state_sharding`.

    Returns:
        The result of `tx.init(params)`, with the shardings of `state_sharding`.

    Raises:
        ValueError: In the cases listed for `state_sharding`; if the state depends on values and
            `params` contains only shapes; or in a traced call, if `jax.set_mesh` has set a
            different mesh from the params' mesh.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> from fnopt import distributed
        >>> whole = NamedSharding(jax.make_mesh((1,), ("data",)), P())
        >>> params = {"w": jax.ShapeDtypeStruct((2,), jnp.float32, sharding=whole)}
        >>> distributed.init_sharded(fnopt.sgd(0.1, momentum=0.9), params, axis="data")[0].trace
        {'w': Array([0., 0.], dtype=float32)}
    """
    on = common_mesh(params, mesh, "init_sharded")
    _check_context(on, params)
    where = _state_sharding(tx, params, on, axis, "init_sharded")

    def init(params: Any) -> Any:
        # `sharded` reads the mesh of a leaf's type, which a leaf on no mesh lacks.
        if is_abstract(params):
            params = zeros_for(undivided(tx).init, params, "init_sharded: ")
        whole = NamedSharding(on, PartitionSpec())
        placed = [
            put(p, whole) if isinstance(p, Tracer) and jax.typeof(p).sharding.mesh.empty else p
            for p in jax.tree.leaves(params)
        ]
        return tx.init(jax.tree.unflatten(jax.tree.structure(params), placed))

    if is_tracing():  # no concrete mesh can be set while tracing
        with _use(getattr(on, "abstract_mesh", on)):
            return jax.tree.map(put, init(params), where)
    with _set_mesh(on):
        if not is_abstract(params):
            return jax.jit(init, out_shardings=where)(params)
        return jax.jit(lambda: init(params), out_shardings=where)()


def _check_context(mesh: Any, params: Any) -> None:
    """Check that a traced call has the mesh context of its params, or none."""
    context = context_mesh()
    if is_tracing() and context and dict(context[0].shape) != dict(mesh.shape):
        raise ValueError(
            f"init_sharded: the params (or mesh=) are on the mesh {dict(mesh.shape)}, "
            f"jax.set_mesh has set {dict(context[0].shape)}, expected one mesh: set the "
            "mesh of the params, or put the params on the other mesh."
        )


def _abstract_state(tx: Any, params: Any, mesh: Any) -> Any:
    """Types of the state for params that are replicated on a mesh of explicit axes.

    The types of the optimizer's results then contain the sharding, for any axis types of the given
    mesh.
    """
    kinds = (AxisType.Explicit,) * len(mesh.axis_names)
    abstract = jax.sharding.AbstractMesh(
        tuple(mesh.shape.values()), tuple(mesh.axis_names), axis_types=kinds
    )
    whole = NamedSharding(abstract, PartitionSpec())

    def replicated(p: Any) -> Any:
        p = p if hasattr(p, "dtype") else jax.numpy.asarray(p)
        return jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=whole)

    # The context may have this mesh with axes of another kind, or a mesh of another size. JAX lets
    # no mesh follow on one of another size, so an empty one comes between.
    with _use(jax.sharding.AbstractMesh((), ())), _use(abstract):
        return jax.eval_shape(tx.init, jax.tree.map(replicated, params))
