"""Tracing of functions, and the difference between tracing and running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

from fnopt.sharding import is_tracing

_CONFIG: Any = jax.config  # its fields are made at run time


def uncached(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function, so that JAX doesn't reuse an earlier trace of it.

    `jax.eval_shape` and `jax.make_jaxpr` remember what a function did by its identity; one that
    reads something which has changed since would be described as it was.
    """
    return lambda *args, **kwargs: fn(*args, **kwargs)


def traced_once(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function for one call of a user: traced again only for other types."""
    return jax.jit(uncached(fn))


def runs_now(args: Any) -> bool:
    """Whether a call with these arguments runs at once, outside of any trace."""
    return not (is_tracing() or _CONFIG.jax_disable_jit or any_traced(args))


def any_traced(tree: Any) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))
