"""The mesh that params are on, and how each of them is divided over it."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fnopt.core import leaves_with_names, listing, shown

Axis = str | tuple[str, ...]


def axis_names(axis: Axis) -> tuple[str, ...]:
    """One name or several, as several."""
    names = (axis,) if isinstance(axis, str) else axis
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise TypeError("expected a name, such as 'data', or a tuple of names")
    if len({*names}) < len(names):
        raise ValueError("expected every name once")
    return tuple(names)


def mesh_of_params(params: Any, mesh: Any, name: str) -> Any:
    """The given mesh, or the one that the params are on; all of them have to be on it."""
    placed = [(path, p.sharding) for path, p in leaves_with_names(params)[0] if _is_placed(p)]
    if mesh is None:
        meshes = [s.mesh for _, s in placed if isinstance(s, NamedSharding)]
        if not meshes:
            there = f" ({shown(placed[0][0])} has {placed[0][1]})" if placed else ""
            raise ValueError(
                f"{name}: the params are on no mesh{there}. Put them on one with "
                "jax.device_put(params, NamedSharding(mesh, PartitionSpec())), or give mesh=."
            )
        mesh = meshes[0]
    for path, sharding in placed:
        there = isinstance(sharding, NamedSharding) and _same_mesh(sharding.mesh, mesh)
        if not there:
            raise ValueError(
                f"{name}: {shown(path)} of the params has the sharding {sharding}, expected one on "
                f"the mesh {dict(mesh.shape)} of axes {listing(list(mesh.axis_names))}: put all "
                "params on one mesh with jax.device_put first."
            )
    return mesh


def check_axis(axis: Axis, mesh: Any, name: str) -> tuple[str, ...]:
    """The names in `axis`, all of which the mesh has to have."""
    try:
        names = axis_names(axis)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: axis = {axis!r}: {error}.") from None
    for one in names:
        if one not in mesh.axis_names:
            raise ValueError(
                f"{name}: axis = {one!r}, expected an axis of the mesh: "
                f"{listing(list(mesh.axis_names))}."
            )
    return names


def spec_of(p: Any) -> tuple[Any, ...]:
    """Over which axes every dimension of a leaf is divided; all None for one on no mesh."""
    sharding = getattr(p, "sharding", None)
    ndim = len(p.shape) if hasattr(p, "shape") else 0
    spec = tuple(sharding.spec) if isinstance(sharding, NamedSharding) else ()
    return spec + (None,) * (ndim - len(spec))


def divided(
    shape: tuple[int, ...], spec: tuple[Any, ...], names: Axis, mesh: Any
) -> tuple[Any, ...]:
    """A spec that divides the longest dimension that it can over further axes."""
    names = axis_names(names)
    used = {name for part in spec if part is not None for name in axis_names(part)}
    n = math.prod(mesh.shape[name] for name in names)
    here = [length // _ways(part, mesh) for length, part in zip(shape, spec, strict=True)]
    fitting = [i for i, length in enumerate(here) if length and length % n == 0]
    if used & {*names} or not fitting:
        return spec
    i = max(fitting, key=lambda i: here[i])
    old = () if spec[i] is None else axis_names(spec[i])
    new = [*old, *names]
    return (*spec[:i], tuple(new) if len(new) > 1 else new[0], *spec[i + 1 :])


def whole_on(mesh: Any, params: Any) -> Any:
    """The types of params that are whole on every device of a mesh whose axes are explicit.

    What an optimizer makes of them has the sharding in its type, whatever the mesh's own axes are.
    """
    kinds = (jax.sharding.AxisType.Explicit,) * len(mesh.axis_names)
    abstract = jax.sharding.AbstractMesh(
        tuple(mesh.shape.values()), tuple(mesh.axis_names), axis_types=kinds
    )
    whole = NamedSharding(abstract, PartitionSpec())

    def one(p: Any) -> Any:
        p = p if hasattr(p, "dtype") else jax.numpy.asarray(p)
        return jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=whole)

    return jax.tree.map(one, params)


def _is_placed(p: Any) -> bool:
    if isinstance(p, jax.Array) and not isinstance(p, Tracer):
        return isinstance(p.sharding, NamedSharding) or p.committed
    return isinstance(p, jax.ShapeDtypeStruct) and p.sharding is not None


def _same_mesh(a: Any, b: Any) -> bool:
    return dict(a.shape) == dict(b.shape) and list(_devices(a)) == list(_devices(b))


def _devices(mesh: Any) -> Any:
    return mesh.devices.flat if isinstance(mesh, Mesh) else ()


def _ways(part: Any, mesh: Any) -> int:
    return 1 if part is None else math.prod(mesh.shape[name] for name in axis_names(part))
