"""Device-varying arrays: collectives over an optional named axis, loops and conditionals.

Inside `jax.shard_map` with `check_vma=True` (the default), the derivative with respect to
replicated params is summed over the devices. This sum is wrong for the gradient of one example,
because each device has different examples. The carry of a loop must vary over the same axes before
and after an iteration. The results of both branches of a conditional must also vary over the same
axes. Outside of `jax.shard_map`, the functions of this file are equal to the functions of
`jax.lax`.

A solver whose residuals are sharded over named axes declares these axes once (`rows_sharded_over`).
Outside this context, the functions for rows return their input.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray

from fnopt.sharding._explicit import axis_names


def varying_axes(x: Any) -> frozenset[str]:
    """Named axes over which an array (or its type) varies; empty if types don't track them."""
    aval = x if isinstance(x, (jax.ShapeDtypeStruct, ShapedArray)) else jax.typeof(x)
    axes = getattr(aval, "vma", None)  # JAX before 0.10
    axes = axes or getattr(getattr(aval, "manual_axis_type", None), "varying", None)
    return frozenset(axes or ())


def pvary_like(tree: Any, like: Any) -> Any:
    """Mark arrays as varying over each named axis over which a leaf of `like` varies."""
    axes = {a for x in jax.tree.leaves(like) if hasattr(x, "dtype") for a in varying_axes(x)}
    if not axes:
        return tree

    def pvary_leaf(x: Any) -> Any:
        # JAX raises an error if the array already varies over the axis.
        missing = tuple(sorted(axes - varying_axes(x)))
        if not missing:
            return x
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(x, missing, to="varying")
        return jax.lax.pvary(x, missing)  # pyright: ignore[reportAttributeAccessIssue]  before JAX 0.9

    return jax.tree.map(pvary_leaf, tree)


def while_loop(cond_fun: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """`jax.lax.while_loop` whose carry varies over all axes over which any of its leaves varies."""
    # Inside `rows_sharded_over`, the carry contains sums over the rows of all devices, whose types
    # don't vary over devices.
    if row_axes() or not any(map(varying_axes, jax.tree.leaves(init))):
        return lax.while_loop(cond_fun, body, init)

    return lax.while_loop(
        # JAX requires the carry to vary over the same mesh axes before and after the body.
        cond_fun,
        lambda carry: pvary_like(body(carry), init),
        pvary_like(init, init),
    )


def cond(pred: Any, true_fun: Callable[[], Any], false_fun: Callable[[], Any]) -> Any:
    """`jax.lax.cond` whose results vary over each axis over which the predicate varies."""
    if row_axes() or not varying_axes(pred):
        return lax.cond(pred, true_fun, false_fun)
    # JAX requires both branches to vary over the same mesh axes.
    return lax.cond(pred, *(lambda fn=fn: pvary_like(fn(), pred) for fn in (true_fun, false_fun)))


def pvary_for(fn: Callable[..., Any], params: Any, *args: Any) -> Any:
    """Mark params as varying over each axis over which `fn(params, *args)` varies."""
    # Outside of `shard_map`, and with `check_vma=False`, types don't track varying axes.
    axes = tuple(getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ()))
    if row_axes() or not axes or not varying_axes(lax.axis_index(axes)):
        return params
    return pvary_like(params, jax.eval_shape(fn, params, *args))


def check_axis_name(axis_name: Any) -> None:
    """Raise a ValueError for a named axis that isn't in scope.

    Args:
        axis_name: A name, or a tuple of names; None for no axis.
    """
    for name in axis_names(axis_name):
        try:
            jax.lax.psum(1, name)  # a constant needs no communication: JAX only looks up the name
        except NameError:
            raise ValueError(
                f"axis_name = {axis_name!r}, but no axis {name!r} is in scope here; expected an "
                "axis of an enclosing jax.shard_map or jax.vmap. Call the function inside "
                "jax.shard_map over a mesh with this axis, or inside jax.vmap with this axis_name. "
                "Under plain jax.jit omit axis_name, because sums include all devices there."
            ) from None


def psum(sums: Any, axis_name: Any) -> Any:
    """`jax.lax.psum` over a named axis; without an axis, return the input."""
    if axis_name is None:
        return sums
    check_axis_name(axis_name)
    return jax.lax.psum(sums, axis_name)


def all_gather_tree(tree: Any, axis_name: Any) -> Any:
    """Concatenate the arrays of all devices along axis 0; without a named axis, return the tree."""
    if axis_name is None:
        return tree
    check_axis_name(axis_name)
    return jax.tree.map(lambda x: all_gather(x, axis_name, tiled=True), tree)


def local_rows(x: jax.Array, axis_name: Any) -> jax.Array:
    """Slice this device's rows (axis 0) of a replicated array; without a named axis, return it."""
    if axis_name is None:
        return x
    n = x.shape[0] // jax.lax.psum(1, axis_name)
    index = jax.lax.axis_index(axis_name)
    return jax.lax.dynamic_slice_in_dim(pvary_like(x, index), n * index, n)


def all_gather(x: Any, axis_name: Any, tiled: bool = False) -> jax.Array:
    """`jax.lax.all_gather` with a result that doesn't vary over devices; also for PRNG keys."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # collectives don't support typed keys
        impl = jax.random.key_impl(x)
        data = all_gather(jax.random.key_data(x), axis_name, tiled)
        return jax.random.wrap_key_data(data, impl=impl)
    if varying_axes(jax.lax.axis_index(axis_name)):
        return _all_gather_invariant(x, axis_name, tiled=tiled)
    return jax.lax.all_gather(x, axis_name, tiled=tiled)


# Before JAX 0.9 this collective has another name.
_all_gather_invariant: Any = getattr(jax.lax, "all_gather_invariant", None) or functools.partial(
    jax.lax.all_gather, to="invarying"
)


# Tracing is plain Python, so a context variable reaches all functions that a solver calls.
_axes: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("row_axes", default=())


@contextlib.contextmanager
def rows_sharded_over(axis_name: Any) -> Iterator[None]:
    """Declare that residuals are the rows of a vector that is sharded over named axes."""
    check_axis_name(axis_name)
    token = _axes.set(axis_names(axis_name))
    try:
        yield
    finally:
        _axes.reset(token)


def row_axes() -> tuple[Any, ...]:
    """The named axes over which residuals are sharded; none outside `rows_sharded_over`."""
    return _axes.get()


def row_shards() -> int:
    """The number of devices over which rows are sharded."""
    return jax.lax.psum(1, row_axes()) if row_axes() else 1


def psum_rows(sums: Any) -> Any:
    """Sum over devices: from sums over each device's rows to the sum over all rows."""
    return jax.lax.psum(sums, row_axes()) if row_axes() else sums


def pmax_rows(x: jax.Array) -> jax.Array:
    """Maximum over devices: from maxima over each device's rows to the maximum over all rows."""
    return jax.lax.pmax(x, row_axes()) if row_axes() else x


def any_row(mask: jax.Array) -> jax.Array:
    """`jnp.any` over the rows of all devices."""
    local = jnp.any(mask)
    return pmax_rows(local.astype(jnp.int32)) > 0 if row_axes() else local


def all_gather_rows(x: jax.Array) -> jax.Array:
    """Concatenate the rows of all devices."""
    return all_gather(x, row_axes(), tiled=True) if row_axes() else x


def pvary_over_rows(tree: Any) -> Any:
    """Mark arrays as varying, so that their derivatives refer to this device's rows only."""
    return pvary_like(tree, jax.lax.axis_index(row_axes())) if row_axes() else tree
