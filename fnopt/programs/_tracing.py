"""Fresh traces of functions, and conversion of closures to functions of captured tracers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer, eval_jaxpr

from fnopt.sharding import is_tracing

_CONFIG: Any = jax.config  # JAX creates its fields at run time


def copy_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function, so that JAX doesn't reuse an earlier trace of it.

    `jax.eval_shape` and `jax.make_jaxpr` cache traces by the identity of a function. Cached traces
    miss changes of the globals and closures that the function reads.
    """
    return lambda *args, **kwargs: fn(*args, **kwargs)


def jit_copy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Apply `jax.jit` to a copy of a function, so that all uses in one call share one trace."""
    return jax.jit(copy_function(fn))


_JITTED: Any = type(jax.jit(lambda: None))


def is_jitted(fn: Any) -> bool:
    """Whether `jax.jit` returned the function, so that JAX keeps its traces."""
    return isinstance(fn, _JITTED)


def is_eager(args: Any) -> bool:
    """Whether a call with the given arguments runs eagerly, outside of any trace."""
    return not (is_tracing() or _CONFIG.jax_disable_jit or has_tracers(args))


def has_tracers(tree: Any) -> bool:
    """Whether a leaf of a tree is a tracer."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def convert_closure(fn: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Convert a closure to a function of the tracers that it captures.

    `jax.closure_convert` leaves integers and booleans in the closure. A `jax.custom_jvp` around
    such a function closes over tracers, and its derivative doesn't compile under `jax.jit`.

    Args:
        fn: A function of pytrees of arrays.
        *args: Example arguments: arrays, or their shapes and dtypes.

    Returns:
        `(function, closed_over)` with `fn(*args) == function(*args, *closed_over)`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.programs import convert_closure
        >>> @jax.jit
        ... def first(i, x):
        ...     function, closed_over = convert_closure(lambda x: x[i], x)
        ...     return function(10 * x, *closed_over)
        >>> print(first(1, jnp.asarray([1.0, 2.0])))
        20.0
    """
    # A copy, because JAX caches traces by function object, and globals of the function may change.
    closed, shapes = jax.make_jaxpr(copy_function(fn), return_shape=True)(*args)
    is_tracer = [isinstance(const, Tracer) for const in closed.consts]

    def function(*inputs: Any) -> Any:
        tracers = iter(inputs[len(args) :])
        pairs = zip(closed.consts, is_tracer, strict=True)
        consts = [next(tracers) if traced else const for const, traced in pairs]
        leaves = jax.tree.leaves(inputs[: len(args)])
        outputs = eval_jaxpr(closed.jaxpr, consts, *leaves)
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return function, [const for const in closed.consts if isinstance(const, Tracer)]
