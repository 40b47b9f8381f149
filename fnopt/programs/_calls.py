"""Eager calls that compile each program at most once, for all function objects that trace to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from fnopt.programs._keys import MAX_PROGRAMS, NoKeyError, key_of
from fnopt.programs._packed_outputs import PackedOutputs, pack, unpack
from fnopt.programs._tiers import TieredProgram, call_types
from fnopt.programs._traced_function import KeyedJaxpr, make_jaxpr
from fnopt.programs._tracing import has_tracers, is_eager


def trace_and_call(fn: Callable[..., Any], *args: Any) -> Any:
    r"""Call `jax.jit(fn)(*args)`, and compile each program at most once.

    `jax.jit` caches programs by the identity of a function. Therefore `jax.jit` compiles every new
    closure, and doesn't detect changes of globals and captured values. `trace_and_call` traces the
    function in every call, so no value is stale, and the jaxpr is the key of the compiled program.
    Arrays that the function closes over are arguments of this program, so other data of the same
    shapes need no compilation. A small program that runs only a few times isn't compiled
    (:func:`tiered_call`).

    Under `jax.jit`, `jax.grad` and `jax.vmap`, the call is equal to `jax.jit(fn)(*args)`. A program
    with Python callbacks is compiled in every call, because the callback is usually a new object.

    Args:
        fn: A function of pytrees of arrays.
        *args: The arguments of `fn`.

    Returns:
        The result of `fn`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.programs import trace_and_call
        >>> [float(trace_and_call(lambda x: x * a, jnp.float32(2))) for a in (1.0, 3.0)]
        [2.0, 6.0]
    """
    if not is_eager(args):
        return jax.jit(fn)(*args)
    closed, structure = make_jaxpr(fn, args)
    if has_tracers(closed.consts):
        return jax.jit(fn)(*args)
    make = _cached_program
    try:
        key = key_of(closed.jaxpr)
    except NoKeyError:
        key, make = object(), _make_program  # a key for this call only
    leaves = [*closed.consts, *jax.tree.leaves(args)]
    outputs = _call(TieredProgram, KeyedJaxpr(key, closed.jaxpr), leaves, {}, make)
    return jax.tree.unflatten(structure, outputs)


def jit_call(fn: Callable[..., Any], *args: Any, **static: Any) -> Any:
    """Call `jax.jit(fn)(*args, **static)` and keep the program in a bounded cache.

    Args:
        fn: A function that reads only its arguments, not a closure.
        *args: Trees of arrays, among them functions that are :class:`TracedFunction`.
        **static: Hashable arguments that aren't arrays.

    Returns:
        The result of `fn`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.programs import jit_call, trace_function
        >>> def twice(fn, x):
        ...     return fn(fn(x))
        >>> x = jnp.float32(2)
        >>> [float(jit_call(twice, trace_function(lambda x: x**k, x), x)) for k in (2, 3)]
        [16.0, 512.0]
    """
    return _call(jax.jit, fn, args, static)


def tiered_call(fn: Callable[..., Any], *args: Any, **static: Any) -> Any:
    """Call `fn(*args, **static)` like :func:`jit_call`, but compile only if this saves time.

    NumPy runs the program until the runs have taken as long as a compilation (see
    :class:`TieredProgram`). Use `tiered_call` for programs that run a few times with small arrays.

    Args:
        fn: A function that reads only its arguments, not a closure.
        *args: Trees of arrays, among them functions that are :class:`TracedFunction`.
        **static: Hashable arguments that aren't arrays.

    Returns:
        The result of `fn`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fnopt.programs import tiered_call
        >>> tiered_call(jnp.dot, jnp.ones(3), jnp.arange(3.0))
        Array(3., dtype=float32)
    """
    return _call(TieredProgram, fn, args, static)


def _make_program(
    jit: Any, fn: Callable[..., Any], structure: Any, static: Any, packs: bool, types: Any
) -> Callable[..., Any]:
    def program(*leaves: Any) -> Any:
        options = {name: value for name, _, value in static}
        out = fn(*jax.tree.unflatten(structure, leaves), **options)
        return pack(out) if packs else out

    if jit is not TieredProgram:
        return jit(program)
    return TieredProgram(program, types, fn.jaxpr if isinstance(fn, KeyedJaxpr) else None)


_cached_program = functools.lru_cache(maxsize=MAX_PROGRAMS)(_make_program)


def _call(
    jit: Any,
    fn: Callable[..., Any],
    args: Any,
    static: dict[str, Any],
    make: Callable[..., Callable[..., Any]] = _cached_program,
) -> Any:
    leaves, structure = jax.tree.flatten(args)
    on_one_device = is_on_one_device(leaves)
    # The key contains types, because 1, 1.0 and True are equal.
    options = tuple((name, type(static[name]), static[name]) for name in sorted(static))
    jit = jit if on_one_device else jax.jit
    types = call_types(leaves) if on_one_device else None
    out = make(jit, fn, structure, options, on_one_device, types)(*leaves)
    return unpack(out) if isinstance(out, PackedOutputs) else out


def is_on_one_device(args: Any) -> bool:
    """Whether all arrays are concrete and on a single device each, and no mesh is set."""
    is_concrete = not has_tracers(args) and jax.sharding.get_abstract_mesh().empty
    return is_concrete and all(
        len(leaf.sharding.device_set) == 1
        for leaf in jax.tree.leaves(args)
        if isinstance(leaf, jax.Array)
    )
