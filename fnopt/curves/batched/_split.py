"""Fits sharded over devices; every device has a separate queue and separate stopping tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from fnopt.sharding import explicit_spec, is_sharded, replicate


class Split(NamedTuple):
    """A mesh, and the axes over which the fits are sharded; hashable."""

    mesh: Any
    axis: Any
    explicit: bool


def split_of(arrays: Any) -> Split | None:
    """Sharding of the leading axis of the first sharded array; None if there is none.

    On a mesh with automatic axes, concrete arrays have a sharding. Traced arrays have none, because
    under `jax.jit` the compiler chooses the sharding.
    """
    for x in jax.tree.leaves(arrays):
        if is_sharded(x) and explicit_spec(x)[0]:
            return Split(jax.typeof(x).sharding.mesh, explicit_spec(x)[0], True)
        sharding = None if isinstance(x, Tracer) else getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and any(sharding.spec[:1]):
            return Split(sharding.mesh, sharding.spec[0], False)
    return None


def by_device(
    fn: Callable[..., Any], split: Split | None, common: tuple[Any, ...], own: tuple[Any, ...]
) -> Any:
    """Run `fn(*common, *own)` on every device with the device's part of the leading axis of `own`.

    Args:
        fn: The function; its outputs have the leading axis of `own`.
        split: The sharding of this axis; None calls the function directly.
        common: Trees of arrays that are replicated on all devices.
        own: Trees of arrays with the leading axis.

    Returns:
        The outputs, sharded like `own`.
    """
    if split is None:
        return fn(*common, *own)
    parts, whole = PartitionSpec(split.axis), PartitionSpec()
    if split.explicit:
        common = jax.tree.map(replicate, common)
        spec = NamedSharding(split.mesh, parts)
        own = jax.tree.map(lambda x: jax.sharding.reshard(x, spec), own)
    run = jax.shard_map(
        fn,
        mesh=None if split.explicit and not jax.sharding.get_abstract_mesh().empty else split.mesh,
        in_specs=((whole,) * len(common) + (parts,) * len(own)),
        out_specs=parts,
        check_vma=False,
    )
    return run(*common, *own)
