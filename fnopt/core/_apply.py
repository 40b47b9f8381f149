"""Addition of updates to params."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core._rows import Rows, is_rows
from fnopt.errors import differences, leaf_text, leaves_with_names, type_text, where
from fnopt.numerics import (
    compute_dtype,
    dtype_of,
    is_array_like,
    is_inexact,
    is_traced,
    saturating_cast,
    shape_of,
)

Params = TypeVar("Params")

_HINT = "Compute the updates from the gradient with respect to these params, and from their state."


def _is_leaf(x: Any) -> bool:
    # None means "no update", so None is a leaf here; so is `Rows`, the update of a table.
    return x is None or isinstance(x, Rows)


def _leaf_name(params: Any, i: int) -> str:
    """Name of a leaf for an error message; too slow to compute in every step."""
    return leaf_text(leaves_with_names(params, is_leaf=_is_leaf)[0][i][0])


def _add_leaf(name: Callable[[], str], p: Any, u: Any) -> Any:
    if u is None or p is None:
        if p is None and u is not None:
            raise ValueError(
                f"{where()}apply_updates: {name()} of params is None, but its update isn't, "
                "expected None as the update."
            )
        return p
    for what, x in (("param", p), ("update", u)):
        if not (isinstance(x, Rows) or is_array_like(x)):
            raise TypeError(
                f"{where()}apply_updates: {name()}: the {what} is {type_text(x)}, expected an "
                "array. Filter such leaves out of params first (Equinox: "
                "eqx.filter(model, eqx.is_inexact_array)), or pass None as their update."
            )
    if isinstance(u, Rows):
        return _add_rows(name, p, u)
    if shape_of(p) != shape_of(u):
        raise ValueError(
            f"{where()}apply_updates: {name()}: params have shape {jnp.shape(p)}, updates "
            f"have shape {jnp.shape(u)}, expected equal shapes. {_HINT}"
        )
    if _is_plain(p) and _is_plain(u) and p.dtype == u.dtype:
        # The operator `+` calls a jitted `jnp` function, which would be traced for every leaf.
        total = lax.add(p, u) if is_traced(p, u) else p + u
        return lax.convert_element_type(total, p.dtype)  # removes a weak type
    p_dtype, u_dtype = dtype_of(p), dtype_of(u)
    # The gradient of an integer is float0 (jax.grad with allow_int=True), which means no update.
    if u_dtype == jax.dtypes.float0:
        return p
    if not is_inexact(p):
        return _add_integers(name, p, u)
    # The sum is rounded once; a cast of the update to bfloat16 would be a second rounding.
    dtype = compute_dtype(p_dtype, u_dtype)
    return saturating_cast(jnp.asarray(p).astype(dtype) + jnp.asarray(u).astype(dtype), p_dtype)


def _is_plain(x: Any) -> bool:
    """Whether sums can be computed in the array's own dtype."""
    return isinstance(x, jax.Array) and x.dtype.itemsize >= 4 and is_inexact(x)


def _add_rows(name: Callable[[], str], p: Any, u: Rows) -> Any:
    if jnp.shape(p) != (u.size, *jnp.shape(u.values)[1:]):
        raise ValueError(
            f"{where()}apply_updates: {name()}: the row-sparse update belongs to a table of shape "
            f"{(u.size, *jnp.shape(u.values)[1:])}, but the parameter has shape {jnp.shape(p)}; "
            f"expected equal shapes. {_HINT}"
        )
    return u.added_to(p)


def _add_integers(name: Callable[[], str], p: Any, u: Any) -> Any:
    # No cast to float32, which represents integers only up to 2**24; a counter may be larger.
    if is_inexact(u):
        raise TypeError(
            f"{where()}apply_updates: {name()}: params are {jnp.result_type(p)}, updates are "
            f"{jnp.result_type(u)}, expected integer updates. Freeze such leaves with fnopt.freeze."
        )
    return jnp.asarray(p) + jnp.asarray(u).astype(jnp.result_type(p))


def apply_updates(params: Params, updates: Any) -> Params:
    r"""Add updates to parameters: :math:`\theta \leftarrow \theta + u`, leaf by leaf.

    The sum is computed in the wider of the two dtypes (at least float32) and stored in the params'
    dtype. Sums above the range of float16 or float8 are stored as the dtype's largest number. A
    parameter whose update is `None` doesn't change. Updates of integer or bool params (a
    counter inside a model) must be integers, and are added exactly.

    Args:
        params: A tree of arrays.
        updates: A tree of the same structure and shapes; leaves may be `None`, or `fnopt.core.Rows`
            of a table.

    Returns:
        The new params, with the dtypes of `params`.

    Raises:
        ValueError: If structures or shapes differ (updates aren't broadcast); the message names the
            leaf.
        TypeError: If an integer param has a floating update.

    Example:
        >>> import jax.numpy as jnp, fnopt
        >>> fnopt.apply_updates({"w": jnp.ones(2)}, {"w": jnp.full(2, -0.5)})
        {'w': Array([0.5, 0.5], dtype=float32)}
    """
    ps, treedef = jax.tree.flatten(params, is_leaf=_is_leaf)
    us, updates_treedef = jax.tree.flatten(updates, is_leaf=_is_leaf)
    if treedef != updates_treedef:
        raise ValueError(f"{where()}apply_updates: {_mismatch(params, updates, treedef)}")
    names = (functools.partial(_leaf_name, params, i) for i in range(len(ps)))
    return treedef.unflatten(map(_add_leaf, names, ps, us))


def _mismatch(params: Any, updates: Any, treedef: Any) -> str:
    """Error message for updates that differ from params in structure."""
    if is_pair_with(updates, 0, treedef):
        return (
            "the argument `updates` is the pair (updates, state) that tx.update returned, expected "
            "the first element of the pair. Write updates, state = tx.update(...)."
        )
    for what, tree in {"params": params, "updates": updates}.items():
        if tree is None:
            return f"{what} are None, expected equal structures. {_HINT}"
    update_names, param_names = (
        [name for name, _ in leaves_with_names(tree, is_leaf=_is_leaf)[0]]
        for tree in (updates, params)
    )
    paths_text = differences(update_names, param_names, "updates", "params")
    treedefs_text = (
        f"params have the structure {treedef}, updates have the structure "
        f"{jax.tree.structure(updates, is_leaf=_is_leaf)}"
    )
    return f"{paths_text or treedefs_text}, expected equal structures. {_HINT}"


def is_pair_with(x: Any, i: int, treedef: Any) -> bool:
    """Whether a value is a pair, such as (value, grads), whose element `i` has this structure."""
    if type(x) is not tuple or len(x) != 2:
        return False
    return jax.tree.structure(x[i], is_leaf=_is_leaf) == treedef


def cast_like(tree: Any, like: Any) -> Any:
    """Cast the leaves of a tree to the dtypes of a reference tree."""

    def cast_leaf(x: Any, y: Any) -> Any:
        if isinstance(x, Rows):  # `Rows.added_to` rounds the sum only once
            return x
        dtype = jnp.result_type(y)
        return x if jnp.result_type(x) == dtype else jnp.asarray(x).astype(dtype)

    return jax.tree.map(cast_leaf, tree, like, is_leaf=is_rows)
