"""Independent factorizations, executed one after the other.

XLA's runtime on a CPU starts every operation whose inputs are ready. A LAPACK call on a batch of
matrices runs on a thread of a pool (jaxlib 0.10). The call splits the batch over the threads of the
same pool, and waits for these threads. Simultaneous calls therefore deadlock if there are as many
calls as threads, for example two calls on a machine with two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def sequential(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Serialize the calls of `fn(x, *rest)` in a program.

    Args:
        fn: A function in which every blocking call depends on the array `x`.
    """
    last: list[Any] = []

    def call_after_last(x: jax.Array, *rest: Any) -> Any:
        out = fn(wait_for(x, last[0]) if last else x, *rest)
        last[:] = [out]
        return out

    return call_after_last


def wait_for(tree: Any, before: Any) -> Any:
    """Delay the arrays of a tree until all (floating) arrays of another tree are computed."""
    heads = [y[(0,) * y.ndim] for y in jax.tree.leaves(before) if y.size]
    if not heads:
        return tree
    # `always_false` is False, because 0 and 1 are both shifted to 0, but XLA doesn't simplify the
    # expression. An optimization barrier doesn't suffice, because XLA removes barriers before it
    # schedules operations. XLA never fuses a sort. Without the sort, the heads could be fused with
    # the delayed arrays, and their operands would remain in memory.
    flags = jnp.stack([jnp.isnan(h).astype(jnp.int32) for h in heads] * 2)
    always_false = jax.lax.sort(flags)[0] >> 1 > 0
    return jax.tree.map(lambda x: jnp.where(always_false, jnp.zeros_like(x), x), tree)
