"""Power-of-two scaling of the residuals, so that their squares neither overflow nor underflow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.linear import least_square_sum
from fnopt.numerics import floor_power_of_two
from fnopt.sharding import pmax_rows
from fnopt.solvers.problem._problem import Problem


def next_residual_scale(
    problem: Problem, cost: jax.Array, r: jax.Array, scale: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the scale that makes the largest residual about 1, and whether it is needed.

    A new scale is needed if the cost is so small that sums of squares lose digits. It is also
    needed if a residual exceeds the fourth root of the dtype's largest number. Scaled steps and
    params may be larger than the residuals by another fourth root without overflow of their
    squares. The scale is a power of two, so scaling has no rounding error.

    Args:
        problem: The problem, with residuals scaled by `scale`.
        cost: The cost of the scaled residuals.
        r: The scaled residuals, of shape `[m]`.
        scale: The current scale.

    Returns:
        The new scale, or the current scale if no other is needed; and whether the scale changes.
    """
    info = jnp.finfo(scale.dtype)
    limit = jnp.asarray(2.0 ** (info.maxexp // 4), scale.dtype)
    largest = pmax_rows(jnp.max(_clipped(problem, r), initial=0))
    finite = jnp.isfinite(largest) & (largest > 0)
    new = scale / floor_power_of_two(largest)
    # A scale that is subnormal, or whose inverse is subnormal, isn't exact.
    max_scale = jnp.asarray(2.0**-4 / info.tiny, scale.dtype)
    new = jnp.clip(new, 1 / max_scale, max_scale)
    out_of_range = (cost < least_square_sum(cost.dtype)) | (largest > limit)
    needed = finite & out_of_range & (new != scale)
    return jnp.where(needed, new, scale), needed


def _clipped(problem: Problem, r: jax.Array) -> jax.Array:
    # A residual above the scale of its loss adds less than its square to the cost.
    return jnp.abs(r) if problem.losses is None else problem.losses.clipped(r)


def scale_residuals(problem: Problem, scale: jax.Array) -> Problem:
    """Multiply the residuals and their Jacobian by a number."""
    flat, losses = problem.flat, problem.losses
    derivative, gram, squares = flat.derivative, flat.gram, problem.squares
    scaled = flat._replace(
        r=lambda x: scale * flat.r(x),
        derivative=derivative and derivative.scaled(lambda x: jnp.full(flat.m, scale, x.dtype)),
        # The factor applies before rows are multiplied, because their products may overflow.
        gram=gram and (lambda x, by=None: gram(x, scale if by is None else scale * by)),
    )
    return problem._replace(
        flat=scaled,
        losses=losses and losses.in_unit(scale),
        squares=squares and (lambda x, other: squares(x, scale * other)),
    )


def scales_at_solution(
    problem: Problem, r: jax.Array, J: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Return scales of residuals and params that make second derivatives about 1.

    Args:
        problem: The problem.
        r: The residuals at the solution, of shape `[m]`.
        J: The Jacobian at the solution, of shape `[m, n]`; None if it isn't formed.

    Returns:
        The factor of the residuals, and the divisors of the params, of shape `[n]`.
    """
    largest = pmax_rows(jnp.max(_clipped(problem, r), initial=0))
    residual_scale = 1 / floor_power_of_two(largest)
    if J is None:
        return residual_scale, jnp.ones((problem.flat.n,), r.dtype)
    columns = pmax_rows(jnp.max(jnp.abs(residual_scale * J), axis=0, initial=0))
    # The scales cancel in the results, so their derivatives would cancel as well.
    return lax.stop_gradient((residual_scale, 1 / floor_power_of_two(columns)))


def undo_scaling(values: Any, scale: jax.Array, powers: dict[str, int]) -> Any:
    """Divide fields of a named tuple by powers of the residual scale.

    Args:
        values: A named tuple.
        scale: The factor of the residuals.
        powers: For each scaled field, its power of the scale: 1 for residuals, 2 for the cost.
    """
    # XLA may merge successive divisions into a division by the product, which may overflow.
    inverse = 1 / scale

    def unscale(value: Any, power: int) -> Any:
        if value is None:
            return None
        for _ in range(power):  # `inverse ** power` may overflow or underflow
            value = jax.tree.map(lambda part: part * inverse, value)
        return value

    fields = {name: unscale(getattr(values, name), power) for name, power in powers.items()}
    return values._replace(**fields)
