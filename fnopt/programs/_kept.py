"""Compilation once for a program, not once for a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import eval_jaxpr

from fnopt.programs._key import UnidentifiedError, key_of
from fnopt.programs._parcel import Parcel, packed, unpacked
from fnopt.programs._recorded import KEPT, Record, Recorded, operations
from fnopt.programs._tracing import any_traced, runs_now, uncached


def call_compiled(fn: Callable[..., Any], *args: Any) -> Any:
    r"""Call `jax.jit(fn)(*args)`, and compile each program once.

    `jax.jit` keeps its programs by the identity of a function, and whatever else the function
    reads is as it was at the first call. A function that is called with closures of a user
    (residuals that close over data, most often) needs the opposite: here it is traced in every
    call, so nothing can be stale, and what is compiled is looked up by the program that comes out.
    Arrays that it closes over are arguments of that program: other data of the same shapes need
    no other compilation.

    Tracing takes a small part of the time of a compilation, but it is not free: a loop of many
    calls belongs into a function under `jax.jit`. There, or under `jax.grad` and `jax.vmap`, this
    is `jax.jit(fn)(*args)`. A program that calls back to Python is compiled in every call: whom it
    calls is most often made anew.

    Args:
        fn: A function of pytrees of arrays.
        *args: Its arguments.

    Returns:
        What `fn` returns.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.programs import call_compiled
        >>> [float(call_compiled(lambda x: x * scale, jnp.float32(2))) for scale in (1.0, 3.0)]
        [2.0, 6.0]
    """
    if not runs_now(args):
        return jax.jit(fn)(*args)
    closed, shapes = operations(fn, args)
    if any_traced(closed.consts):
        return jax.jit(fn)(*args)
    run, key, leaves = call_recorded, object(), jax.tree.leaves(args)
    try:
        key = key_of(closed.jaxpr)
    except UnidentifiedError:
        run = _call_once
    program = Recorded(Record(key, closed.jaxpr, leaves), tuple(closed.consts))
    return jax.tree.unflatten(jax.tree.structure(shapes), run(_outputs, program, leaves))


def _outputs(program: Recorded, leaves: list[Any]) -> list[Any]:
    return eval_jaxpr(program.record.jaxpr, list(program.closed_over), *leaves)


def _call_once(fn: Callable[..., Any], *args: Any) -> Any:
    return jax.jit(uncached(fn))(*args)


def call_recorded(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call `jax.jit(fn)(*args, **options)` and keep the program in a bounded cache.

    Args:
        fn: A function that reads nothing but its arguments: not a closure.
        *args: Trees of arrays, among them functions that are :class:`Recorded`.
        **options: What isn't an array, and can be hashed.

    Returns:
        What `fn` returns.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.programs import call_recorded, recorded
        >>> def twice(fn, x):
        ...     return fn(fn(x))
        >>> x = jnp.float32(2)
        >>> [float(call_recorded(twice, recorded(lambda x: x**k, x), x)) for k in (2, 3)]
        [16.0, 512.0]
    """
    leaves, structure = jax.tree.flatten(args)
    program = _program(fn, structure, tuple(sorted(options.items())), runs_on_one_device(leaves))
    out = program(*leaves)
    return unpacked(out) if isinstance(out, Parcel) else out


@functools.lru_cache(maxsize=KEPT)
def _program(
    fn: Callable[..., Any], structure: Any, options: Any, packs: bool
) -> Callable[..., Any]:
    def program(*leaves: Any) -> Any:
        out = fn(*jax.tree.unflatten(structure, leaves), **dict(options))
        return packed(out) if packs else out

    return jax.jit(program)


def runs_on_one_device(args: Any) -> bool:
    """Whether a program of these arrays runs now, on a single device."""
    single = not any_traced(args) and jax.sharding.get_abstract_mesh().empty
    return single and all(
        len(leaf.sharding.device_set) == 1
        for leaf in jax.tree.leaves(args)
        if isinstance(leaf, jax.Array)
    )
