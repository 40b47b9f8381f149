"""Leaves of which every device has a part: what is summed over them is summed over devices too."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax

# Tracing is plain Python, so an optimizer that runs on parts can tell all that is inside of it.
_axes: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("part_axes", default=())

TOTAL = "total_of_parts"
"""The scope of sums that know of the other devices' parts."""


@contextlib.contextmanager
def parts_over(axes: tuple[str, ...]) -> Iterator[None]:
    """Says that the leaves inside are parts of leaves that are divided over named axes."""
    token = _axes.set(axes)
    try:
        yield
    finally:
        _axes.reset(token)


def part_axes() -> tuple[str, ...]:
    """The named axes that leaves are divided over; none outside `parts_over`."""
    return _axes.get()


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
