"""Sharding of a batch of fits over devices, each of which runs its fits independently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from fnopt.sharding import explicit_spec, is_sharded, replicate


class Split(NamedTuple):
    """Hashable sharding of the axis of fits."""

    mesh: Any
    axis: Any  # the mesh axis or axes
    explicit: bool  # whether the mesh axes are explicit


def split_of(arrays: Any) -> Split | None:
    """Find the sharding of the leading axis of the first sharded array, or return None.

    On a mesh with automatic axes, only concrete arrays have a sharding. Under `jax.jit`, the
    compiler chooses the sharding.
    """
    for x in jax.tree.leaves(arrays):
        if is_sharded(x) and explicit_spec(x)[0]:
            return Split(jax.typeof(x).sharding.mesh, explicit_spec(x)[0], True)
        sharding = None if isinstance(x, Tracer) else getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and any(sharding.spec[:1]):
            return Split(sharding.mesh, sharding.spec[0], False)
    return None


def map_devices(
    fn: Callable[..., Any], split: Split | None, common: tuple[Any, ...], own: tuple[Any, ...]
) -> Any:
    """Call `fn(*common, *own)` on every device, with the device's part of the arrays in `own`.

    Args:
        fn: The function. Its outputs have the leading axis of the arrays in `own`.
        split: The sharding of this axis; None to call the function without sharding.
        common: Trees of arrays that are replicated on all devices.
        own: Trees of arrays that are sharded along the leading axis.

    Returns:
        The outputs, sharded like `own`.
    """
    if split is None:
        return fn(*common, *own)
    sharded, replicated = PartitionSpec(split.axis), PartitionSpec()
    if split.explicit:
        common = jax.tree.map(replicate, common)
        spec = NamedSharding(split.mesh, sharded)
        own = jax.tree.map(lambda x: jax.sharding.reshard(x, spec), own)
    run = jax.shard_map(
        fn,
        # None selects the mesh of the context.
        mesh=None if split.explicit and not jax.sharding.get_abstract_mesh().empty else split.mesh,
        in_specs=((replicated,) * len(common) + (sharded,) * len(own)),
        out_specs=sharded,
        check_vma=False,
    )
    return run(*common, *own)
