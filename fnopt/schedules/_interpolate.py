"""Schedules that go from value to value: piecewise, and in one cycle."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Schedule, check_choice, default_float, hyper, static
from fnopt.schedules._join import as_pairs, check_pairs
from fnopt.schedules._time import cosine, fraction, interpolate, numbers, steps_since

_KINDS = ("linear", "cosine")


def _interpolate_pieces(kind: str, count: Any, bounds: list[Any], values: list[Any]) -> jax.Array:
    """Interpolate piecewise: the i-th value is reached at the i-th bound."""
    now = jnp.asarray(values[0], default_float())
    for (begin, end), (start, goal) in zip(pairwise(bounds), pairwise(values), strict=True):
        phase = fraction(count, begin, numbers(end) - numbers(begin))
        weight = cosine(phase) if kind == "cosine" else 1 - phase
        now = jnp.where(steps_since(count, begin) >= 0, interpolate(start, goal, weight), now)
    return now


class piecewise_interpolate_schedule(Schedule):
    r"""Interpolate between values that change by given factors at given steps.

    .. math:: \eta_t = w(x)\, v_i + (1 - w(x))\, v_{i+1}, \qquad
              x = \frac{t - b_i}{b_{i+1} - b_i}, \qquad v_{i+1} = f_{i+1} v_i

    between the steps :math:`b_i \le t < b_{i+1}`, with :math:`b_0 = 0`, :math:`v_0 = I`, and
    :math:`w(x) = 1 - x` or :math:`\tfrac12 (1 + \cos \pi x)`. After the last step it is constant.

    Args:
        interpolate_type: `'linear'` or `'cosine'`.
        init_value: :math:`I`, the first value.
        boundaries_and_scales: A dict `{b_i: f_i}` from step to factor, or pairs `(b_i, f_i)` in
            the order of the steps. The schedule keeps pairs.

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

    interpolate_type: str = static()
    init_value: Scalar = hyper()
    boundaries_and_scales: Any = ()

    def __post_init__(self) -> None:
        name = type(self).__name__
        self._set("boundaries_and_scales", as_pairs(name, self.boundaries_and_scales))
        super().__post_init__()
        check_choice(self.interpolate_type, _KINDS, "interpolate_type", name)
        check_pairs(name, self.boundaries_and_scales)

    def __call__(self, count: Any) -> jax.Array:
        """The value after `count` updates."""
        h = numbers(self)
        values = [h.init_value]
        for _, factor in h.boundaries_and_scales:
            values.append(values[-1] * factor)
        bounds = [0.0, *(step for step, _ in self.boundaries_and_scales)]
        return _interpolate_pieces(self.interpolate_type, count, bounds, values)


def _share_of_steps(fraction_of_all: Any, steps: Any) -> Any:
    """A fraction of the steps, rounded down; 0.29 of 100 steps are 29 in any precision."""
    part = numbers(fraction_of_all) * numbers(steps)
    part = part * (1 + 4 * float(jnp.finfo(default_float()).eps))
    return float(math.floor(part)) if isinstance(part, float) else jnp.floor(part)


class linear_onecycle_schedule(Schedule):
    r"""One-cycle schedule with linear interpolation: warm-up, decay, and decay to almost zero.

    .. math:: \frac{P}{d} \;\to\; P \;\to\; \frac{P}{d} \;\to\; \frac{P}{d f}

    reached at the steps :math:`0`, :math:`\lfloor p_s T \rfloor`, :math:`\lfloor p_f T \rfloor`
    and :math:`T`.

    Args:
        transition_steps: :math:`T`, the length of the cycle in steps.
        peak_value: :math:`P`.
        pct_start: :math:`p_s`, the fraction of the cycle in which the value increases.
        pct_final: :math:`p_f`, the fraction at which it is back at its start.
        div_factor: :math:`d`, the peak over the first value.
        final_div_factor: :math:`f`, the first value over the last.

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
    pct_start: Scalar = hyper(default=0.3, ge=0, le=1)
    pct_final: Scalar = hyper(default=0.85, ge=0, le=1)
    div_factor: Scalar = hyper(default=25.0, gt=0)
    final_div_factor: Scalar = hyper(default=1e4, gt=0)

    def __call__(self, count: Any) -> jax.Array:
        """The value after `count` updates."""
        h, end = numbers(self), self.transition_steps
        base = h.peak_value / h.div_factor
        bounds = [
            0.0,
            _share_of_steps(self.pct_start, end),
            _share_of_steps(self.pct_final, end),
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
        div_factor: :math:`d`, the peak over the first value.
        final_div_factor: :math:`f`, the first value over the last.

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
        """The value after `count` updates."""
        h, end = numbers(self), self.transition_steps
        bounds = [0.0, _share_of_steps(self.pct_start, end), end]
        last = h.peak_value / (h.div_factor * h.final_div_factor)
        return _interpolate_pieces(
            "cosine", count, bounds, [h.peak_value / h.div_factor, h.peak_value, last]
        )
