"""Loops and conditionals whose results vary over devices.

Inside `jax.shard_map` with `check_vma=True` the carry of a loop has to vary over the same axes
before and after, and so do the results of both branches of a conditional: a start that is the same
on all devices doesn't fit values that vary. Elsewhere these are the functions of `jax.lax`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from fnopt.sharding._collectives import row_axes
from fnopt.sharding._varying import pvary_like, varying_axes


def while_loop(cond_fun: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """`jax.lax.while_loop` whose whole carry varies over the devices over which part of it does."""
    # Sums over the rows of all devices have types that say what is the same on all of them.
    if row_axes() or not any(map(varying_axes, jax.tree.leaves(init))):
        return lax.while_loop(cond_fun, body, init)

    def varying_body(carry: Any) -> Any:
        return pvary_like(body(carry), init)

    return lax.while_loop(cond_fun, varying_body, pvary_like(init, init))


def cond(pred: Any, true_fun: Callable[[], Any], false_fun: Callable[[], Any]) -> Any:
    """`jax.lax.cond` whose results vary over the devices over which the predicate does."""
    if row_axes() or not varying_axes(pred):
        return lax.cond(pred, true_fun, false_fun)
    return lax.cond(pred, *(lambda fn=fn: pvary_like(fn(), pred) for fn in (true_fun, false_fun)))


def pvary_for(fn: Callable[..., Any], params: Any, *args: Any) -> Any:
    """Mark params as varying over the devices over which `fn(params, *args)` does."""
    axes = tuple(getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ()))
    if row_axes() or not axes or not varying_axes(lax.axis_index(axes)):
        return params
    return pvary_like(params, jax.eval_shape(fn, params, *args))
