"""Residuals in a unit in which their squares neither overflow nor vanish."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import power_of_two, row_most
from fnopt.solvers.problem._problem import Problem

_RANGE = {"float64": 2.0**256}  # of the residuals, within which squares and their sums are safe
_NARROW = 2.0**24


def safe_unit(r: jax.Array) -> jax.Array:
    """The unit of the residuals: 1, unless they are huge or tiny at the start.

    Huge ones become as large as may be: they have the furthest way to go down, on which their
    squares must not vanish before they do. It is a power of two, which rounds nothing.
    """
    largest = row_most(jnp.max(jnp.abs(r), initial=0))
    most = _RANGE.get(r.dtype.name, _NARROW)
    huge = largest >= most
    tiny = jnp.asarray(4 * jnp.finfo(r.dtype).tiny, r.dtype)
    size = lax.clamp(tiny, largest, jnp.asarray(jnp.finfo(r.dtype).max, r.dtype))
    size = power_of_two(size)
    one = lax.full_like(size, 1)
    unit = lax.select(huge, lax.full_like(size, most), one) / size
    return lax.select((huge | (largest <= 1 / most)) & (largest > 0), unit, one)


def first_unit(problem: Problem, r: jax.Array) -> jax.Array:
    """The unit that suits the residuals of a problem at the start."""
    return safe_unit(_felt(problem, r))


def next_unit(
    problem: Problem, cost: jax.Array, r: jax.Array, unit: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The unit in which a search goes on, and whether it is another.

    Where residuals fell by most of the range of the dtype their squares vanish, and nothing can be
    said of the point: it is looked at more closely.

    Args:
        problem: The problem, in its unit.
        cost: The cost.
        r: The residuals.
        unit: The unit.
    """
    info = jnp.finfo(unit.dtype)
    little = cost < jnp.asarray(float(info.tiny) / float(info.eps), unit.dtype)
    largest = row_most(jnp.max(_felt(problem, r), initial=0))
    finer = jnp.minimum(unit / power_of_two(largest), jnp.asarray(2.0**-4 / info.tiny, unit.dtype))
    better = little & (largest > 0) & (finer > unit)
    return lax.select(better, finer, unit), better


def _felt(problem: Problem, r: jax.Array) -> jax.Array:
    return jnp.abs(r) if problem.losses is None else problem.losses.felt(r)


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
    squares = problem.squares
    if squares is not None:
        squares = functools.partial(_squares_in_unit, squares, unit)
    return problem._replace(flat=scaled, losses=losses, squares=squares)


def _squares_in_unit(squares: Any, unit: jax.Array, x: jax.Array, other: jax.Array) -> jax.Array:
    return squares(x, unit * other)


class EndUnits(NamedTuple):
    """Units of the residuals and of every param, in which second derivatives are about 1."""

    residuals: jax.Array  # what they are multiplied by
    params: jax.Array  # [n], what is 1

    def cost(self, problem: Problem, x: jax.Array) -> jax.Array:
        """The cost at a point in these units."""
        return in_unit(problem, self.residuals).cost_at(self.params * x)


def end_units(problem: Problem, r: jax.Array, J: jax.Array | None) -> EndUnits:
    """The units for derivatives at the end of a fit, from its residuals and their Jacobian."""
    felt = row_most(jnp.max(_felt(problem, r), initial=0))
    unit = 1 / power_of_two(felt)
    if J is None:
        return EndUnits(unit, jnp.ones((problem.flat.n,), r.dtype))
    columns = row_most(jnp.max(jnp.abs(unit * J), axis=0, initial=0))
    return lax.stop_gradient(EndUnits(unit, 1 / power_of_two(columns)))


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
