"""Comparison of the user's Jacobian with the derivative of the residuals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnopt.core import Status
from fnopt.linear import divide
from fnopt.linear import row_norm as norm
from fnopt.programs import jaxprs
from fnopt.residuals import pushed
from fnopt.sharding import pvary_over_rows
from fnopt.solvers.problem._problem import Problem
from fnopt.solvers.result._solution import Solution

# Tolerated relative error of a product. Forward differences in float32 have errors of at most 0.009
# for 12 initial guesses of NIST's models.
_RELATIVE_ERROR = 0.02
# The rounding error of a product is assumed to be at most this multiple of eps times its terms. For
# NIST's models it is at most 0.8 times these; a simulation has many more operations.
# A column below this multiple of its own rounding error gets a smaller weight in the direction.
_ROUNDING = 100


def disagrees(problem: Problem, x: jax.Array, columns: jax.Array) -> jax.Array | None:
    r"""Whether the user's Jacobian isn't the derivative of the residuals along a direction.

    .. math:: \| J v - \dot r \| > 0.02 \max(\| J v \|, \| \dot r \|)
        + \sum_j (100\, \epsilon\, \|J_j\| + \delta_j) |v_j|, \qquad
        \dot r = \tfrac{d}{dt} r(x + t v)

    The rounding error of a column is estimated as

    .. math:: \delta_j = 100\, \epsilon\, \frac{\|r\| + \sum_k \|J_k x_k\|}{\max(|x_j|, 1)}.

    The direction :math:`v` changes all params, each with the same effect on the residuals:
    :math:`|v_j| \approx 1 / \max(\|J_j\|, 100\, \delta_j)`. Therefore a missing column is detected,
    whatever the scale of its param. Non-finite products and functions whose derivative is zero
    (table look-ups) pass the check. The products are also compared at a second point nearby,
    because the first point may be on a kink with two derivatives.

    Args:
        problem: The problem.
        x: The point.
        columns: The norms of the columns of the user's Jacobian at the point.

    Returns:
        Whether the derivatives disagree at both points. None if there is no user's Jacobian, if the
        function can't be differentiated, or if the Jacobian is computed in chunks to bound memory.
    """
    flat, derivative = problem.flat, problem.flat.derivative
    if derivative is None or derivative.gram is not None:
        return None
    try:
        jaxpr = jax.make_jaxpr(lambda x: pushed(flat.r, (x,), (x,)))(x).jaxpr
    except Exception:  # a function without a derivative may raise any exception
        return None
    # Forward mode traces a `custom_vjp`, but its primitive `custom_lin` can't be compiled.
    if any(eqn.primitive.name == "custom_lin" for eqn in jaxprs.equations(jaxpr)):
        return None

    def differs(x: jax.Array) -> jax.Array:
        v, floor = _direction(flat.r(x), x, columns)
        exact = pushed(flat.r, pvary_over_rows((x,)), pvary_over_rows((v,)))[1]
        product = derivative.push(derivative.at(x), v)
        size = jnp.maximum(norm(exact), norm(product))
        tolerance = jnp.asarray(_RELATIVE_ERROR, x.dtype) * size + floor
        distance = norm(exact - product)
        return (norm(exact) > 0) & jnp.isfinite(distance) & (distance > tolerance)

    # The second point is a finite-difference step away, off any kink at `x`. A param of zero moves
    # by the change that would double the residual norm, times the same root.
    root = jnp.asarray(float(jnp.finfo(x.dtype).eps) ** 0.5, x.dtype)
    size = jnp.where(x != 0, jnp.abs(x), divide(norm(flat.r(x)), columns))
    return jnp.all(lax.map(differs, jnp.stack([x, x + root * size * _irregular(x)])))


def _direction(r: jax.Array, x: jax.Array, columns: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the direction `v`, and a bound on the rounding error of the products with `v`."""
    noise = jnp.asarray(_ROUNDING * float(jnp.finfo(x.dtype).eps), x.dtype)
    size = jnp.maximum(jnp.abs(x), jnp.ones_like(x))
    rounding = noise * (norm(r) + jnp.sum(columns * jnp.abs(x))) / size
    effect = jnp.maximum(columns, jnp.asarray(_ROUNDING, x.dtype) * rounding)
    v = _irregular(x) / jnp.where(effect > 0, effect, jnp.ones_like(effect))
    return v, jnp.sum((noise * columns + rounding) * jnp.abs(v))


def _irregular(x: jax.Array) -> jax.Array:
    """Return numbers of irregular signs and of magnitudes between 1 and 2, one for each param.

    With equal numbers, errors of several columns could cancel in the product.
    """
    # Multiples of the golden angle are spread most evenly over the circle.
    angle = jnp.asarray(np.pi * (3 - 5**0.5), x.dtype)
    wave = jnp.sin(1 + jnp.arange(x.size, dtype=x.dtype) * angle)
    return wave + jnp.where(wave < 0, -1, 1).astype(x.dtype)


def checked_jacobian(problem: Problem, solver: Any, x: jax.Array, end: Solution) -> Solution:
    """Set the status `WRONG_JACOBIAN` if the user's Jacobian disagrees with the residuals.

    Args:
        problem: The problem.
        solver: The method.
        x: The point of the comparison.
        end: The solution.

    Returns:
        The solution, with the new status.
    """
    if problem.flat.derivative is None:
        return end
    wrong = disagrees(problem, x, solver.model(problem.flat).evaluate(x).columns)
    if wrong is None:
        return end
    failed = jnp.asarray([Status.NONFINITE_START, Status.ILL_POSED, Status.INFEASIBLE], jnp.int32)
    # These statuses name a more specific failure.
    wrong &= ~jnp.any(end.status == failed)
    return end._replace(status=jnp.where(wrong, Status.WRONG_JACOBIAN.array, end.status))
