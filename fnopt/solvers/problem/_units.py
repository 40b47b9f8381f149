"""Scaling of the residuals, so that their squares neither overflow nor underflow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.linear import least_square_sum
from fnopt.numerics import floor_power_of_two
from fnopt.sharding import pmax_rows
from fnopt.solvers.problem._problem import Problem


def finer_unit(
    problem: Problem, cost: jax.Array, r: jax.Array, unit: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the scale that makes the largest residual about 1, and whether scaling is needed.

    Scaling is needed if the cost is so small that sums of squares lose digits, or if residuals
    exceed the fourth root of the dtype's largest number. Below this limit, squares of steps and
    params in the Jacobian's scaling are in range, even if these are larger than the residuals by
    the same factor. The scale is a power of two, so scaling has no rounding error.

    Args:
        problem: The problem, in the current scale.
        cost: The cost.
        r: The residuals.
        unit: The current scale.
    """
    info = jnp.finfo(unit.dtype)
    reach = jnp.asarray(2.0 ** (info.maxexp // 4), unit.dtype)
    largest = pmax_rows(jnp.max(_clipped(problem, r), initial=0))
    finite = jnp.isfinite(largest) & (largest > 0)
    finer = unit / floor_power_of_two(largest)
    # A scale that is subnormal, or whose inverse is subnormal, isn't exact.
    most = jnp.asarray(2.0**-4 / info.tiny, unit.dtype)
    finer = jnp.clip(finer, 1 / most, most)
    needed = finite & ((cost < least_square_sum(cost.dtype)) | (largest > reach)) & (finer != unit)
    return jnp.where(needed, finer, unit), needed


def _clipped(problem: Problem, r: jax.Array) -> jax.Array:
    return jnp.abs(r) if problem.losses is None else problem.losses.clipped(r)


def in_unit(problem: Problem, unit: jax.Array) -> Problem:
    """Multiply the residuals and their Jacobian by a number."""
    flat, losses = problem.flat, problem.losses
    given, gram, squares = flat.derivative, flat.gram, problem.squares
    scaled = flat._replace(
        r=lambda x: unit * flat.r(x),
        derivative=given and given.scaled(lambda x: jnp.full(flat.m, unit, x.dtype)),
        # The factor applies before rows are multiplied, because their products may overflow.
        gram=gram and (lambda x, by=None: gram(x, unit if by is None else unit * by)),
    )
    return problem._replace(
        flat=scaled,
        losses=losses and losses.in_unit(unit),
        squares=squares and (lambda x, other: squares(x, unit * other)),
    )


def end_units(problem: Problem, r: jax.Array, J: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Return scales of residuals and params that make second derivatives about 1.

    Residuals are multiplied by their scale; params are divided by theirs.
    """
    largest = pmax_rows(jnp.max(_clipped(problem, r), initial=0))
    unit = 1 / floor_power_of_two(largest)
    if J is None:
        return unit, jnp.ones((problem.flat.n,), r.dtype)
    columns = pmax_rows(jnp.max(jnp.abs(unit * J), axis=0, initial=0))
    # The scales cancel in the results, so no derivative goes through them.
    return lax.stop_gradient((unit, 1 / floor_power_of_two(columns)))


def restored(values: Any, unit: jax.Array, powers: dict[str, int]) -> Any:
    """Undo the scaling of the fields of a named tuple, each by its power of the scale."""
    # A compiler may merge successive divisions into one by the product of the scales.
    whole = 1 / unit

    def back(value: Any, power: int) -> Any:
        if value is None:
            return None
        for _ in range(power):  # one at a time: the square of a scale may overflow
            value = jax.tree.map(lambda part: part * whole, value)
        return value

    fields = {name: back(getattr(values, name), power) for name, power in powers.items()}
    return values._replace(**fields)
