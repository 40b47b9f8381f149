"""Time as the schedules see it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import default_float

_LARGEST = 2.0**31 - 2.0**7  # the largest float32 that an int32 holds


def numbers(schedule: Any) -> Any:
    """The schedule with all its numbers as strongly typed arrays of JAX's default float dtype."""
    return jax.tree.map(lambda x: jnp.asarray(x, default_float()), schedule)


def since(count: Any, begin: Any) -> jax.Array:
    """The number of steps from `begin` to `count`, as a float that depends on `begin`.

    A Python number is exact (below 2**31), an array as exact as its dtype: in float32 the step
    2**24 + 1 is 2**24.
    """
    count = jnp.asarray(count)
    whole_count = bool(jnp.issubdtype(count.dtype, jnp.integer))
    if isinstance(begin, float) and whole_count and 0 <= begin < 2**31:
        whole, rest = divmod(begin, 1)
        ahead = count.astype(jax.dtypes.canonicalize_dtype(int)) - int(whole)
        return ahead.astype(default_float()) - rest
    begin = jnp.asarray(begin, default_float())
    if not whole_count:
        return count.astype(default_float()) - begin
    # float32 holds integers up to 2^24 only, so the whole steps are subtracted as integers; the
    # rest of `begin` is almost always zero, but through it flows the derivative.
    whole = jax.lax.stop_gradient(jnp.clip(jnp.floor(begin), 0, _LARGEST))
    integer = jax.dtypes.canonicalize_dtype(int)
    ahead = count.astype(integer) - whole.astype(integer)
    return ahead.astype(default_float()) - (begin - whole)


def fraction(count: Any, begin: Any, steps: jax.Array) -> jax.Array:
    """The finished fraction of a phase of `steps` steps: 0 before `begin`, 1 at its end and after.

    A phase of no steps is over at once.
    """
    ahead = since(count, begin)
    running = jnp.clip(ahead / jnp.where(steps > 0, steps, jnp.ones_like(steps)), 0, 1)
    return jnp.where(steps > 0, running, (ahead >= 0).astype(running.dtype))


def between(start: jax.Array, end: jax.Array, weight: jax.Array) -> jax.Array:
    """From `start` (weight 1) to `end` (weight 0), exact at both."""
    return start * weight + end * (1 - weight)


def power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """`base ** exponent` for a base in [0, 1], with a zero derivative to the base at 0.

    There the slope of a root is infinite, and one infinite factor would make a derivative NaN.
    """
    positive = base > 0
    result = jnp.where(positive, base, jnp.ones_like(base)) ** exponent
    return jnp.where(positive, result, (exponent == 0).astype(result.dtype))


def cosine(phase: jax.Array, exponent: jax.Array) -> jax.Array:
    r"""The weight :math:`(\frac12 (1 + \cos \pi x))^p` of the start at a phase `x` in [0, 1]."""
    return power(0.5 * (1 + jnp.cos(jnp.pi * phase)), exponent)
