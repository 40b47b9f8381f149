"""Context in which an optimizer receives shards of leaves, and its sums include all devices."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax


class UnshardedLeaves(NamedTuple):
    """Description of sharded leaves, for methods that need whole leaves.

    Attributes:
        shapes: The shapes of the unsharded leaves, keyed by name.
        count: The number of shards of each leaf.
        kept: A function of all shards of an array, `[..., count, length]`. Inside `shard_map`, the
            function returns this device's shard, `[..., length]`. Outside it returns the
            concatenated shards, `[..., count * length]`, sharded over the devices.
        is_probe: Whether the shards have artificial lengths, because the program is inspected and
            never run.
    """

    shapes: dict[str, tuple[int, ...]]
    count: int
    kept: Callable[[jax.Array], jax.Array]
    is_probe: bool = False


# Tracing is plain Python, so a context variable reaches all members of the optimizer.
_axes: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("shard_axes", default=())
_leaves: contextvars.ContextVar[UnshardedLeaves | None] = contextvars.ContextVar(
    "unsharded_leaves", default=None
)

SHARD_SUM = "sum_over_shards"
"""The named scope of operations that read the shards of other devices."""


@contextlib.contextmanager
def shards_over(axes: tuple[str, ...], leaves: UnshardedLeaves | None = None) -> Iterator[None]:
    """Declare that the leaves of gradients and params are shards over named axes."""
    tokens = _axes.set(axes), _leaves.set(leaves)
    try:
        yield
    finally:
        _axes.reset(tokens[0])
        _leaves.reset(tokens[1])


def shard_axes() -> tuple[str, ...]:
    """The named axes over which leaves are sharded; none outside `sharded` optimizers."""
    return _axes.get()


def unsharded_leaves() -> UnshardedLeaves | None:
    """Description of the sharded leaves, if available; None outside `shards_over`."""
    return _leaves.get()


@contextlib.contextmanager
def sum_over_shards() -> Iterator[Callable[[Any], Any]]:
    """Scope of a sum over the elements of leaves; yields a function that sums over all shards.

    Example:
        >>> from fnopt.sharding import sum_over_shards
        >>> def mass(x):
        ...     with sum_over_shards() as total:
        ...         return total(jnp.sum(x))
        >>> mass(jnp.ones(3))
        Array(3., dtype=float32)
    """
    axes = shard_axes()
    if not axes:
        yield lambda x: x
    else:
        with jax.named_scope(SHARD_SUM):
            yield lambda x: jax.lax.psum(x, axes)
