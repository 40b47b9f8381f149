"""Schedules that one formula describes."""

from __future__ import annotations

from typing import Any

import jax

from fnopt.core import Scalar, Schedule, hyper
from fnopt.schedules._time import numbers


class constant_schedule(Schedule):
    r"""The same value at every step: :math:`\eta_t = \eta`.

    Args:
        value: :math:`\eta`.

    Example:
        >>> import fnopt
        >>> fnopt.constant_schedule(0.1)(1000)
        Array(0.1, dtype=float32)
    """

    value: Scalar = hyper()

    def __call__(self, count: Any) -> jax.Array:
        """The value."""
        del count
        return numbers(self).value
