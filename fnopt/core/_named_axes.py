"""Sums and parts over the devices of a named axis."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core._errors import where
from fnopt.core._paths import leaves_with_names, shown
from fnopt.core._varying import varies_over, varying_like


def check_axis(axis_name: Any, what: str = "axis_name") -> None:
    """Refuses a named axis that isn't there.

    Args:
        axis_name: A name, or a tuple of names; None for no axis.
        what: What the argument is called, for the message.
    """
    for name in _names(axis_name):
        try:
            jax.lax.psum(1, name)
        except NameError:
            raise ValueError(
                f"{where()}{what} = {axis_name!r}, but no axis {name!r} is in scope here. Call it "
                "inside jax.shard_map over a mesh that has this axis, or inside jax.vmap with "
                "this axis_name; under plain jax.jit leave it out, for sums are over all devices "
                "there."
            ) from None


def over_devices(sums: Any, axis_name: Any) -> Any:
    """The sums over all devices of a named axis, from those of each; unchanged without an axis."""
    if axis_name is None:
        return sums
    check_axis(axis_name)
    return jax.lax.psum(sums, axis_name)


def from_devices(tree: Any, axis_name: Any) -> Any:
    """The leading axes of all devices, end to end and the same everywhere."""
    if axis_name is None:
        return tree
    check_axis(axis_name)
    return jax.tree.map(lambda x: gathered_over(x, axis_name, tiled=True), tree)


def own_rows(x: jax.Array, axis_name: Any) -> jax.Array:
    """This device's part of the leading axis of an array that all devices have; `x` without one."""
    if axis_name is None:
        return x
    n = x.shape[0] // jax.lax.psum(1, axis_name)
    here = jax.lax.axis_index(axis_name)
    return jax.lax.dynamic_slice_in_dim(varying_like(x, here), n * here, n)


def gathered_over(x: Any, axis_name: Any, tiled: bool = False) -> jax.Array:
    """The arrays of all devices, stacked, or end to end if tiled."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        impl = jax.random.key_impl(x)
        data = gathered_over(jax.random.key_data(x), axis_name, tiled)
        return jax.random.wrap_key_data(data, impl=impl)
    if varies_over(jax.lax.axis_index(axis_name)):  # all get the same, and the type shall say so
        return _all_gather_invariant(x, axis_name, tiled=tiled)
    return jax.lax.all_gather(x, axis_name, tiled=tiled)


# before JAX 0.9 it has a name of its own
_all_gather_invariant: Any = getattr(jax.lax, "all_gather_invariant", None) or functools.partial(
    jax.lax.all_gather, to="invarying"
)


def _names(axis_name: Any) -> tuple[Any, ...]:
    if axis_name is None:
        return ()
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


# Tracing is plain Python, so a solver whose residuals are divided can tell all that is inside.
_axes: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("row_axes", default=())


@contextlib.contextmanager
def rows_over(axis_name: Any) -> Iterator[None]:
    """Says that residuals inside are some rows of a vector that is divided over named axes."""
    check_axis(axis_name)
    token = _axes.set(_names(axis_name))
    try:
        yield
    finally:
        _axes.reset(token)


def check_same_params(params: Any) -> None:
    """Refuses params that differ between the devices of `row_axes`, as far as types say so."""
    for path, leaf in leaves_with_names(params)[0] if row_axes() else ():
        axes = varies_over(leaf) & {*row_axes()} if hasattr(leaf, "dtype") else ()
        if axes:
            axis = min(axes)
            raise ValueError(
                f"{where()}{shown(path)} of the params differs by its type between the devices of "
                f"{axis!r}, expected params that are the same on all devices of axis_name. If they "
                "are (parts that jax.lax.all_gather has put together, say), tell JAX: "
                f"params = jax.lax.pmean(params, {axis!r})."
            )


def row_axes() -> tuple[Any, ...]:
    """The named axes that residuals are divided over; none outside `rows_over`."""
    return _axes.get()


def row_parts() -> int:
    """How many devices have rows."""
    return jax.lax.psum(1, row_axes()) if row_axes() else 1


def row_total(sums: Any) -> Any:
    """Sums over all rows, from those over this device's."""
    return jax.lax.psum(sums, row_axes()) if row_axes() else sums


def row_most(x: jax.Array) -> jax.Array:
    """The largest of all rows, from that of this device's."""
    return jax.lax.pmax(x, row_axes()) if row_axes() else x


def any_row(found: jax.Array) -> jax.Array:
    """Whether any row is such, on any device."""
    some = jnp.any(found)
    return row_most(some.astype(jnp.int32)) > 0 if row_axes() else some


def rows_gathered(x: jax.Array) -> jax.Array:
    """The rows of all devices, end to end."""
    return gathered_over(x, row_axes(), tiled=True) if row_axes() else x


def own(tree: Any) -> Any:
    """The tree, typed as this device's own, so that derivatives by it are of its rows alone."""
    return varying_like(tree, jax.lax.axis_index(row_axes())) if row_axes() else tree
