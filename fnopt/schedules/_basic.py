"""Schedules that one formula describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import (
    Scalar,
    Schedule,
    accepts_args,
    default_float,
    hyper,
    is_array_like,
    static,
    type_text,
    where,
)
from fnopt.schedules._time import fraction, interpolate, numbers, power

_TRACED = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)


class constant_schedule(Schedule):
    r"""A constant value: :math:`\eta_t = \eta`.

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
        return jnp.asarray(self.value, default_float())


class linear_schedule(Schedule):
    r"""Linear interpolation from one value to another.

    .. math:: \eta_t = (1 - x_t)\, I + x_t\, E, \qquad
              x_t = \min\left(\max\left(\frac{t - B}{T}, 0\right), 1\right)

    Args:
        init_value: :math:`I`, the value up to step :math:`B`.
        end_value: :math:`E`, the value from step :math:`B + T` on.
        transition_steps: :math:`T`, the length of the transition in steps. A transition of no
            steps is over at once (where optax would stay at `init_value` for ever).
        transition_begin: :math:`B`, the step at which the transition begins.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.linear_schedule(1.0, 0.0, transition_steps=4)
        >>> [float(schedule(i)) for i in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
    """

    init_value: Scalar = hyper()
    end_value: Scalar = hyper()
    transition_steps: Scalar = hyper(ge=0)
    transition_begin: Scalar = hyper(default=0.0, ge=0)

    def __call__(self, count: Any) -> jax.Array:
        """The value after `count` updates."""
        h = numbers(self)
        phase = fraction(count, h.transition_begin, h.transition_steps)
        return interpolate(h.init_value, h.end_value, 1 - phase)


class polynomial_schedule(Schedule):
    r"""Polynomial interpolation from one value to another.

    .. math:: \eta_t = (I - E)\, (1 - x_t)^p + E, \qquad
              x_t = \min\left(\max\left(\frac{t - B}{T}, 0\right), 1\right)

    Args:
        init_value: :math:`I`, the value up to step :math:`B`.
        end_value: :math:`E`, the value from step :math:`B + T` on.
        power: :math:`p`.
        transition_steps: :math:`T`, the length of the transition in steps; 0 is over at once.
        transition_begin: :math:`B`, the step at which the transition begins.

    Example:
        >>> import fnopt
        >>> schedule = fnopt.polynomial_schedule(1.0, 0.0, power=2, transition_steps=4)
        >>> [float(schedule(i)) for i in (0, 1, 2, 4)]
        [1.0, 0.5625, 0.25, 0.0]
    """

    init_value: Scalar = hyper()
    end_value: Scalar = hyper()
    power: Scalar = hyper(ge=0)
    transition_steps: Scalar = hyper(ge=0)
    transition_begin: Scalar = hyper(default=0.0, ge=0)

    def __call__(self, count: Any) -> jax.Array:
        """The value after `count` updates."""
        h = numbers(self)
        phase = fraction(count, h.transition_begin, h.transition_steps)
        return interpolate(h.init_value, h.end_value, power(1 - phase, h.power))


class schedule(Schedule):
    r"""A schedule from a plain function: :math:`\eta_t = f(t)`.

    Args:
        fn: `fn(count) -> scalar`, traceable; `count` is an integer scalar (inside
            `join_schedules` a floating one). A function defined at the top of a module can be
            pickled and put in a config.

    Raises:
        TypeError: If `fn` can't be called with one argument.
        ValueError: When called, if the function gives something else than one real number.

    Example:
        >>> import fnopt
        >>> inverse = fnopt.schedule(lambda count: 0.1 / (1.0 + count))
        >>> fnopt.sgd(inverse)
        chain(scale_by_learning_rate(learning_rate=schedule(fn=<lambda>)))
    """

    fn: Callable[[Any], Any] = static()

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(
                f"{where()}schedule: fn = {self.fn!r} is a {type(self.fn).__name__}, expected a "
                "function of the step count; a number needs no wrapper."
            )
        if not accepts_args(self.fn, 0):
            name = getattr(self.fn, "__name__", self.fn)
            raise TypeError(f"{where()}schedule: {name} can't be called as fn(count).")
        super().__post_init__()

    def __call__(self, count: Any) -> jax.Array:
        """The function's value for `count`."""
        value = self._value(count)
        if not is_array_like(value) or jnp.iscomplexobj(value) or jnp.ndim(value):
            raise ValueError(
                f"{where()}schedule: the function gave {type_text(value)}, expected one real "
                "number."
            )
        return jnp.asarray(value).astype(default_float())

    def _value(self, count: Any) -> Any:
        try:
            return self.fn(count)
        except _TRACED as error:
            error.add_note(
                "fnopt.schedule: in a compiled step the count is traced. Write jnp.where(...) for "
                "if, and jnp's functions for math's."
            )
            raise
