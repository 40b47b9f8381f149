"""Residuals in a unit in which their squares neither overflow nor vanish."""

from __future__ import annotations

from typing import Any

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
    flat, losses = problem.flat, problem.losses
    given, gram, squares = flat.derivative, flat.gram, problem.squares
    scaled = flat._replace(
        r=lambda x: unit * flat.r(x),
        derivative=given and given.scaled(lambda x: jnp.full(flat.m, unit, x.dtype)),
        # Before the rows are multiplied, for the products may overflow.
        gram=gram and (lambda x, by=None: gram(x, unit if by is None else unit * by)),
    )
    return problem._replace(
        flat=scaled,
        losses=losses and losses.in_unit(unit),
        squares=squares and (lambda x, other: squares(x, unit * other)),
    )


def end_units(problem: Problem, r: jax.Array, J: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Units of the residuals and of every param, in which second derivatives are about 1.

    Residuals are multiplied by theirs; a scaled param of 1 is one of the unit.
    """
    felt = pmax_rows(jnp.max(_felt(problem, r), initial=0))
    unit = 1 / floor_power_of_two(felt)
    if J is None:
        return unit, jnp.ones((problem.flat.n,), r.dtype)
    columns = pmax_rows(jnp.max(jnp.abs(unit * J), axis=0, initial=0))
    return lax.stop_gradient((unit, 1 / floor_power_of_two(columns)))


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
