"""Convergence tests, and the statuses that follow from them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Status, is_converged


def first_of(*cases: tuple[jax.Array, Status]) -> jax.Array:
    """The status of the first case that holds, `RUNNING` if none does."""
    status = Status.RUNNING.array
    for holds, case in reversed(cases):
        status = jnp.where(holds, case.array, status)
    return status


def is_stationary(cost: jax.Array, scaled_gradient: jax.Array, gtol: jax.Array) -> jax.Array:
    """Whether nothing is left to gain: no residual, or one at right angles to every column."""
    return (cost <= 0) | (scaled_gradient <= gtol * jnp.sqrt(2 * cost))


def checked_status(
    status: jax.Array, moved: jax.Array, cost: jax.Array, counted: int | jax.Array = 1
) -> jax.Array:
    """The status, except that a point is no solution where nothing moves the residuals.

    It is stationary there, but because every column of the Jacobian is zero: the residuals are
    constant, or saturated, or the loss counts all of them as outliers, or no residual counts.
    Residuals of zero that do count leave nothing to explain.

    Args:
        status: The status by the tests of convergence.
        moved: Whether any param moves any residual that counts.
        cost: The cost.
        counted: How many residuals count.

    Returns:
        The status, of the same shape.
    """
    nothing = ~moved & ((cost > 0) | (counted <= 0))
    return jnp.where(is_converged(status) & nothing, Status.ILL_POSED.array, status)


def doubted(solution: Any, wrong: jax.Array | None) -> Any:
    """The solution, whose status says if the user's Jacobian wasn't that of the residuals."""
    if wrong is None:
        return solution
    failed = jnp.asarray([Status.NONFINITE_START, Status.ILL_POSED, Status.INFEASIBLE], jnp.int32)
    doubtful = wrong & ~jnp.any(solution.status == failed)
    status = jnp.where(doubtful, Status.WRONG_JACOBIAN.array, solution.status)
    return solution._replace(status=status)


def cost_converged(
    actual: jax.Array, predicted: jax.Array, cost: jax.Array, ftol: jax.Array, noise: jax.Array
) -> jax.Array:
    r"""Whether the model promises, and the step gained, next to nothing.

    .. math:: \delta f_\text{predicted} \le \epsilon_f f \quad\text{and}\quad
        |\delta f| \le \max(\epsilon_f, \epsilon_\text{noise})\, f

    The prediction is exact to rounding, so it is what is tested sharply; the actual reduction is a
    difference of nearly equal numbers and only has to be as small as its noise allows.
    """
    return (predicted <= ftol * cost) & (jnp.abs(actual) <= jnp.maximum(ftol, noise) * cost)


def step_converged(length: jax.Array, size: jax.Array, xtol: jax.Array) -> jax.Array:
    r"""Whether the step is tiny against the params: :math:`\|D p\| \le \epsilon_x \|D x\|`."""
    return length <= xtol * size
