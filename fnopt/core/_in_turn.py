"""Factorisations that don't depend on each other, one after the other.

The runtime of XLA on a CPU begins whatever has its inputs. A LAPACK call for several matrices
shares them out between the threads of the pool that it runs on itself, and waits for them (jaxlib
0.10): as many such calls at a time as there are threads wait for each other for ever. On a machine
with two cores two are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def in_turn(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Serialise the calls of `fn(x, *rest)` in a program.

    Args:
        fn: What it does to the array `x` has to precede whatever must not begin.
    """
    last: list[Any] = []

    def one(x: jax.Array, *rest: Any) -> Any:
        out = fn(after(x, last[0]) if last else x, *rest)
        last[:] = [out]
        return out

    return one


def after(x: jax.Array, before: Any) -> jax.Array:
    """The array `x`, held back until all arrays of another tree (of floats) are computed."""
    heads = [y[(0,) * y.ndim] for y in jax.tree.leaves(before) if y.size]
    if not heads:
        return x
    # 0 or 1, shifted away: no step, but neither of XLA's passes can see it. Barriers are removed
    # before the order of execution is made.
    some = [jnp.isnan(h).astype(jnp.int32) >> 1 for h in heads]
    return jnp.where(sum(some[1:], some[0]) > 0, jnp.zeros_like(x), x)
