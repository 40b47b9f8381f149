"""Stacks of many small arrays of one type, so that a program doesn't grow with their number.

This is for what the library itself does with the leaves of a tree. A user's function stays as it
is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.sharding import is_sharded

_FEW = 8  # arrays of one type, that are left as they are
_SMALL = 4096  # numbers of an array that may be copied


class ArrayStack(NamedTuple):
    """Arrays of one type along a leading axis, or one array by itself."""

    places: list[int]  # among all arrays
    array: jax.Array  # [k, *shape], or the single array in its own shape

    def map(self, fn: Callable[..., jax.Array], *numbers: jax.Array) -> jax.Array:
        """Apply a function to each array and the numbers at its position."""
        if len(self.places) == 1:
            return fn(self.array, *(n[self.places[0]] for n in numbers))[None]
        return jax.vmap(fn)(self.array, *(n[np.asarray(self.places)] for n in numbers))


def stack_alike(arrays: Sequence[jax.Array]) -> list[ArrayStack]:
    """Stack small arrays where there are many of one type; keep any other by itself.

    Along an axis of their own, not end to end: what a compiler has divided over devices stays so.
    """
    stacks: dict[Any, list[int]] = {}
    for i, x in enumerate(arrays):
        stays = x.size > _SMALL or is_sharded(x)
        stacks.setdefault(i if stays else jax.typeof(x), []).append(i)
    found = []
    for places in stacks.values():
        if len(places) < _FEW:
            found += [ArrayStack([i], arrays[i]) for i in places]
        else:
            found.append(ArrayStack(places, jnp.stack([arrays[i] for i in places])))
    return found


def map_stacks(
    stacks: Sequence[ArrayStack], fn: Callable[..., jax.Array], *numbers: jax.Array
) -> jax.Array:
    """Apply a function to every array of some stacks, and stack the results in the original order.

    Args:
        stacks: What `stack_alike` made of the arrays; at least one.
        fn: Function of an array, and of a number for each of `numbers`; returns an array.
        numbers: Of each, one for every array.
    """
    found = [stack.map(fn, *numbers) for stack in stacks]
    places = np.concatenate([stack.places for stack in stacks])
    in_order = (np.diff(places) == 1).all()
    together = jnp.concatenate(found)
    return together if in_order else together[np.argsort(places)]
