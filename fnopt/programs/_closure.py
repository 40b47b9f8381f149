"""Functions apart from the arrays that they close over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer, eval_jaxpr

from fnopt.programs._tracing import uncached


def opened(fn: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Convert a closure to a function of the tracers that it captures.

    `jax.closure_convert` leaves integers and booleans in the closure: a `jax.custom_jvp` around
    the function then closes over them, and under `jax.jit` its derivative doesn't compile.

    Args:
        fn: A function of pytrees of arrays.
        *args: Arrays like those that it will be called with, or their shapes and dtypes.

    Returns:
        `(function, closed_over)` with `fn(*args) == function(*args, *closed_over)`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fnopt.programs import opened
        >>> @jax.jit
        ... def first(i, x):
        ...     function, closed_over = opened(lambda x: x[i], x)
        ...     return function(10 * x, *closed_over)
        >>> print(first(1, jnp.asarray([1.0, 2.0])))
        20.0
    """
    closed, shapes = jax.make_jaxpr(uncached(fn), return_shape=True)(*args)
    traced = [isinstance(const, Tracer) for const in closed.consts]

    def function(*inputs: Any) -> Any:
        rest = iter(inputs[len(args) :])
        pairs = zip(closed.consts, traced, strict=True)
        consts = [next(rest) if is_traced else const for const, is_traced in pairs]
        leaves = jax.tree.leaves(inputs[: len(args)])
        return jax.tree.unflatten(
            jax.tree.structure(shapes), eval_jaxpr(closed.jaxpr, consts, *leaves)
        )

    return function, [const for const in closed.consts if isinstance(const, Tracer)]
