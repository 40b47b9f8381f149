"""Whether a Jacobian that the user brings is that of the residuals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status
from fnopt.linear import divide
from fnopt.linear import row_norm as norm
from fnopt.programs import jaxprs
from fnopt.residuals import pushed
from fnopt.sharding import pvary_over_rows
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.result._solution import Solution

_OFF = 0.02  # differences approximate a Jacobian better than that, even in float32
# Rounding units, of what a product is the sum of; and of these, of a column that counts as much as
# the others.
_ROUNDING = 100


def disagrees(problem: Problem, x: jax.Array, columns: jax.Array) -> jax.Array | None:
    r"""Whether the user's Jacobian isn't the derivative of the residuals along a direction.

    .. math:: \| J v - \dot r \| > 0.02 \max(\| J v \|, \| \dot r \|)
        + \sum_j (100\, \epsilon\, \|J_j\| + \delta_j) |v_j|, \qquad
        \dot r = \tfrac{d}{dt} r(x + t v)

    What rounding makes of a column is taken as

    .. math:: \delta_j = 100\, \epsilon\, \frac{\|r\| + \sum_k \|J_k x_k\|}{\max(|x_j|, 1)},

    and all params move in the direction, each by as much of the residuals:
    :math:`|v_j| \approx 1 / \max(\|J_j\|, 100\, \delta_j)`. So one whose column was forgotten
    moves by what shows, if it matters. What isn't finite, or has no derivative (a table that is
    looked up), is no evidence. Nor is one point, which may be on a kink, where there are two
    derivatives: the two are compared nearby as well.

    Args:
        problem: The problem.
        x: The point.
        columns: The norms of the columns of the user's Jacobian there.

    Returns:
        Whether it does. None if there is none, if the function can't be differentiated, or if the
        Jacobian is one that is gone through in chunks, for the sake of memory.
    """
    flat, given = problem.flat, problem.flat.derivative
    if given is None or given.gram is not None:
        return None
    try:
        jaxpr = jax.make_jaxpr(lambda x: pushed(flat.r, (x,), (x,)))(x).jaxpr
    except Exception:  # a function without a derivative, whatever it says of that
        return None
    # What is left of a custom_vjp, which fails when it is compiled.
    if any(eqn.primitive.name == "custom_lin" for eqn in jaxprs.equations(jaxpr)):
        return None

    def differs(x: jax.Array) -> jax.Array:
        v, floor = _direction(flat.r(x), x, columns)
        exact = pushed(flat.r, pvary_over_rows((x,)), pvary_over_rows((v,)))[1]
        given_push = given.push(given.at(x), v)
        tolerance = jnp.asarray(_OFF, x.dtype) * jnp.maximum(norm(exact), norm(given_push)) + floor
        distance = norm(exact - given_push)
        return (norm(exact) > 0) & jnp.isfinite(distance) & (distance > tolerance)

    # A step of forward differences away, off any kink that `x` may be on.
    root = jnp.asarray(float(jnp.finfo(x.dtype).eps) ** 0.5, x.dtype)
    size = jnp.where(x != 0, jnp.abs(x), divide(norm(flat.r(x)), columns))
    return jnp.all(lax.map(differs, jnp.stack([x, x + root * size * _uneven(x)])))


def _direction(r: jax.Array, x: jax.Array, columns: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A direction, and what rounding makes of a difference along it."""
    unit = jnp.asarray(_ROUNDING * float(jnp.finfo(x.dtype).eps), x.dtype)
    size = jnp.maximum(jnp.abs(x), jnp.ones_like(x))
    rounding = unit * (norm(r) + jnp.sum(columns * jnp.abs(x))) / size
    large = jnp.maximum(columns, jnp.asarray(_ROUNDING, x.dtype) * rounding)
    v = _uneven(x) / jnp.where(large > 0, large, jnp.ones_like(large))
    return v, jnp.sum((unit * columns + rounding) * jnp.abs(v))


def _uneven(x: jax.Array) -> jax.Array:
    """Numbers of either sign between 1 and 2, so that no two params make up for each other."""
    wave = jnp.sin(1 + jnp.arange(x.size, dtype=x.dtype) * jnp.asarray(2.4, x.dtype))
    return wave + jnp.where(wave < 0, -1, 1).astype(x.dtype)


def checked_jacobian(problem: Problem, solver: Any, x: jax.Array, end: Solution) -> Solution:
    """The solution, whose status says if the user's Jacobian isn't that of the residuals.

    Args:
        problem: The problem.
        solver: The method.
        x: Where to compare.
        end: The solution.
    """
    if problem.flat.derivative is None:
        return end
    wrong = disagrees(problem, x, solver.model(problem.flat).evaluate(x).columns)
    if wrong is None:
        return end
    failed = jnp.asarray([Status.NONFINITE_START, Status.ILL_POSED, Status.INFEASIBLE], jnp.int32)
    doubtful = wrong & ~jnp.any(end.status == failed)
    return end._replace(status=jnp.where(doubtful, Status.WRONG_JACOBIAN.array, end.status))
