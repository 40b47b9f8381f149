"""Piecewise schedules: constant, interpolated, one-cycle and joined schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Schedule, as_number, hyper, static
from fnopt.errors import count_text, where
from fnopt.numerics import default_float
from fnopt.schedules._basic import cosine, fraction, interpolate, numbers, steps_since


def _check_increasing(owner: str, boundaries: tuple[Any, ...]) -> None:
    """Raise a ValueError if boundaries are negative or not increasing; skip traced boundaries."""
    steps = [b for b in boundaries if isinstance(b, float)]
    if any(b < 0 for b in steps) or any(b <= a for a, b in pairwise(steps)):
        raise ValueError(
            f"{where()}{owner}: the boundaries are {steps}, expected increasing step counts >= 0."
        )


class piecewise_constant_schedule(Schedule):
    r"""Piecewise constant schedule: the value is multiplied by a factor at each boundary.

    .. math:: \eta_t = I \prod_{i:\, t \ge b_i} f_i

    Args:
        init_value: :math:`I`, the first value.
        boundaries_and_scales: A dict `{b_i: f_i}` from step to factor, or pairs `(b_i, f_i)` in the
            order of the steps. The schedule stores pairs.

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
        """Return the value after `count` updates."""
        h = numbers(self)
        value = jnp.asarray(h.init_value, default_float())
        steps = [step for step, _ in self.boundaries_and_scales]
        for step, (_, factor) in zip(steps, h.boundaries_and_scales, strict=True):
            value = value * jnp.where(steps_since(count, step) >= 0, factor, 1.0)
        return value


def as_pairs(owner: str, scales: Any) -> tuple[tuple[Any, Any], ...]:
    """Convert a dict from step to factor, or pairs, to a tuple of pairs."""
    if isinstance(scales, dict):
        scales = sorted(scales.items())
    try:
        return tuple((as_number(step), as_number(factor)) for step, factor in scales or ())
    except (TypeError, ValueError):
        raise TypeError(
            f"{where()}{owner}: boundaries_and_scales = {scales!r}, expected a dict from step to "
            "factor, or pairs (step, factor)."
        ) from None


def check_pairs(owner: str, pairs: tuple[tuple[Any, Any], ...]) -> None:
    """Raise a ValueError if steps don't increase or factors are negative; skip traced numbers."""
    _check_increasing(owner, tuple(step for step, _ in pairs))
    negative = [f for _, f in pairs if isinstance(f, float) and f < 0]
    if negative:
        raise ValueError(
            f"{where()}{owner}: the factors {negative} are negative, expected factors >= 0."
        )


