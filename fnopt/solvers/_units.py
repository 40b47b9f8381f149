"""Residuals in a unit in which their squares neither overflow nor vanish."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.linear import divide
from fnopt.residuals import pushed
from fnopt.solvers._problem import Problem

_RANGE = {"float64": 2.0**256}  # of the residuals, within which squares and their sums are safe
_NARROW = 2.0**24
_OFF = 0.02  # differences approximate a Jacobian better than that, even in float32


def safe_unit(r: jax.Array) -> jax.Array:
    """What to multiply residuals by: 1, unless they are huge or tiny at the start."""
    largest = jnp.max(jnp.abs(r), initial=0)
    most = _RANGE.get(r.dtype.name, _NARROW)
    ordinary = (largest > 1 / most) & (largest < most)
    tiny = jnp.asarray(4 * jnp.finfo(r.dtype).tiny, r.dtype)
    known = ~ordinary & (largest > 0) & jnp.isfinite(largest)
    one = jnp.ones_like(largest)
    return jnp.where(known, one / jnp.where(known, jnp.maximum(largest, tiny), one), one)


def in_unit(problem: Problem, unit: jax.Array) -> Problem:
    """The problem whose residuals, and their Jacobian, are multiplied by a number."""
    flat = problem.flat
    given = flat.derivative
    if given is not None:
        given = given.scaled(lambda x: jnp.full(flat.m, unit, x.dtype))
    return problem._replace(flat=flat._replace(r=lambda x: unit * flat.r(x), derivative=given))


def restored(values: Any, unit: jax.Array, powers: dict[str, int]) -> Any:
    """A tuple with names whose fields go back from the unit, each by its power."""

    def back(value: Any, power: int) -> Any:
        if value is None:
            return None
        for _ in range(power):  # one by one: the square of a unit may overflow
            value = value / unit
        return value

    fields = {name: back(getattr(values, name), power) for name, power in powers.items()}
    return values._replace(**fields)


def disagrees(problem: Problem, x: jax.Array, columns: jax.Array) -> jax.Array | None:
    r"""Whether the user's Jacobian isn't the derivative of the residuals along a direction.

    .. math:: \| J v - \tfrac{d}{dt} r(x + t v) \| > 0.02\, \| J v \|

    None if there is none, or the function can't be differentiated. What isn't finite, or has no
    derivative (a table that is looked up), is no evidence.

    Args:
        problem: The problem.
        x: The point.
        columns: The norms of the columns of the Jacobian there.
    """
    flat, given = problem.flat, problem.flat.derivative
    if given is None:
        return None

    def along(x: jax.Array, v: jax.Array) -> jax.Array:
        return pushed(flat.r, (x,), (v,))[1]

    try:
        jax.eval_shape(along, x, x)
    except Exception:  # a function without a derivative, whatever it says of that
        return None
    # Any direction will do that has all params in it, each by what it moves.
    signs = jnp.sin(1 + jnp.arange(x.size, dtype=x.dtype) * jnp.asarray(2.4, x.dtype))
    v = jnp.where(columns > 0, divide(signs, columns), signs)
    want, got = along(x, v), given.push(given.at(x), v)
    square, off = jnp.sum(jnp.square(want)), jnp.sum(jnp.square(want - got))
    much = jnp.asarray(_OFF**2, x.dtype) * jnp.maximum(square, jnp.sum(jnp.square(got)))
    return (square > 0) & jnp.isfinite(off) & (off > much)
