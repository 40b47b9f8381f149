"""Schedules with a memory, as optax's classes."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fnopt.core import safe_increment, zero_count


class StatefulSchedule(abc.ABC):
    """A schedule that remembers, and may read the extra arguments of `update`."""

    @abc.abstractmethod
    def init(self) -> Any:
        """The initial state."""

    @abc.abstractmethod
    def update(self, state: Any, **extra_args: Any) -> Any:
        """The state after a step."""

    @abc.abstractmethod
    def __call__(self, state: Any, **extra_args: Any) -> Any:
        """The value in a step."""


class WrappedScheduleState(NamedTuple):
    """The number of steps made."""

    count: jax.Array


@dataclasses.dataclass(frozen=True)
class WrappedSchedule(StatefulSchedule):
    """A function of the step as a schedule that remembers the step.

    Args:
        schedule_fn: The function.
    """

    schedule_fn: Callable[[Any], Any]

    def init(self) -> WrappedScheduleState:
        """No step."""
        return WrappedScheduleState(zero_count())

    def update(self, state: WrappedScheduleState, **extra_args: Any) -> WrappedScheduleState:
        """Increment the count."""
        del extra_args
        return WrappedScheduleState(safe_increment(state.count))

    def __call__(self, state: WrappedScheduleState, **extra_args: Any) -> Any:
        del extra_args
        return self.schedule_fn(state.count)
