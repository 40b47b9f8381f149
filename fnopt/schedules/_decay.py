"""Schedules that decay, once or with warm restarts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Schedule, hyper, static
from fnopt.errors import where
from fnopt.numerics import default_float
from fnopt.schedules._basic import after_warmup, cosine, fraction, interpolate, numbers, steps_since
from fnopt.schedules._piecewise import join_schedules


class exponential_decay(Schedule):
    r"""Decay by a constant factor every `transition_steps` steps.

    .. math:: \eta_t = I\, r^{x_t}, \qquad x_t = \max\left(\frac{t - B}{T},\, 0\right)

    Args:
        init_value: :math:`I`, the value up to step :math:`B`.
        transition_steps: :math:`T`, the number of steps per factor.
        decay_rate: :math:`r`, the factor.
        transition_begin: :math:`B`, the step at which the decay begins.
        staircase: Whether to round :math:`x_t` down, so that the value decays in a staircase.
        end_value: The smallest value if :math:`r < 1`, otherwise the largest value; None for no
            bound.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.exponential_decay(1.0, transition_steps=10, decay_rate=0.5)
        >>> [float(schedule(i)) for i in (0, 10, 20)]
        [1.0, 0.5, 0.25]
    """

    init_value: Scalar = hyper()
    transition_steps: Scalar = hyper(gt=0)
    decay_rate: Scalar = hyper(gt=0)
    transition_begin: Scalar = hyper(default=0.0, ge=0)
    staircase: bool = static(default=False)
    end_value: Scalar | None = hyper(default=None)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        return decay_from(h, h.init_value, steps_since(count, self.transition_begin))


def decay_from(h: Any, start: jax.Array, steps: jax.Array) -> jax.Array:
    """Exponential decay from `start` after `steps` steps, with the hyper-parameters `h`."""
    periods = jnp.maximum(steps, 0.0) / h.transition_steps
    if not (isinstance(h.decay_rate, float) and h.decay_rate <= 1):
        periods = jnp.minimum(periods, _largest_power(jnp.asarray(h.decay_rate, periods.dtype)))
    value = start * h.decay_rate ** (jnp.floor(periods) if h.staircase else periods)
    if h.end_value is None:
        return value
    decreasing, increasing = jnp.maximum(value, h.end_value), jnp.minimum(value, h.end_value)
    return jnp.where(h.decay_rate < 1, decreasing, increasing)


def _largest_power(rate: jax.Array) -> jax.Array:
    """Largest exponent of a rate above 1; larger exponents overflow and make derivatives NaN."""
    # The factor 0.9 reserves a tenth of the exponent range for the initial value and derivatives.
    largest = 0.9 * jnp.log(jnp.asarray(jnp.finfo(rate.dtype).max, rate.dtype))
    return jax.lax.stop_gradient(largest / jnp.maximum(jnp.log(rate), 1e-30))


class cosine_decay_schedule(Schedule):
    r"""Cosine decay from an initial value to a fraction of this value.

    .. math:: \eta_t = I \left((1 - \alpha)\, c_t^p + \alpha\right), \qquad
              c_t = \tfrac12 \left(1 + \cos \frac{\pi \min(t, T)}{T}\right)

    Args:
        init_value: :math:`I`, the first value.
        decay_steps: :math:`T`, the length of the decay in steps.
        alpha: :math:`\alpha`, the last value as a fraction of the first value.
        exponent: :math:`p`.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.cosine_decay_schedule(1.0, decay_steps=10)
        >>> [round(float(schedule(i)), 4) for i in (0, 5, 10, 99)]
        [1.0, 0.5, 0.0, 0.0]

    Reference:
        Loshchilov and Hutter, 2017, arXiv:1608.03983.
    """

    init_value: Scalar = hyper()
    decay_steps: Scalar = hyper(gt=0)
    alpha: Scalar = hyper(default=0.0)
    exponent: Scalar = hyper(default=1.0, ge=0)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        phase = fraction(count, 0.0, h.decay_steps)
        return interpolate(h.init_value, h.init_value * h.alpha, cosine(phase, h.exponent))


class warmup_constant_schedule(Schedule):
    r"""Linear warm-up, then a constant.

    .. math:: \eta_t = (1 - x_t)\, I + x_t\, P, \qquad x_t = \min(t / W,\, 1)

    Args:
        init_value: :math:`I`, the first value.
        peak_value: :math:`P`, the value from step :math:`W` on.
        warmup_steps: :math:`W`, the length of the warm-up in steps; with 0 the schedule starts at
            the peak.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.warmup_constant_schedule(0.0, 1.0, warmup_steps=4)
        >>> [float(schedule(i)) for i in (0, 2, 4, 9)]
        [0.0, 0.5, 1.0, 1.0]
    """

    init_value: Scalar = hyper()
    peak_value: Scalar = hyper()
    warmup_steps: Scalar = hyper(ge=0)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        phase = fraction(count, 0.0, h.warmup_steps)
        return interpolate(h.init_value, h.peak_value, 1 - phase)


class warmup_cosine_decay_schedule(Schedule):
    r"""Linear warm-up, then a cosine decay.

    .. math::
        \eta_t = \begin{cases}
            (1 - t/W)\, I + (t/W)\, P & t < W \\
            (P - E)\, c_t^p + E & t \ge W
        \end{cases} \qquad
        c_t = \tfrac12 \left(1 + \cos \frac{\pi \min(t - W, T - W)}{T - W}\right)

    Args:
        init_value: :math:`I`, the first value.
        peak_value: :math:`P`, the value at step :math:`W`.
        warmup_steps: :math:`W`, the length of the warm-up in steps.
        decay_steps: :math:`T`, the length of the whole schedule in steps, including the warm-up.
        end_value: :math:`E`, the value from step :math:`T` on.
        exponent: :math:`p`.

    Raises:
        ValueError: If `decay_steps` is not more than `warmup_steps`.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.warmup_cosine_decay_schedule(0.0, 1.0, 10, 110)
        >>> [round(float(schedule(i)), 4) for i in (0, 5, 10, 60, 110)]
        [0.0, 0.5, 1.0, 0.5, 0.0]

    Reference:
        Loshchilov and Hutter, 2017, arXiv:1608.03983 (the cosine); Goyal et al., 2017,
        arXiv:1706.02677 (the warm-up).
    """

    init_value: Scalar = hyper()
    peak_value: Scalar = hyper()
    warmup_steps: Scalar = hyper(ge=0)
    decay_steps: Scalar = hyper(gt=0)
    end_value: Scalar = hyper(default=0.0)
    exponent: Scalar = hyper(default=1.0, ge=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        decay, warmup = self.decay_steps, self.warmup_steps
        # Only Python numbers are compared, because arrays may be traced.
        if isinstance(warmup, float) and isinstance(decay, float) and decay <= warmup:
            raise ValueError(
                f"{where()}warmup_cosine_decay_schedule: decay_steps = {decay}, "
                f"warmup_steps = {warmup}, expected decay_steps > warmup_steps, because "
                "decay_steps is the length of the whole schedule, including the warm-up."
            )

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        phase = fraction(count, h.warmup_steps, h.decay_steps - h.warmup_steps)
        decaying = interpolate(h.peak_value, h.end_value, cosine(phase, h.exponent))
        return after_warmup(h, count, decaying)


def _cycles_length(n: jax.Array, growth: jax.Array) -> jax.Array:
    r"""Length of `n` cycles relative to the first cycle, :math:`\sum_{i<n} m^i`."""
    # (m^n - 1) / (m - 1) by expm1 and log1p, which stay accurate for m close to 1. For m = 1, the
    # Taylor series to first order also has the correct derivative with respect to m.
    excess, is_one = growth - 1, growth == 1
    safe_excess, safe_n = jnp.where(is_one, 1, excess), jnp.where(is_one, 0, n)
    series = n + excess * n * (n - 1) / 2
    length = jnp.where(is_one, series, jnp.expm1(safe_n * jnp.log1p(safe_excess)) / safe_excess)
    # For an integer m the sum is an integer. Without rounding, a restart could be a step late.
    rounded = jnp.where(growth == jnp.round(growth), jnp.round(length), length)
    return length + jax.lax.stop_gradient(rounded - length)


def _cycle_number(time: jax.Array, growth: jax.Array) -> jax.Array:
    """Number of completed cycles at `time`, which is relative to the length of the first cycle."""
    safe_excess = jnp.where(growth == 1, 1, growth - 1)
    logarithm = jnp.log1p(time * safe_excess) / jnp.log1p(safe_excess)
    n = jnp.floor(jnp.where(growth == 1, time, logarithm))
    # At the step of a restart, rounding errors of the logarithms can make `n` too small by one. The
    # computed beginning of the cycle can be later than `time` by a rounding error.
    time = time * (1 + 4 * jnp.finfo(time.dtype).eps)
    n = jnp.where(_cycles_length(n + 1, growth) <= time, n + 1, n)
    return jnp.where(_cycles_length(n, growth) > time, n - 1, n)


class cosine_restarts_schedule(Schedule):
    r"""Cosine decay with warm restarts (SGDR), in cycles of growing length.

    .. math::
        \eta_t &= I \left((1 - \alpha)\, c_t^p + \alpha\right), \qquad
        c_t = \tfrac12 \left(1 + \cos \frac{\pi\, (t - t_i)}{T_i}\right), \\
        T_i &= T_0\, m^i, \quad t_{i+1} = t_i + T_i

    Args:
        init_value: :math:`I`, the value at the start of every cycle.
        decay_steps: :math:`T_0`, the length of the first cycle in steps.
        t_mult: :math:`m`, the ratio of the lengths of consecutive cycles.
        alpha: :math:`\alpha`, the final value of a cycle, as a fraction of `init_value`.
        exponent: :math:`p`.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.cosine_restarts_schedule(1.0, decay_steps=2, t_mult=2)
        >>> [round(float(schedule(i)), 2) for i in range(7)]
        [1.0, 0.5, 1.0, 0.85, 0.5, 0.15, 1.0]

    Reference:
        Loshchilov and Hutter, 2017, arXiv:1608.03983.
    """

    init_value: Scalar = hyper()
    decay_steps: Scalar = hyper(gt=0)
    t_mult: Scalar = hyper(default=2.0, ge=1)
    alpha: Scalar = hyper(default=0.0)
    exponent: Scalar = hyper(default=1.0, ge=0)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        growth = jnp.asarray(h.t_mult, default_float())
        time = steps_since(count, 0.0) / h.decay_steps
        # The cycle number is piecewise constant, so its derivative is zero.
        n = jax.lax.stop_gradient(_cycle_number(time, growth))
        begin = h.decay_steps * _cycles_length(n, growth)
        end = h.decay_steps * _cycles_length(n + 1, growth)
        phase = fraction(count, begin, end - begin)
        return interpolate(h.init_value, h.init_value * h.alpha, cosine(phase, h.exponent))


def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> join_schedules:
    r"""Join cycles of a linear warm-up and a cosine decay (SGDR with explicit cycles).

    .. math:: \eta_t = s_i(t - t_i), \qquad t_{i+1} = t_i + T_i

    Args:
        cosine_kwargs: The arguments of `warmup_cosine_decay_schedule` for each cycle; `decay_steps`
            is the cycle's length :math:`T_i`.

    Returns:
        The joined schedules.

    Raises:
        ValueError: If `cosine_kwargs` is empty.

    Example:
        >>> import fnopt
        >>> cycle = dict(init_value=0.0, peak_value=1.0, warmup_steps=1)
        >>> schedule = fnopt.sgdr_schedule([cycle | {"decay_steps": n} for n in (3, 5)])
        >>> [round(float(schedule(i)), 2) for i in range(5)]
        [0.0, 1.0, 0.5, 0.0, 1.0]

    Reference:
        Loshchilov and Hutter, 2017, arXiv:1608.03983.
    """
    schedules = [warmup_cosine_decay_schedule(**kwargs) for kwargs in cosine_kwargs]
    boundaries = tuple(accumulate(s.decay_steps for s in schedules))
    return join_schedules(schedules, boundaries[:-1])
