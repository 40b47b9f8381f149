"""Arrays of one shape as lanes of one: cut out of another, taken, laid end to end again."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

FEW = 4  # arrays, that are left as they are
_PERIOD = 8  # pieces of different stacks that may take turns


class Stack:
    """Arrays of one shape along a leading axis."""

    def __init__(self, array: jax.Array) -> None:
        self.array = array
        self._single: dict[int, jax.Array] = {}

    def single(self, i: int) -> jax.Array:
        """One of the arrays."""
        if i not in self._single:
            self._single[i] = lax.index_in_dim(self.array, i, 0, keepdims=False)
        return self._single[i]

    def take(self, lanes: Sequence[int]) -> jax.Array:
        """Some of the arrays, stacked."""
        first, k = lanes[0], len(lanes)
        if list(lanes) == list(range(first, first + k)):
            whole = k == self.array.shape[0]
            return self.array if whole else lax.slice_in_dim(self.array, first, first + k)
        return jnp.take(self.array, np.asarray(lanes), axis=0, mode="clip")


class Lane(NamedTuple):
    """One array of a stack."""

    stack: Stack
    index: int

    @property
    def array(self) -> jax.Array:
        """The array by itself."""
        return self.stack.single(self.index)


def lanes(stacked: jax.Array) -> list[Lane]:
    """The arrays along the leading axis of one."""
    stack = Stack(stacked)
    return [Lane(stack, i) for i in range(stacked.shape[0])]


def plain(value: Any) -> Any:
    """A value as an array, whether it is a lane or not."""
    return value.array if isinstance(value, Lane) else value


def windows(array: jax.Array, starts: Sequence[Any], shape: tuple[int, ...]) -> jax.Array:
    """Cuts windows of one shape out of an array.

    Args:
        array: The array.
        starts: Where each of the windows begins, along every axis.
        shape: Their shape.

    Returns:
        The windows, of shape `[k, *shape]`.
    """
    places = np.asarray(starts, np.int32)
    steps = np.diff(places, axis=0)
    moving = np.flatnonzero(steps.any(axis=0)) if len(starts) > 1 else np.zeros(1, int)
    if len(moving) == 1 and (steps[:, moving[0]] == shape[moving[0]]).all():
        axis = int(moving[0])
        ends = [start + size for start, size in zip(starts[-1], shape, strict=True)]
        row = lax.slice(array, starts[0], ends)
        rows = row.reshape(*shape[:axis], len(starts), *shape[axis:])
        return jnp.moveaxis(rows, axis, 0)
    return jax.vmap(lambda place: lax.dynamic_slice(array, list(place), shape))(places)


def end_to_end(values: Sequence[Any], axis: int, new: bool = False) -> jax.Array:
    """Arrays and lanes, concatenated along an axis, or stacked along a new one."""

    def widened(array: jax.Array, axis: int) -> jax.Array:
        return lax.expand_dims(array, [axis]) if new else array

    parts = [
        _merged([widened(stacked, axis + 1) for stacked in turn], axis)
        if isinstance(turn, list)
        else widened(turn, axis)
        for turn in _turns(values)
    ]
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, axis)


def summed(values: Sequence[Any]) -> jax.Array:
    """The sum of arrays and lanes of one shape."""
    parts: list[jax.Array] = []
    for turn in _turns(values):
        parts += [jnp.sum(a, axis=0) for a in turn] if isinstance(turn, list) else [turn]
    return functools.reduce(lax.add, parts)


def _merged(turn: list[jax.Array], axis: int) -> jax.Array:
    """Stacked arrays that take turns, end to end."""
    rows = turn[0] if len(turn) == 1 else lax.concatenate(turn, axis + 1)
    k, *shape = rows.shape
    shape[axis] *= k
    return jnp.moveaxis(rows, 0, axis).reshape(shape)


def _turns(values: Sequence[Any]) -> Iterator[Any]:
    """Single arrays, and lists of stacked ones whose lanes take turns."""
    i = 0
    while i < len(values):
        found = ((p, _repeats(values[i:], p)) for p in range(1, _PERIOD + 1))
        period, repeats = next(((p, r) for p, r in found if r >= FEW), (1, 0))
        if repeats:
            row = values[i : i + period * repeats]
            yield [row[j].stack.take([at.index for at in row[j::period]]) for j in range(period)]
        else:
            yield plain(values[i])
        i += max(period * repeats, 1)


def _repeats(values: Sequence[Any], period: int) -> int:
    """How often the stacks of the first lanes come again, in the same order."""
    stacks = [at.stack if isinstance(at, Lane) else None for at in values[:period]]
    if len(stacks) < period or None in stacks:
        return 0
    for i, at in enumerate(values):
        if not isinstance(at, Lane) or at.stack is not stacks[i % period]:
            return i // period
    return len(values) // period
