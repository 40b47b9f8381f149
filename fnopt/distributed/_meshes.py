"""Meshes and partition specs of params."""

from __future__ import annotations

import math
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding, reshard

from fnopt.errors import leaf_text, leaves_with_names, names_text
from fnopt.sharding import is_tracing

Axis = str | tuple[str, ...]


def axis_names(axis: Axis) -> tuple[str, ...]:
    """Convert one axis name, or several, to a tuple."""
    names = (axis,) if isinstance(axis, str) else axis
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise TypeError("expected a name, such as 'data', or a tuple of names")
    if len({*names}) < len(names):
        raise ValueError("expected every name once")
    return tuple(names)


def common_mesh(params: Any, mesh: Any, name: str) -> Any:
    """Return `mesh`, or else the mesh of the params; check that all params are on this mesh."""
    named_params = leaves_with_names(params)[0]
    # Leaves that are committed without a mesh come first, so that the message names such a leaf.
    shardings = [(path, p.sharding) for path, p in named_params if _is_on_another_device(p)]
    shardings += [(path, s) for path, p in named_params if (s := sharding_of(p)) is not None]
    if mesh is None:
        meshes = [s.mesh for _, s in shardings if isinstance(s, NamedSharding)] or context_mesh()
        if not meshes and any(isinstance(p, Tracer) for _, p in named_params):
            raise ValueError(
                f"{name}: the params are traced without an explicit mesh, expected params whose "
                f"shardings are known. Call {name} outside of jax.jit, or pass mesh= to treat the "
                "params as replicated."
            )
        if not meshes:
            example = f" ({leaf_text(shardings[0][0])} has {shardings[0][1]})" if shardings else ""
            raise ValueError(
                f"{name}: the params aren't on a mesh{example}, expected params on a mesh. Put the "
                "params on a mesh with jax.device_put(params, NamedSharding(mesh, "
                f"PartitionSpec())), pass mesh=, or call {name} within jax.set_mesh(mesh)."
            )
        mesh = meshes[0]
    for path, sharding in shardings:
        is_on_mesh = isinstance(sharding, NamedSharding) and _same_mesh(sharding.mesh, mesh)
        if not is_on_mesh:
            raise ValueError(
                f"{name}: {leaf_text(path)} of the params has the sharding {sharding}, expected "
                f"a sharding on the mesh {dict(mesh.shape)} with the axes "
                f"{names_text(list(mesh.axis_names))}. Put all params on one mesh with "
                "jax.device_put first."
            )
    return mesh


def context_mesh() -> list[Any]:
    """List with the mesh that `jax.set_mesh` has set; empty if there is no such mesh."""
    # While a program is traced, only the abstract mesh is available; `get_mesh` raises.
    getter = "get_abstract_mesh" if is_tracing() else "get_mesh"
    mesh: Any = getattr(jax.sharding, getter, lambda: None)()
    return [] if mesh is None or mesh.empty else [mesh]


def check_axis(axis: Axis, mesh: Any, name: str) -> tuple[str, ...]:
    """Check that the mesh has these axes, and return their names."""
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
    """Shard the longest divisible dimension over additional axes, and return the new spec.

    The spec doesn't change if no dimension is divisible, or if it already contains an axis.
    """
    names = axis_names(names)
    used_names = {name for part in spec if part is not None for name in axis_names(part)}
    n = math.prod(mesh.shape[name] for name in names)
    shards = [
        1 if part is None else math.prod(mesh.shape[name] for name in axis_names(part))
        for part in spec
    ]
    local = [length // count for length, count in zip(shape, shards, strict=True)]
    divisible = [i for i, length in enumerate(local) if length and length % n == 0]
    if used_names & {*names} or not divisible:
        return spec
    # Division of the longest dimension leaves the longest shards for a division by further axes.
    i = max(divisible, key=lambda i: local[i])
    old_axes = () if spec[i] is None else axis_names(spec[i])
    new_axes = [*old_axes, *names]
    return (*spec[:i], tuple(new_axes) if len(new_axes) > 1 else new_axes[0], *spec[i + 1 :])


def put(x: Any, sharding: NamedSharding) -> Any:
    """Reshard an array, eager or traced."""
    if isinstance(sharding.mesh, Mesh) and not isinstance(x, Tracer):
        return jax.device_put(x, sharding)
    if AxisType.Explicit in sharding.mesh.axis_types:
        return reshard(x, sharding)
    # The type has no sharding over automatic axes, so the compiler gets a constraint.
    return jax.lax.with_sharding_constraint(x, sharding)


def sharding_of(p: Any) -> NamedSharding | None:
    """Sharding of an array, a traced array or a shape on a mesh; None if unknown.

    The types of traced arrays contain only explicit meshes.
    """
    sharding = jax.typeof(p).sharding if isinstance(p, Tracer) else getattr(p, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    axis_types = sharding.mesh.axis_types
    is_unknown = AxisType.Explicit not in axis_types or AxisType.Manual in axis_types
    return None if isinstance(p, Tracer) and is_unknown else sharding


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
    have_devices = isinstance(a, Mesh) and isinstance(b, Mesh)  # the mesh of a type has no devices
    return not have_devices or list(a.devices.flat) == list(b.devices.flat)
