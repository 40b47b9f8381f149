"""Sharded leaves, whose sums over elements are also sums over devices."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax


class WholeLeaves(NamedTuple):
    """The leaves that parts are of, for methods that need whole ones.

    Attributes:
        shapes: Their shapes, by name.
        count: How many parts each is divided into.
        kept: From all parts of an array, `[..., count, length]`, what is kept of them here: this
            device's, `[..., length]`; outside of `shard_map` all, `[..., count * length]`, of which
            each device of the mesh has its own.
        is_probe: Whether a program is only read: parts have lengths that are not theirs.
    """

    shapes: dict[str, tuple[int, ...]]
    count: int
    kept: Callable[[jax.Array], jax.Array]
    is_probe: bool = False


# Tracing is plain Python, so an optimizer that runs on parts can tell all that is inside of it.
_axes: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("part_axes", default=())
_leaves: contextvars.ContextVar[WholeLeaves | None] = contextvars.ContextVar(
    "whole_leaves", default=None
)

TOTAL = "total_of_parts"
"""The scope of what knows of the other devices' parts."""


@contextlib.contextmanager
def parts_over(axes: tuple[str, ...], leaves: WholeLeaves | None = None) -> Iterator[None]:
    """Says that the leaves inside are parts of leaves that are divided over named axes."""
    tokens = _axes.set(axes), _leaves.set(leaves)
    try:
        yield
    finally:
        _axes.reset(tokens[0])
        _leaves.reset(tokens[1])


def part_axes() -> tuple[str, ...]:
    """The named axes that leaves are divided over; none outside `parts_over`."""
    return _axes.get()


def whole_leaves() -> WholeLeaves | None:
    """The leaves that parts are of, where it is known; None outside `parts_over`."""
    return _leaves.get()


@contextlib.contextmanager
def totalling() -> Iterator[Callable[[Any], Any]]:
    """A place where elements of leaves are summed; yields what completes a sum.

    Example:
        >>> from fnopt.core import totalling
        >>> def mass(x):
        ...     with totalling() as total:
        ...         return total(jnp.sum(x))
        >>> mass(jnp.ones(3))
        Array(3., dtype=float32)
    """
    axes = part_axes()
    if not axes:
        yield lambda x: x
    else:
        with jax.named_scope(TOTAL):
            yield lambda x: jax.lax.psum(x, axes)
