"""Schedules made of pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Schedule, as_number, default_float, hyper, where
from fnopt.schedules._time import numbers, steps_since


def _check_increasing(owner: str, boundaries: tuple[Any, ...]) -> None:
    """Raise a ValueError if boundaries are negative or not increasing; traced ones pass."""
    known = [b for b in boundaries if isinstance(b, float)]
    if any(b < 0 for b in known) or any(b <= a for a, b in pairwise(known)):
        raise ValueError(
            f"{where()}{owner}: the boundaries are {known}, expected step counts that are "
            "not negative and increase."
        )


class piecewise_constant_schedule(Schedule):
    r"""A value that is multiplied by a factor at given steps.

    .. math:: \eta_t = I \prod_{i:\, t \ge b_i} f_i

    Args:
        init_value: :math:`I`, the first value.
        boundaries_and_scales: A dict `{b_i: f_i}` from step to factor, or pairs `(b_i, f_i)` in
            the order of the steps. The schedule keeps pairs.

    Raises:
        ValueError: If a factor is negative, or pairs are not in the order of their steps.
        TypeError: If it is neither a dict nor pairs.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.piecewise_constant_schedule(1.0, {10: 0.5, 20: 0.1})
        >>> [round(float(schedule(i)), 4) for i in (9, 10, 20)]
        [1.0, 0.5, 0.05]
    """

    init_value: Scalar = hyper()
    boundaries_and_scales: Any = ()

    def __post_init__(self) -> None:
        name = type(self).__name__
        self._set("boundaries_and_scales", as_pairs(name, self.boundaries_and_scales))
        super().__post_init__()
        check_pairs(name, self.boundaries_and_scales)

    def __call__(self, count: Any) -> jax.Array:
        """The value after `count` updates."""
        h = numbers(self)
        value = jnp.asarray(h.init_value, default_float())
        steps = [step for step, _ in self.boundaries_and_scales]
        for step, (_, factor) in zip(steps, h.boundaries_and_scales, strict=True):
            reached = steps_since(count, step) >= 0
            value = value * jnp.where(reached, factor, 1.0)
        return value


def as_pairs(owner: str, given: Any) -> tuple[tuple[Any, Any], ...]:
    """Convert a dict from step to factor, or pairs, to a tuple of pairs."""
    if isinstance(given, dict):
        given = sorted(given.items())
    try:
        return tuple((as_number(step), as_number(factor)) for step, factor in given or ())
    except (TypeError, ValueError):
        raise TypeError(
            f"{where()}{owner}: boundaries_and_scales = {given!r}, expected a dict from step to "
            "factor, or pairs (step, factor)."
        ) from None


def check_pairs(owner: str, pairs: tuple[tuple[Any, Any], ...]) -> None:
    """Raise a ValueError if steps don't increase or factors are negative; traced ones pass."""
    _check_increasing(owner, tuple(step for step, _ in pairs))
    negative = [f for _, f in pairs if isinstance(f, float) and f < 0]
    if negative:
        raise ValueError(
            f"{where()}{owner}: the factors {negative} are negative, expected factors >= 0."
        )


class join_schedules(Schedule):
    r"""Concatenate schedules, each of which counts steps from its own start.

    .. math:: \eta_t = s_i(t - b_i) \quad \text{for } b_i \le t < b_{i+1}, \qquad b_0 = 0

    Args:
        schedules: The schedules :math:`s_0, s_1, \ldots`; plain functions are wrapped with
            `fnopt.schedule` first.
        boundaries: The steps :math:`b_1, b_2, \ldots` at which the next one begins, one less than
            schedules.

    Raises:
        ValueError: If there are no schedules, the lengths disagree or the boundaries don't
            increase.
        TypeError: If a member isn't a `Schedule`.

    Example:
        >>> import fnopt
        >>> warmup = fnopt.linear_schedule(0.0, 1.0, transition_steps=2)
        >>> decay = fnopt.exponential_decay(1.0, transition_steps=1, decay_rate=0.5)
        >>> schedule = fnopt.join_schedules([warmup, decay], [2])
        >>> [float(schedule(i)) for i in range(5)]
        [0.0, 0.5, 1.0, 0.5, 0.25]
    """

    schedules: Iterable[Schedule]
    boundaries: Iterable[Scalar]

    def __post_init__(self) -> None:
        schedules, boundaries = tuple(self.schedules), tuple(map(as_number, self.boundaries))
        self._set("schedules", schedules)
        self._set("boundaries", boundaries)
        super().__post_init__()
        _check_members(schedules)
        if not schedules or len(boundaries) != len(schedules) - 1:
            raise ValueError(
                f"{where()}join_schedules: {len(schedules)} schedules with {len(boundaries)} "
                "boundaries, expected one boundary less than schedules."
            )
        _check_increasing("join_schedules", boundaries)

    def __call__(self, count: Any) -> jax.Array:
        """The value of the schedule whose turn it is."""
        first, *others = self.schedules
        value = first(count)
        for boundary, schedule in zip(self.boundaries, others, strict=True):
            ahead = steps_since(count, boundary)
            # A schedule is never asked for a time before its beginning: what it would give is not
            # selected, but a NaN in it would spoil derivatives.
            value = jnp.where(ahead < 0, value, schedule(jnp.maximum(ahead, 0)))
        return value


def _check_members(schedules: Any) -> None:
    for i, member in enumerate(schedules):
        if isinstance(member, Schedule):
            continue
        hint = "wrap a function as fnopt.schedule(fn), a number as fnopt.constant_schedule(x)"
        raise TypeError(
            f"{where()}join_schedules: member {i} is {member!r}, expected a Schedule; {hint}."
        )
