"""Time as the schedules see it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import default_float


def numbers(schedule: Any) -> Any:
    """The schedule with all its numbers as strongly typed arrays of JAX's default float dtype."""
    return jax.tree.map(lambda x: jnp.asarray(x, default_float()), schedule)


def as_time(count: Any) -> jax.Array:
    """The step count as a float."""
    return jnp.asarray(count).astype(default_float())


def fraction(count: Any, begin: jax.Array, steps: jax.Array) -> jax.Array:
    """How much of a phase of `steps` steps is over: 0 before `begin`, 1 at its end and after.

    A phase of no steps is over at once.
    """
    ahead = as_time(count) - begin
    running = jnp.clip(ahead / jnp.where(steps > 0, steps, jnp.ones_like(steps)), 0, 1)
    return jnp.where(steps > 0, running, (ahead >= 0).astype(running.dtype))
