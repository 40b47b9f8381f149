"""Fits that are spread over devices: every device has a queue of its own, and stops by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from fnopt.sharding import explicit_spec, is_sharded, replicate


class Split(NamedTuple):
    """The mesh, and which of its axes the fits are spread over; it can be hashed."""

    mesh: Any
    axis: Any
    explicit: bool


def split_of(arrays: Any) -> Split | None:
    """The sharding of the leading axis of the first array that is spread; None if none is.

    On a mesh with automatic axes the arrays themselves say it, not traced ones: under `jax.jit`
    the compiler decides.
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
    """`fn(*common, *own)`, run by every device for its part of the leading axis of `own`.

    Args:
        fn: The function; the leading axis of its outputs is that of `own`.
        split: How that axis lies; None runs the function as it is.
        common: Trees of arrays that all devices have whole.
        own: Trees of arrays with the leading axis.

    Returns:
        The outputs, spread as `own` is.
    """
    if split is None:
        return fn(*common, *own)
    parts, whole = PartitionSpec(split.axis), PartitionSpec()
    if split.explicit:
        common = jax.tree.map(replicate, common)
        own = jax.tree.map(lambda x: laid_first(x, split), own)
    run = jax.shard_map(
        fn,
        mesh=None if split.explicit and not jax.sharding.get_abstract_mesh().empty else split.mesh,
        in_specs=((whole,) * len(common) + (parts,) * len(own)),
        out_specs=parts,
        check_vma=False,
    )
    return run(*common, *own)


def laid_first(x: jax.Array, split: Split) -> jax.Array:
    """The array with its leading axis spread, and no other."""
    sharding = NamedSharding(split.mesh, PartitionSpec(split.axis, *[None] * (x.ndim - 1)))
    return jax.sharding.reshard(x, sharding)
