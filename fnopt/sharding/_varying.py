"""Device-varying arrays: those that differ between the devices of a named axis.

Inside `jax.shard_map` with `check_vma=True` (the default) JAX sums a derivative by params that are
the same on all devices over the devices. That sum is wrong for the gradient of one example: it
would add up examples of different devices.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.core import ShapedArray


def varying_axes(x: Any) -> frozenset[str]:
    """The named axes over which an array (or its type) varies; none where types don't say."""
    aval = x if isinstance(x, (jax.ShapeDtypeStruct, ShapedArray)) else jax.typeof(x)
    axes = getattr(aval, "vma", None)  # before JAX 0.10
    axes = axes or getattr(getattr(aval, "manual_axis_type", None), "varying", None)
    return frozenset(axes or ())


def pvary_like(tree: Any, like: Any) -> Any:
    """Mark arrays as varying over all named axes over which a leaf of `like` does."""
    axes = {a for x in jax.tree.leaves(like) if hasattr(x, "dtype") for a in varying_axes(x)}
    if not axes:
        return tree

    def pvary_leaf(x: Any) -> Any:
        lacking = tuple(sorted(axes - varying_axes(x)))
        return _pvary(x, lacking) if lacking else x

    return jax.tree.map(pvary_leaf, tree)


def _pvary(x: Any, axes: tuple[str, ...]) -> Any:
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)  # pyright: ignore[reportAttributeAccessIssue]  before JAX 0.9
