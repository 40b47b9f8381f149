"""Calls of a user that aren't under `jax.jit`, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fnopt.gradients._loss import BoundLoss
from fnopt.programs import TracedFunction, is_eager, is_on_one_device, jit_call, trace_function


def run_compiled(run: Callable[..., Any], bound: BoundLoss, *args: Any, **options: Any) -> Any:
    """Calls `run(bound, *args, **options)`; where it runs now, as a program that is kept.

    Operation by operation, its loops and conditions would be compiled anew in every call.

    Args:
        run: A function that reads nothing but its arguments: not a closure.
        bound: The loss, and what it is called with.
        *args: Trees of arrays and numbers.
        **options: What isn't an array.
    """
    loss = _traced_loss(bound, args, options)
    if loss is None:
        with bound.on_its_mesh():
            return run(bound, *args, **options)
    return jit_call(
        _rebound, loss, bound.params, bound.batch, args, run=run, size=bound.size, **options
    )


def _rebound(
    loss: TracedFunction, params: Any, batch: Any, args: Any, *, run: Any, size: int, **options: Any
) -> Any:
    return run(BoundLoss(loss, params, batch, size, params), *args, **options)


def _traced_loss(
    bound: BoundLoss, args: tuple[Any, ...], options: dict[str, Any]
) -> TracedFunction | None:
    """The loss as a value, if the call runs now and a program of it can be found again."""
    given = bound.params, bound.batch, args
    static = jax.tree.structure(given), *options.values()
    if not (is_eager(given) and is_on_one_device(given) and _can_be_found(static)):
        return None
    if any(jax.typeof(x).weak_type for x in jax.tree.leaves(bound.batch)):
        return None  # an example without the axis would have to be so too
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), bound.batch)
    return trace_function(bound.loss, bound.params, example)


def _can_be_found(static: Any) -> bool:
    try:
        hash(static)
    except TypeError:
        return False
    return True
