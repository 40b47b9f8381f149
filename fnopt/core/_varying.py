"""Arrays that differ between the devices of a named axis, as far as their type says so.

Inside `jax.shard_map` with `check_vma=True` (the default) a derivative by params that are the same
on all devices is summed over the devices, by JAX itself. Of one example's gradient that is not the
gradient: examples of different devices would be added up.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray


def varies_over(x: Any) -> frozenset[str]:
    """The named axes over which an array (or its type) differs; none where types don't say."""
    aval = x if isinstance(x, (jax.ShapeDtypeStruct, ShapedArray)) else jax.typeof(x)
    found = getattr(aval, "vma", None)  # before JAX 0.10
    found = found or getattr(getattr(aval, "manual_axis_type", None), "varying", None)
    return frozenset(found or ())


def varying_like(tree: Any, like: Any) -> Any:
    """The tree, typed to differ over all axes over which a leaf of `like` does."""
    axes = {a for x in jax.tree.leaves(like) if hasattr(x, "dtype") for a in varies_over(x)}
    if not axes:
        return tree

    def one(x: Any) -> Any:
        lacking = tuple(sorted(axes - varies_over(x)))
        return _cast(x, lacking) if lacking else x

    return jax.tree.map(one, tree)


def on_mesh_of(x: jax.Array, like: jax.Array) -> jax.Array:
    """The array, its type on the mesh of another: JAX 0.7 compares a value and its change so.

    What depends on no input of a `shard_map` is on none.
    """
    if jax.typeof(x).sharding.mesh == jax.typeof(like).sharding.mesh:
        return x
    return x + jnp.zeros_like(like)


def _cast(x: Any, axes: tuple[str, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)  # pyright: ignore[reportAttributeAccessIssue]  before JAX 0.9
