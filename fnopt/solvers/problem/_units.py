"""Residuals in a unit in which their squares neither overflow nor vanish."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import floor_power_of_two
from fnopt.linear import least_square_sum
from fnopt.sharding import pmax_rows
from fnopt.solvers.problem._problem import Problem


def finer_unit(
    problem: Problem, cost: jax.Array, r: jax.Array, unit: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The unit in which the largest residual is about 1, and whether the squares ask for it.

    They do where the cost is so small that sums of squares have lost digits, and where residuals
    are above the fourth root of the largest number: below it, steps and params in the scaling of
    the Jacobian, which may be longer by as much again, have squares in range. A power of two rounds
    nothing.

    Args:
        problem: The problem, in its unit.
        cost: The cost.
        r: The residuals.
        unit: The unit.
    """
    info = jnp.finfo(unit.dtype)
    reach = jnp.asarray(2.0 ** (info.maxexp // 4), unit.dtype)
    largest = pmax_rows(jnp.max(_felt(problem, r), initial=0))
    finite = jnp.isfinite(largest) & (largest > 0)
    finer = unit / floor_power_of_two(largest)
    # One that is subnormal, or whose inverse is, isn't exact.
    most = jnp.asarray(2.0**-4 / info.tiny, unit.dtype)
    finer = jnp.clip(finer, 1 / most, most)
    needed = finite & ((cost < least_square_sum(cost.dtype)) | (largest > reach)) & (finer != unit)
    return jnp.where(needed, finer, unit), needed


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
    felt = pmax_rows(jnp.max(_felt(problem, r), initial=0))
    unit = 1 / floor_power_of_two(felt)
    if J is None:
        return EndUnits(unit, jnp.ones((problem.flat.n,), r.dtype))
    columns = pmax_rows(jnp.max(jnp.abs(unit * J), axis=0, initial=0))
    return lax.stop_gradient(EndUnits(unit, 1 / floor_power_of_two(columns)))


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
            value = jax.tree.map(lambda part: part * whole, value)
        return value

    fields = {name: back(getattr(values, name), power) for name, power in powers.items()}
    return values._replace(**fields)
