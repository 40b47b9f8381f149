"""Loops and choices in which numbers begin to differ between devices.

Inside `jax.shard_map` with `check_vma=True` the types of a loop's carry, and those of the branches
of a choice, have to say the same before and after: a start or a zero that is one on all devices
doesn't fit numbers that are each device's own. Elsewhere these are the functions of `jax.lax`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from fnopt.core._named_axes import row_axes
from fnopt.core._varying import varies_over, varying_like


def while_loop(test: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """`jax.lax.while_loop` whose carry differs over the devices over which part of it does."""
    # Sums over rows of all devices say themselves what is the same on all of them.
    if row_axes() or not any(map(varies_over, jax.tree.leaves(init))):
        return lax.while_loop(test, body, init)

    def typed(carry: Any) -> Any:
        return varying_like(body(carry), init)

    return lax.while_loop(test, typed, varying_like(init, init))


def cond(which: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """`jax.lax.cond` whose results differ over the devices over which the choice does."""
    if row_axes() or not varies_over(which):
        return lax.cond(which, first, second)
    return lax.cond(which, *(lambda fn=fn: varying_like(fn(), which) for fn in (first, second)))


def typed_start(fn: Callable[..., Any], params: Any, *args: Any) -> Any:
    """Params, typed to differ over the devices over which `fn(params, *args)` does."""
    axes = tuple(getattr(jax.sharding.get_abstract_mesh(), "manual_axes", ()))
    if row_axes() or not axes or not varies_over(lax.axis_index(axes)):
        return params
    return varying_like(params, jax.eval_shape(fn, params, *args))
