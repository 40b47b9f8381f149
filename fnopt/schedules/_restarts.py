"""Warm restarts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Schedule, default_float, hyper
from fnopt.schedules._decay import warmup_cosine_decay_schedule
from fnopt.schedules._join import join_schedules
from fnopt.schedules._time import cosine, fraction, interpolate, numbers, steps_since


def _cycles_length(n: jax.Array, growth: jax.Array) -> jax.Array:
    r"""The length of `n` cycles in units of the first one: :math:`\sum_{i<n} m^i`."""
    rest, equal = growth - 1, growth == 1
    # expm1 and log1p stay accurate for m close to one; at one the series gives the derivative too.
    safe, power = jnp.where(equal, 1, rest), jnp.where(equal, 0, n)
    length = jnp.where(equal, n + rest * n * (n - 1) / 2, jnp.expm1(power * jnp.log1p(safe)) / safe)
    # The sum is whole if m is. Rounding restores it, else a restart could come a step late.
    snapped = jnp.where(growth == jnp.round(growth), jnp.round(length), length)
    return length + jax.lax.stop_gradient(snapped - length)


def _cycle_number(time: jax.Array, growth: jax.Array) -> jax.Array:
    """The number of finished cycles at `time` (in units of the first cycle)."""
    safe = jnp.where(growth == 1, 1, growth - 1)
    n = jnp.floor(jnp.where(growth == 1, time, jnp.log1p(time * safe) / jnp.log1p(safe)))
    # Logarithms round: at the very step of a restart the guess can be a cycle too low, and the
    # beginning of the cycle a rounding error too late.
    time = time * (1 + 4 * jnp.finfo(time.dtype).eps)
    n = jnp.where(_cycles_length(n + 1, growth) <= time, n + 1, n)
    return jnp.where(_cycles_length(n, growth) > time, n - 1, n)


class cosine_restarts_schedule(Schedule):
    r"""Cosine decay with warm restarts (SGDR), each cycle longer than the one before.

    .. math::
        \eta_t &= I \left((1 - \alpha)\, c_t^p + \alpha\right), \qquad
        c_t = \tfrac12 \left(1 + \cos \frac{\pi\, (t - t_i)}{T_i}\right), \\
        T_i &= T_0\, m^i, \quad t_{i+1} = t_i + T_i

    Args:
        init_value: :math:`I`, the value at the start of every cycle.
        decay_steps: :math:`T_0`, the length of the first cycle in steps.
        t_mult: :math:`m`, how many times longer each cycle is than the one before.
        alpha: :math:`\alpha`, where a cycle ends, as a fraction of `init_value`.
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
        """The value after `count` updates."""
        h = numbers(self)
        growth = jnp.asarray(h.t_mult, default_float())
        time = steps_since(count, 0.0) / h.decay_steps
        n = jax.lax.stop_gradient(_cycle_number(time, growth))
        begin = h.decay_steps * _cycles_length(n, growth)
        end = h.decay_steps * _cycles_length(n + 1, growth)
        phase = fraction(count, begin, end - begin)
        return interpolate(h.init_value, h.init_value * h.alpha, cosine(phase, h.exponent))


def sgdr_schedule(cosine_kwargs: Iterable[Mapping[str, Any]]) -> join_schedules:
    r"""Warm restarts with explicit cycles: warm-up cosine decays one after another.

    .. math:: \eta_t = s_i(t - t_i), \qquad t_{i+1} = t_i + T_i

    Args:
        cosine_kwargs: For each cycle the arguments of `warmup_cosine_decay_schedule`; its
            `decay_steps` is the cycle's length :math:`T_i`.

    Returns:
        The schedules joined.

    Raises:
        ValueError: If there is no cycle.

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
