"""Schedules with a linear warm-up."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Schedule, hyper, static
from fnopt.schedules._basic import (
    after_warmup,
    cosine,
    fraction,
    interpolate,
    numbers,
    power,
    steps_since,
)
from fnopt.schedules._decay import decay_from


def _steps_after_warmup(count: Any, steps: Any) -> jax.Array:
    """Number of steps since the end of a warm-up; 0 during the warm-up."""
    return jnp.maximum(steps_since(count, steps), 0)


class warmup_exponential_decay_schedule(Schedule):
    r"""Linear warm-up, then an exponential decay.

    .. math:: \eta_t = \begin{cases} (1 - t/W)\, I + (t/W)\, P & t < W \\
              P\, r^{x_t} & t \ge W \end{cases}, \qquad
              x_t = \max\left( \frac{t - W - B}{T}, 0 \right)

    Args:
        init_value: :math:`I`, the first value.
        peak_value: :math:`P`, the value at step :math:`W`.
        warmup_steps: :math:`W`, the length of the warm-up in steps.
        transition_steps: :math:`T`, the number of steps per factor.
        decay_rate: :math:`r`, the factor.
        transition_begin: :math:`B`, the number of steps between the warm-up and the decay.
        staircase: Whether to round :math:`x_t` down, so that the value decays in a staircase.
        end_value: The smallest value of the decay if :math:`r < 1`, otherwise the largest value;
            None for no bound.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.warmup_exponential_decay_schedule(0.0, 1.0, 4, 10, 0.5)
        >>> [float(schedule(i)) for i in (0, 2, 4, 14)]
        [0.0, 0.5, 1.0, 0.5]
    """

    init_value: Scalar = hyper()
    peak_value: Scalar = hyper()
    warmup_steps: Scalar = hyper(ge=0)
    transition_steps: Scalar = hyper(gt=0)
    decay_rate: Scalar = hyper(gt=0)
    transition_begin: Scalar = hyper(default=0.0, ge=0)
    staircase: bool = static(default=False)
    end_value: Scalar | None = hyper(default=None)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        steps = _steps_after_warmup(count, self.warmup_steps)
        decaying = decay_from(h, h.peak_value, steps - h.transition_begin)
        return after_warmup(h, count, decaying)


class warmup_stable_decay_schedule(Schedule):
    r"""Linear warm-up, a constant, and a short decay (WSD).

    .. math::
        \eta_t = \begin{cases}
            (1 - t/W)\, I + (t/W)\, P & t < W \\
            P & W \le t < W + S \\
            w(x_t)\, P + (1 - w(x_t))\, E & t \ge W + S
        \end{cases} \qquad x_t = \min\left( \frac{t - W - S}{D}, 1 \right)

    with :math:`w(x) = 1 - x` for `'linear'`, :math:`\tfrac12 (1 + \cos \pi x)` for `'cosine'`
    and :math:`1 - \sqrt x` for `'sqrt'`. You can choose the total number of training steps when
    the decay begins.

    Args:
        init_value: :math:`I`, the first value.
        peak_value: :math:`P`.
        warmup_steps: :math:`W`, the length of the warm-up in steps.
        stable_steps: :math:`S`, the length of the constant phase in steps.
        decay_steps: :math:`D`, the length of the decay in steps (not of the whole schedule).
        end_value: :math:`E`, the last value.
        decay_type: `'linear'`, `'cosine'` or `'sqrt'`.

    Raises:
        ValueError: If `decay_type` is unknown.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.warmup_stable_decay_schedule(0.0, 1.0, 4, 10, 4)
        >>> [float(schedule(i)) for i in (0, 2, 4, 14, 16, 18)]
        [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]

    Reference:
        Hu et al., 2024, arXiv:2404.06395; Hägele et al., 2024, arXiv:2405.18392 (`'sqrt'`).
    """

    init_value: Scalar = hyper()
    peak_value: Scalar = hyper()
    warmup_steps: Scalar = hyper(ge=0)
    stable_steps: Scalar = hyper(ge=0)
    decay_steps: Scalar = hyper(ge=0)
    end_value: Scalar = hyper(default=0.0)
    decay_type: str = static(default="linear", choices=("linear", "cosine", "sqrt"))

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        # The sum of the Python numbers is exact, whereas float32 would round the sum of `h`.
        begin = self.warmup_steps + self.stable_steps
        phase = fraction(count, begin, h.decay_steps)
        if self.decay_type == "cosine":
            weight = cosine(phase)
        else:
            weight = 1 - (power(phase, 0.5) if self.decay_type == "sqrt" else phase)
        return after_warmup(h, count, interpolate(h.peak_value, h.end_value, weight))


class inverse_sqrt_schedule(Schedule):
    r"""Linear warm-up, then a decay with the inverse square root of the step.

    .. math:: \eta_t = \begin{cases} (1 - t/W)\, I + (t/W)\, P & t < W \\
              P \sqrt{\frac{\tau}{\tau + t - W}} & t \ge W \end{cases}

    With :math:`\tau = W` the decay is :math:`P \sqrt{W / t}`, the Transformer's schedule.

    Args:
        init_value: :math:`I`, the first value.
        peak_value: :math:`P`, the value at step :math:`W`.
        warmup_steps: :math:`W`, the length of the warm-up in steps.
        timescale: :math:`\tau`, in steps; None uses :math:`\max(W, 1)`.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.inverse_sqrt_schedule(0.0, 1.0, warmup_steps=4)
        >>> [float(schedule(i)) for i in (0, 2, 4, 16, 64)]
        [0.0, 0.5, 1.0, 0.5, 0.25]

    Reference:
        Vaswani et al., 2017, arXiv:1706.03762; Zhai et al., 2021, arXiv:2106.04560.
    """

    init_value: Scalar = hyper()
    peak_value: Scalar = hyper()
    warmup_steps: Scalar = hyper(ge=0)
    timescale: Scalar | None = hyper(default=None, gt=0)

    def __call__(self, count: Any) -> jax.Array:
        """Return the value after `count` updates."""
        h = numbers(self)
        # With tau = W, the decay is P sqrt(W / t), as in Vaswani et al. (2017). W may be 0, so tau
        # is at least 1.
        tau = jnp.maximum(h.warmup_steps, 1) if h.timescale is None else h.timescale
        steps = _steps_after_warmup(count, self.warmup_steps)
        return after_warmup(h, count, h.peak_value * jnp.sqrt(tau / (tau + steps)))
