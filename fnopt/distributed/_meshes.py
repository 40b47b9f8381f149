"""Mesh of params, their partition specs, and the shardings of an optimizer's state."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, reshard

from fnopt.core import is_abstract, leaf_text, leaves_with_names, names_text, slots, zeros_for
from fnopt.sharding import fits_param, is_tracing, match_params

# JAX 0.7 hasn't it: there no context may have a mesh.
_use: Any = getattr(jax.sharding, "use_abstract_mesh", contextlib.nullcontext)

Axis = str | tuple[str, ...]


def axis_names(axis: Axis) -> tuple[str, ...]:
    """A tuple of axis names from one name or several."""
    names = (axis,) if isinstance(axis, str) else axis
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise TypeError("expected a name, such as 'data', or a tuple of names")
    if len({*names}) < len(names):
        raise ValueError("expected every name once")
    return tuple(names)


def common_mesh(params: Any, mesh: Any, name: str) -> Any:
    """The given mesh, or that of the params; check that all params are on it."""
    named = leaves_with_names(params)[0]
    placed = [(path, p.sharding) for path, p in named if _is_on_another_device(p)]
    placed += [(path, s) for path, p in named if (s := sharding_of(p)) is not None]
    if mesh is None:
        meshes = [s.mesh for _, s in placed if isinstance(s, NamedSharding)]
        if not meshes and any(isinstance(p, Tracer) for _, p in named):
            raise ValueError(
                f"{name}: the params are traced and their types name no explicit mesh, so that "
                "their shardings aren't known here: call it outside of jax.jit, or give mesh= to "
                "take them as whole on every device."
            )
        if not meshes:
            example = f" ({leaf_text(placed[0][0])} has {placed[0][1]})" if placed else ""
            raise ValueError(
                f"{name}: the params are on no mesh{example}. Put them on one with "
                "jax.device_put(params, NamedSharding(mesh, PartitionSpec())), or give mesh=."
            )
        mesh = meshes[0]
    for path, sharding in placed:
        is_on_mesh = isinstance(sharding, NamedSharding) and _same_mesh(sharding.mesh, mesh)
        if not is_on_mesh:
            raise ValueError(
                f"{name}: {leaf_text(path)} of the params has the sharding {sharding}, expected "
                f"one on the mesh {dict(mesh.shape)} of axes "
                f"{names_text(list(mesh.axis_names))}: put all params on one mesh with "
                "jax.device_put first."
            )
    return mesh


def check_axis(axis: Axis, mesh: Any, name: str) -> tuple[str, ...]:
    """Check that the mesh has the axes, and return their names."""
    try:
        names = axis_names(axis)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: axis = {axis!r}: {error}.") from None
    for axis_name in names:
        if axis_name not in mesh.axis_names:
            raise ValueError(
                f"{name}: axis = {axis_name!r}, expected an axis of the mesh: "
                f"{names_text(list(mesh.axis_names))}."
            )
    return names


def spec_of(p: Any) -> tuple[Any, ...]:
    """Mesh axes over which every dimension of a leaf is sharded; all None without a mesh."""
    sharding = sharding_of(p)
    ndim = len(p.shape) if hasattr(p, "shape") else 0
    spec = () if sharding is None else tuple(sharding.spec)
    return spec + (None,) * (ndim - len(spec))


def divide_further(
    shape: tuple[int, ...], spec: tuple[Any, ...], names: Axis, mesh: Any
) -> tuple[Any, ...]:
    """Shard the longest divisible dimension over further axes."""
    names = axis_names(names)
    used = {name for part in spec if part is not None for name in axis_names(part)}
    n = math.prod(mesh.shape[name] for name in names)
    local = [length // _shard_count(part, mesh) for length, part in zip(shape, spec, strict=True)]
    fitting = [i for i, length in enumerate(local) if length and length % n == 0]
    if used & {*names} or not fitting:
        return spec
    i = max(fitting, key=lambda i: local[i])
    old = () if spec[i] is None else axis_names(spec[i])
    new = [*old, *names]
    return (*spec[:i], tuple(new) if len(new) > 1 else new[0], *spec[i + 1 :])


def abstract_state(tx: Any, params: Any, mesh: Any) -> Any:
    """Types of the state for params that are replicated on a mesh of explicit axes.

    Results of the optimizer then have the sharding in their types, whatever the mesh's own axes.
    """
    kinds = (AxisType.Explicit,) * len(mesh.axis_names)
    abstract = jax.sharding.AbstractMesh(
        tuple(mesh.shape.values()), tuple(mesh.axis_names), axis_types=kinds
    )
    whole = NamedSharding(abstract, PartitionSpec())

    def replicated(p: Any) -> Any:
        p = p if hasattr(p, "dtype") else jax.numpy.asarray(p)
        return jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=whole)

    # The context may have this mesh with axes of another kind, or a mesh of another size; JAX lets
    # no mesh follow on one of another size.
    with _use(jax.sharding.AbstractMesh((), ())), _use(abstract):
        return jax.eval_shape(tx.init, jax.tree.map(replicated, params))


def put(x: Any, place: NamedSharding) -> Any:
    """Put an array, eager or traced, into this sharding."""
    if isinstance(place.mesh, Mesh) and not isinstance(x, Tracer):
        return jax.device_put(x, place)
    if AxisType.Explicit in place.mesh.axis_types:
        return reshard(x, place)
    return jax.lax.with_sharding_constraint(x, place)


def sharding_of(p: Any) -> NamedSharding | None:
    """Sharding of an array, a traced one or a shape on a mesh; None if unknown.

    Types of traced arrays contain explicit meshes only.
    """
    sharding = jax.typeof(p).sharding if isinstance(p, Tracer) else getattr(p, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    kinds = sharding.mesh.axis_types
    unknown = AxisType.Explicit not in kinds or AxisType.Manual in kinds
    return None if isinstance(p, Tracer) and unknown else sharding


def _is_on_another_device(p: Any) -> bool:
    """Whether a leaf is committed to devices without a mesh."""
    if isinstance(p, Tracer) or sharding_of(p) is not None:
        return False
    if isinstance(p, jax.Array):
        return p.committed
    return isinstance(p, jax.ShapeDtypeStruct) and p.sharding is not None


def _same_mesh(a: Any, b: Any) -> bool:
    if dict(a.shape) != dict(b.shape):
        return False
    known = isinstance(a, Mesh) and isinstance(b, Mesh)  # a type names no devices
    return not known or list(a.devices.flat) == list(b.devices.flat)


def _shard_count(part: Any, mesh: Any) -> int:
    return 1 if part is None else math.prod(mesh.shape[name] for name in axis_names(part))


# JAX 0.7 has the other name.
_set_mesh: Any = getattr(jax, "set_mesh", getattr(jax.sharding, "use_mesh", None))


def state_sharding(
    tx: Any, params: Any, *, mesh: Mesh | None = None, axis: Axis | None = None
) -> Any:
    """Return the shardings of an optimizer's state, one per array.

    A slot gets the sharding of its param. A slot is recognised by its name, which ends with the
    param's name, and its shape, which is equal or has a further leading axis. All other arrays
    (counts, factors of matrices) are replicated. Nothing is computed.

    With `axis`, slots are sharded further, along their longest dimension that is divisible by the
    number of devices. If a jitted step has the result as `out_shardings`, the compiler divides the
    arithmetic of the optimizer too (ZeRO-1), for every optimizer. A slot without a divisible
    dimension stays as it is.

    Args:
        tx: An optimizer, fnopt's or another library's.
        params: The params: arrays, or `jax.ShapeDtypeStruct`s with a sharding.
        mesh: The mesh; by default that of the params. Params without a mesh count as replicated,
            and so do traced params of an automatic mesh.
        axis: A mesh axis, or several, over which slots are sharded.

    Returns:
        A tree like `tx.init(params)` of `NamedSharding`s: for `out_shardings`, `jax.device_put`,
        or the restore of a checkpoint. `jax.shard_map` takes their `.spec`s.

    Raises:
        ValueError: If the params have no mesh, or different ones, or the mesh lacks `axis`.

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

    For `sharded(tx, axis)` it returns the result of `sharded(tx, axis).init(params)`. Inside
    `jax.jit` it constrains the sharding of every array of the state.

    Args:
        tx: An optimizer.
        params: The params: arrays, or `jax.ShapeDtypeStruct`s if the first state depends on no
            values (it does if an optimizer starts with a copy of the params).
        mesh: As in `state_sharding`.
        axis: As in `state_sharding`.

    Returns:
        The result of `tx.init(params)`, with the shardings of `state_sharding`.

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
