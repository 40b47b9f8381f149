"""Residuals in a unit in which their squares neither overflow nor vanish."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import row_most
from fnopt.solvers.problem._problem import Problem

_RANGE = {"float64": 2.0**256}  # of the residuals, within which squares and their sums are safe
_NARROW = 2.0**24


def safe_unit(r: jax.Array) -> jax.Array:
    """The unit of the residuals: 1, unless they are huge or tiny at the start.

    Huge ones become as large as may be: they have the furthest way to go down, on which their
    squares must not vanish before they do.
    """
    largest = row_most(jnp.max(jnp.abs(r), initial=0))
    most = _RANGE.get(r.dtype.name, _NARROW)
    huge = largest >= most
    tiny = jnp.asarray(4 * jnp.finfo(r.dtype).tiny, r.dtype)
    size = lax.clamp(tiny, largest, jnp.asarray(jnp.finfo(r.dtype).max, r.dtype))
    one = lax.full_like(size, 1)
    unit = lax.select(huge, lax.full_like(size, most), one) / size
    return lax.select((huge | (largest <= 1 / most)) & (largest > 0), unit, one)


def with_safe_unit(problem: Problem, r: jax.Array) -> tuple[Problem, jax.Array]:
    """The problem in a unit that suits its residuals at the start, and that unit."""
    unit = safe_unit(r if problem.losses is None else problem.losses.felt(r))
    return in_unit(problem, unit), unit


def in_unit(problem: Problem, unit: jax.Array) -> Problem:
    """The problem whose residuals, and their Jacobian, are multiplied by a number."""
    flat = problem.flat
    given = flat.derivative
    if given is not None:
        given = given.scaled(lambda x: jnp.full(flat.m, unit, x.dtype))
    gram = flat.gram
    if gram is not None:
        # Before the rows are multiplied, for the products may overflow.
        gram = _gram_in_unit(gram, unit)
    scaled = flat._replace(r=lambda x: unit * flat.r(x), derivative=given, gram=gram)
    losses = None if problem.losses is None else problem.losses.in_unit(unit)
    return problem._replace(flat=scaled, losses=losses)


def _gram_in_unit(gram: Any, unit: jax.Array) -> Any:
    def scaled(x: jax.Array, factor: jax.Array | None = None) -> jax.Array:
        return gram(x, unit if factor is None else unit * factor)

    return scaled


def restored(values: Any, unit: jax.Array, powers: dict[str, int]) -> Any:
    """A tuple with names whose fields go back from the unit, each by its power."""
    whole = 1 / unit  # of quotients in a row a compiler makes one, by a product of the units

    def back(value: Any, power: int) -> Any:
        if value is None:
            return None
        for _ in range(power):  # one by one: the square of a unit may overflow
            value = value * whole
        return value

    fields = {name: back(getattr(values, name), power) for name, power in powers.items()}
    return values._replace(**fields)
