"""Phases and weights of the schedules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import default_float

_LARGEST = 2.0**31 - 2.0**7  # the largest float32 that an int32 holds


def numbers(schedule: Any) -> Any:
    """The schedule with its arrays strongly typed, of JAX's default float dtype.

    Python's numbers stay: arithmetic on them is no operation of the program, and what they meet
    decides the dtype.
    """
    as_array = lambda x: x if isinstance(x, float) else jnp.asarray(x, default_float())  # noqa: E731
    return jax.tree.map(as_array, schedule)


def steps_since(count: Any, begin: Any) -> jax.Array:
    """The number of steps from `begin` to `count`, as a float that depends on `begin`.

    A Python number is exact (below 2**31), an array as exact as its dtype: in float32 the step
    2**24 + 1 is 2**24.
    """
    count = jnp.asarray(count)
    whole_count = bool(jnp.issubdtype(count.dtype, jnp.integer))
    if isinstance(begin, float) and whole_count and 0 <= begin < 2**31:
        whole, rest = divmod(begin, 1)
        if whole:
            count = count.astype(jax.dtypes.canonicalize_dtype(int)) - int(whole)
        ahead = count.astype(default_float())
        return ahead - rest if rest else ahead
    begin = jnp.asarray(begin, default_float())
    if not whole_count:
        return count.astype(default_float()) - begin
    # float32 holds integers up to 2^24 only, so the whole steps are subtracted as integers; the
    # rest of `begin` is almost always zero, but through it flows the derivative.
    whole = jax.lax.stop_gradient(jnp.clip(jnp.floor(begin), 0, _LARGEST))
    integer = jax.dtypes.canonicalize_dtype(int)
    ahead = count.astype(integer) - whole.astype(integer)
    return ahead.astype(default_float()) - (begin - whole)


def fraction(count: Any, begin: Any, steps: Any) -> jax.Array:
    """The finished fraction of a phase of `steps` steps: 0 before `begin`, 1 at its end and after.

    A phase of no steps is over at once.
    """
    ahead = steps_since(count, begin)
    if isinstance(steps, float) and steps > 0:
        return jnp.clip(ahead / steps, 0.0, 1.0)
    over = (ahead >= 0).astype(ahead.dtype)
    running = jnp.clip(ahead / jnp.where(steps > 0, steps, jnp.ones_like(steps)), 0.0, 1.0)
    return jnp.where(steps > 0, running, over)


def interpolate(start: Any, end: Any, weight: jax.Array) -> jax.Array:
    """Interpolate from `start` (weight 1) to `end` (weight 0), exact at both."""
    return start * weight + end * (1 - weight)


def after_warmup(h: Any, count: Any, value: jax.Array) -> jax.Array:
    """A linear warm-up from `init_value` to `peak_value`, then a value."""
    warm = fraction(count, 0.0, h.warmup_steps)
    return jnp.where(warm < 1, interpolate(h.init_value, h.peak_value, 1 - warm), value)


def power(base: jax.Array, exponent: Any) -> jax.Array:
    """`base ** exponent` for a base in [0, 1], with a zero derivative to the base at 0.

    There the slope of a root is infinite, and one infinite factor would make a derivative NaN.
    """
    if isinstance(exponent, float) and (exponent == 1 or exponent >= 2):
        return base if exponent == 1 else base**exponent
    positive = base > 0
    result = jnp.where(positive, base, jnp.ones_like(base)) ** exponent
    return jnp.where(positive, result, jnp.asarray(exponent == 0, result.dtype))


def cosine(phase: jax.Array, exponent: Any = 1.0) -> jax.Array:
    r"""The weight :math:`(\frac12 (1 + \cos \pi x))^p` of the start at a phase `x` in [0, 1]."""
    return power(0.5 * (1 + jnp.cos(jnp.pi * phase)), exponent)
