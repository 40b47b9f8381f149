"""Elementary schedules, and the phases and weights from which schedules are built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Scalar, Schedule, hyper, static
from fnopt.errors import accepts_args, type_text, where
from fnopt.numerics import default_float, is_array_like

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
        """Return the value."""
        return jnp.asarray(self.value, default_float())


class linear_schedule(Schedule):
    r"""Linear interpolation from one value to another.

    .. math:: \eta_t = (1 - x_t)\, I + x_t\, E, \qquad
              x_t = \min\left(\max\left(\frac{t - B}{T}, 0\right), 1\right)

    Args:
        init_value: :math:`I`, the value up to step :math:`B`.
        end_value: :math:`E`, the value from step :math:`B + T` on.
        transition_steps: :math:`T`, the length of the transition in steps. A transition of 0 steps
            ends immediately (in optax, the value is always `init_value`).
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
        """Return the value after `count` updates."""
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
        transition_steps: :math:`T`, the length of the transition in steps; a transition of 0 steps
            ends immediately.
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
        """Return the value after `count` updates."""
        h = numbers(self)
        phase = fraction(count, h.transition_begin, h.transition_steps)
        return interpolate(h.init_value, h.end_value, power(1 - phase, h.power))


class schedule(Schedule):
    r"""Schedule defined by a function: :math:`\eta_t = f(t)`.

    Args:
        fn: `fn(count) -> scalar`, traceable; `count` is an integer scalar (inside
            `join_schedules` a floating one). A function defined at module level can be pickled and
            stored in a configuration.

    Raises:
        TypeError: If `fn` can't be called with one argument.
        ValueError: When called, if the function doesn't return one real number.

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
                "function of the step count. Pass a number without fnopt.schedule."
            )
        if not accepts_args(self.fn, 0):
            name = getattr(self.fn, "__name__", self.fn)
            raise TypeError(
                f"{where()}schedule: {name} can't be called as fn(count), expected a function of "
                "one argument."
            )
        super().__post_init__()

    def __call__(self, count: Any) -> jax.Array:
        """Evaluate the function at `count`."""
        value = self._value(count)
        if not is_array_like(value) or jnp.iscomplexobj(value) or jnp.ndim(value):
            raise ValueError(
                f"{where()}schedule: the function returned {type_text(value)}, expected "
                "one real number."
            )
        return jnp.asarray(value).astype(default_float())

    def _value(self, count: Any) -> Any:
        try:
            return self.fn(count)
        except _TRACED as error:
            error.add_note(
                "fnopt.schedule: in a compiled step the count is traced. Write jnp.where(...) "
                "instead of if, and functions of jnp instead of math."
            )
            raise


_LARGEST = 2.0**31 - 2.0**7  # the largest float32 that int32 represents


def numbers(schedule: Any) -> Any:
    """Convert the arrays of a schedule to strongly typed arrays of JAX's default float dtype.

    Python numbers are unchanged, because arithmetic on Python numbers adds no operation to the
    program, and the other operand of an operation determines the dtype.
    """
    as_array = lambda x: x if isinstance(x, float) else jnp.asarray(x, default_float())  # noqa: E731
    return jax.tree.map(as_array, schedule)


def steps_since(count: Any, begin: Any) -> jax.Array:
    """Number of steps from `begin` to `count`, as a float.

    If `begin` is a Python number below 2**31, the result is exact. If `begin` is an array, the
    result is differentiable with respect to `begin`, whose precision is limited: in float32, the
    step 2**24 + 1 is rounded to 2**24.
    """
    count = jnp.asarray(count)
    is_integer = bool(jnp.issubdtype(count.dtype, jnp.integer))
    if isinstance(begin, float) and is_integer and 0 <= begin < 2**31:
        integer_part, fractional_part = divmod(begin, 1)
        if integer_part:
            count = count.astype(jax.dtypes.canonicalize_dtype(int)) - int(integer_part)
        steps = count.astype(default_float())
        return steps - fractional_part if fractional_part else steps
    begin = jnp.asarray(begin, default_float())
    if not is_integer:
        return count.astype(default_float()) - begin
    # float32 represents integers only up to 2^24, so integer parts are subtracted as integers. The
    # fractional part is almost always zero, but the derivative passes through it.
    integer_part = jax.lax.stop_gradient(jnp.clip(jnp.floor(begin), 0, _LARGEST))
    integer = jax.dtypes.canonicalize_dtype(int)
    steps = count.astype(integer) - integer_part.astype(integer)
    return steps.astype(default_float()) - (begin - integer_part)


def fraction(count: Any, begin: Any, steps: Any) -> jax.Array:
    """Completed fraction of a phase of `steps` steps that begins at `begin`, from 0 to 1.

    A phase of 0 steps ends immediately.
    """
    elapsed = steps_since(count, begin)
    # For a constant length, two selects are unnecessary.
    if isinstance(steps, float) and steps > 0:
        return jnp.clip(elapsed / steps, 0.0, 1.0)
    is_over = (elapsed >= 0).astype(elapsed.dtype)
    # The inner select avoids a division by zero, which would make derivatives NaN.
    phase = jnp.clip(elapsed / jnp.where(steps > 0, steps, jnp.ones_like(steps)), 0.0, 1.0)
    return jnp.where(steps > 0, phase, is_over)


def interpolate(start: Any, end: Any, weight: jax.Array) -> jax.Array:
    """Interpolate between `start` (weight 1) and `end` (weight 0), exactly at both ends."""
    # `end + weight * (start - end)` could miss the start by a rounding error.
    return start * weight + end * (1 - weight)


def after_warmup(h: Any, count: Any, value: jax.Array) -> jax.Array:
    """Linear warm-up from `h.init_value` to `h.peak_value`, and `value` after the warm-up."""
    phase = fraction(count, 0.0, h.warmup_steps)
    return jnp.where(phase < 1, interpolate(h.init_value, h.peak_value, 1 - phase), value)


def power(base: jax.Array, exponent: Any) -> jax.Array:
    """Compute `base ** exponent` for a base in [0, 1], with a zero derivative at the base 0.

    The derivative of a root at 0 is infinite, and an infinite factor could make a derivative NaN.
    """
    # For exponents of at least 2, the derivative at 0 is 0 without a select.
    if isinstance(exponent, float) and (exponent == 1 or exponent >= 2):
        return base if exponent == 1 else base**exponent
    positive = base > 0
    result = jnp.where(positive, base, jnp.ones_like(base)) ** exponent
    return jnp.where(positive, result, jnp.asarray(exponent == 0, result.dtype))


def cosine(phase: jax.Array, exponent: Any = 1.0) -> jax.Array:
    r"""Weight :math:`(\frac12 (1 + \cos \pi x))^p` of the initial value at phase `x` in [0, 1]."""
    return power(0.5 * (1 + jnp.cos(jnp.pi * phase)), exponent)