class join_schedules(Schedule):
    r"""Concatenate schedules; each schedule counts steps from its own beginning.

    .. math:: \eta_t = s_i(t - b_i) \quad \text{for } b_i \le t < b_{i+1}, \qquad b_0 = 0

    Args:
        schedules: The schedules :math:`s_0, s_1, \ldots`. Wrap plain functions with
            `fnopt.schedule` first.
        boundaries: The steps :math:`b_1, b_2, \ldots` at which the second schedule and the
            following schedules begin.

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
        for i, member in enumerate(schedules):
            if not isinstance(member, Schedule):
                raise TypeError(
                    f"{where()}join_schedules: member {i} is {member!r}, expected a Schedule; wrap "
                    "a function as fnopt.schedule(fn), a number as fnopt.constant_schedule(x)."
                )
        if not schedules or len(boundaries) != len(schedules) - 1:
            raise ValueError(
                f"{where()}join_schedules: {count_text(len(schedules), 'schedule')} with "
                f"{count_text(len(boundaries), 'boundary', 'boundaries')}, expected n >= 1 "
                "schedules with n - 1 boundaries."
            )
        _check_increasing("join_schedules", boundaries)

    def __call__(self, count: Any) -> jax.Array:
        """Evaluate the schedule that is active at `count`."""
        first, *others = self.schedules
        value = first(count)
        for boundary, schedule in zip(self.boundaries, others, strict=True):
            steps = steps_since(count, boundary)
            # A schedule isn't evaluated before its beginning. Its value wouldn't be selected, but a
            # NaN in a branch that isn't selected makes derivatives NaN.
            value = jnp.where(steps < 0, value, schedule(jnp.maximum(steps, 0)))
        return value


def _interpolate_pieces(kind: str, count: Any, bounds: list[Any], values: list[Any]) -> jax.Array:
    """Interpolate piecewise, so that the i-th value is reached at the i-th bound."""
    value = jnp.asarray(values[0], default_float())
    for (begin, end), (start, goal) in zip(pairwise(bounds), pairwise(values), strict=True):
        phase = fraction(count, begin, numbers(end) - numbers(begin))
        weight = cosine(phase) if kind == "cosine" else 1 - phase
        value = jnp.where(steps_since(count, begin) >= 0, interpolate(start, goal, weight), value)
    return value


class piecewise_interpolate_schedule(Schedule):
    r"""Interpolate between values that change by given factors at given steps.

    .. math:: \eta_t = w(x)\, v_i + (1 - w(x))\, v_{i+1}, \qquad
              x = \frac{t - b_i}{b_{i+1} - b_i}, \qquad v_{i+1} = f_{i+1} v_i

    between the steps :math:`b_i \le t < b_{i+1}`, with :math:`b_0 = 0`, :math:`v_0 = I`, and
    :math:`w(x) = 1 - x` or :math:`\tfrac12 (1 + \cos \pi x)`. After the last step the value is
    constant.

    Args:
        interpolate_type: `'linear'` or `'cosine'`.
        init_value: :math:`I`, the first value.
        boundaries_and_scales: A dict `{b_i: f_i}` from step to factor, or pairs `(b_i, f_i)` in the
            order of the steps. The schedule stores pairs.

    Raises:
        ValueError: If the type is unknown, a factor is negative, or pairs are not in the order of
            their steps.
        TypeError: If it is neither a dict nor pairs.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.piecewise_interpolate_schedule("linear", 1.0, {10: 0.5, 20: 0.0})
        >>> [round(float(schedule(i)), 4) for i in (0, 5, 10, 15, 20)]
        [1.0, 0.75, 0.5, 0.25, 0.0]
    """

    interpolate_type: str = static(choices=("linear", "cosine"))
    init_value: Scalar = hyper()
    boundaries_and_scales: Any = ()

    def __post_init__(self) -> None:
        name = type(self).__name__
        self._set("boundaries_and_scales", as_pairs(name, self.boundaries_and_scales))
        super().__post_init__()
        check_pairs(name, self.boundaries_and_scales)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        values = [h.init_value]
        for _, factor in h.boundaries_and_scales:
            values.append(values[-1] * factor)
        bounds = [0.0, *(step for step, _ in self.boundaries_and_scales)]
        return _interpolate_pieces(self.interpolate_type, count, bounds, values)


def _fraction_of_steps(fraction_of_all: Any, steps: Any) -> Any:
    """Round a fraction of the steps down; a fraction of 0.29 of 100 steps is 29 in every dtype."""
    product = numbers(fraction_of_all) * numbers(steps)
    # Four units in the last place are more than the rounding error of two products.
    product = product * (1 + 4 * float(jnp.finfo(default_float()).eps))
    return float(math.floor(product)) if isinstance(product, float) else jnp.floor(product)


class linear_onecycle_schedule(Schedule):
    r"""One-cycle schedule with linear interpolation: warm-up, decay, and decay to almost zero.

    .. math:: \frac{P}{d} \;\to\; P \;\to\; \frac{P}{d} \;\to\; \frac{P}{d f}

    reached at the steps :math:`0`, :math:`\lfloor p_s T \rfloor`, :math:`\lfloor p_f T \rfloor`
    and :math:`T`.

    Args:
        transition_steps: :math:`T`, the length of the cycle in steps.
        peak_value: :math:`P`.
        pct_start: :math:`p_s`, the fraction of the cycle in which the value increases.
        pct_final: :math:`p_f`, the fraction of the cycle after which the value equals the initial
            value again.
        div_factor: :math:`d`, the ratio of the peak to the first value.
        final_div_factor: :math:`f`, the ratio of the first value to the last.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.linear_onecycle_schedule(20, 1.0, pct_start=0.25, pct_final=0.75)
        >>> [round(float(schedule(i)), 3) for i in (0, 5, 10, 15, 20)]
        [0.04, 1.0, 0.52, 0.04, 0.0]

    Reference:
        Smith and Topin, 2017, arXiv:1708.07120.
    """

    transition_steps: Scalar = hyper(gt=0)
    peak_value: Scalar = hyper()
    # The defaults of PyTorch's OneCycleLR, and of optax for the last phase.
    pct_start: Scalar = hyper(default=0.3, ge=0, le=1)
    pct_final: Scalar = hyper(default=0.85, ge=0, le=1)
    div_factor: Scalar = hyper(default=25.0, gt=0)
    final_div_factor: Scalar = hyper(default=1e4, gt=0)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h, end = numbers(self), self.transition_steps
        base = h.peak_value / h.div_factor
        bounds = [
            0.0,
            _fraction_of_steps(self.pct_start, end),
            _fraction_of_steps(self.pct_final, end),
            end,
        ]
        values = [base, h.peak_value, base, base / h.final_div_factor]
        return _interpolate_pieces("linear", count, bounds, values)


class cosine_onecycle_schedule(Schedule):
    r"""One-cycle schedule with cosine interpolation: warm-up, then decay to almost zero.

    .. math:: \frac{P}{d} \;\to\; P \;\to\; \frac{P}{d f}

    reached at the steps :math:`0`, :math:`\lfloor p_s T \rfloor` and :math:`T`.

    Args:
        transition_steps: :math:`T`, the length of the cycle in steps.
        peak_value: :math:`P`.
        pct_start: :math:`p_s`, the fraction of the cycle in which the value increases.
        div_factor: :math:`d`, the ratio of the peak to the first value.
        final_div_factor: :math:`f`, the ratio of the first value to the last.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.cosine_onecycle_schedule(20, 1.0, pct_start=0.5)
        >>> [round(float(schedule(i)), 3) for i in (0, 5, 10, 15, 20)]
        [0.04, 0.52, 1.0, 0.5, 0.0]

    Reference:
        Smith and Topin, 2017, arXiv:1708.07120.
    """

    transition_steps: Scalar = hyper(gt=0)
    peak_value: Scalar = hyper()
    pct_start: Scalar = hyper(default=0.3, ge=0, le=1)
    div_factor: Scalar = hyper(default=25.0, gt=0)
    final_div_factor: Scalar = hyper(default=1e4, gt=0)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h, end = numbers(self), self.transition_steps
        bounds = [0.0, _fraction_of_steps(self.pct_start, end), end]
        last = h.peak_value / (h.div_factor * h.final_div_factor)
        return _interpolate_pieces(
            "cosine", count, bounds, [h.peak_value / h.div_factor, h.peak_value, last]
        )
