"""Comparison of the user's Jacobian with the derivative of the residuals."""

from __future__ import annotations

import math
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

# Tolerated relative error of a product. Forward differences in float32 have errors of at most 0.009
# for 12 initial guesses of NIST's models.
_RELATIVE_ERROR = 0.02


def disagrees(problem: Problem, x: jax.Array, columns: jax.Array) -> jax.Array | None:
    r"""Whether the user's Jacobian isn't the derivative of the residuals.

    For a direction :math:`v`, row `i` is wrong if

    .. math:: |(J v)_i - \dot r_i| > 0.02 \max(|(J v)_i|, |\dot r_i|, s)
        + \sqrt\epsilon\, (|r_i| + |\dot r'_i|)\, \|v / \max(|x|, 1)\|, \qquad
        \dot r = \tfrac{d}{dt} r(x + t v).

    Here `s` is the root mean square of the products over all rows, because the terms of a row may
    cancel. The last summand is the rounding error of forward differences; :math:`\dot r'` is the
    derivative along `x` with irregular factors. The Jacobian is wrong if a row is wrong at two
    points along two directions, because the first point may be on a kink with two derivatives.

    The direction changes all params, each with the same effect on the residuals:
    :math:`|v_j| \approx 1 / \max(\|J_j\|, \delta_j)`. Therefore a missing column is detected,
    whatever the scale of its param. The rounding error of a column is estimated as

    .. math:: \delta_j = \sqrt\epsilon\, \frac{\|r\| + \sum_k \|J_k x_k\|}{\max(|x_j|, 1)}.

    Rows are compared separately, so the number of params doesn't matter, but the number `k` of
    nonzeros in a row does. The product with a row of equal entries is about :math:`\sqrt k` times
    an entry. Therefore a doubled, negated or missing column is detected up to about `k = 1000`, and
    at most :math:`1 / 0.02^2 = 2500`. Smaller errors need fewer nonzeros. Non-finite products and
    functions whose derivative is zero (table look-ups) pass the check.

    Args:
        problem: The problem.
        x: The point.
        columns: The norms of the columns of the user's Jacobian at the point.

    Returns:
        Whether the derivatives disagree. None if there is no user's Jacobian, if the function can't
        be differentiated, or if the Jacobian is computed in chunks to bound memory.
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

    def products(x: jax.Array, k: jax.Array) -> tuple[jax.Array, ...]:
        r = flat.r(x)
        v, errors = _direction(r, x, columns, k)
        # The terms of a row are estimated without the user's Jacobian, whose entries may be huge.
        directions = pvary_over_rows(jnp.stack([v, x * _irregular(x, k)]))
        exact, terms = lax.map(lambda v: pushed(flat.r, pvary_over_rows((x,)), (v,))[1], directions)
        return exact, derivative.push(derivative.at(x), v), errors * (jnp.abs(r) + jnp.abs(terms))

    # The second point is a finite-difference step away, off any kink at `x`. A param of zero moves
    # by the change that would double the residual norm, times the same root.
    root = jnp.asarray(float(jnp.finfo(x.dtype).eps) ** 0.5, x.dtype)
    size = jnp.where(x != 0, jnp.abs(x), divide(norm(flat.r(x)), columns))
    points = jnp.stack([x, x + root * size * _irregular(x, 1)])
    exact, product, rounding = lax.map(
        lambda xk: products(*xk), (points, jnp.arange(1, 3, dtype=x.dtype))
    )
    # Terms of a row may cancel along one direction. They hardly cancel along both directions, and
    # not in all rows.
    rows = jnp.max(jnp.maximum(jnp.abs(exact), jnp.abs(product)), axis=0)
    typical = norm(rows) / norm(jnp.ones_like(rows))
    relative = jnp.asarray(_RELATIVE_ERROR, x.dtype) * jnp.maximum(rows, typical)
    wrong = jnp.all(jnp.abs(exact - product) > relative + rounding, axis=0)
    varies = jnp.all(jax.vmap(norm)(exact) > 0)
    return varies & (norm(wrong.astype(x.dtype)) > 0)


def _direction(
    r: jax.Array, x: jax.Array, columns: jax.Array, k: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the direction `v`, and the rounding error of a product relative to its terms."""
    # The best relative step of a forward difference is the root of eps. So is its rounding error.
    root = jnp.asarray(float(jnp.finfo(x.dtype).eps) ** 0.5, x.dtype)
    size = jnp.maximum(jnp.abs(x), jnp.ones_like(x))
    effect = jnp.maximum(columns, root * (norm(r) + jnp.sum(columns * jnp.abs(x))) / size)
    v = _irregular(x, k) / jnp.where(effect > 0, effect, jnp.ones_like(effect))
    return v, root * norm(v / size)


def _irregular(x: jax.Array, k: Any) -> jax.Array:
    """Return numbers of irregular signs and of magnitudes between 1 and 2, one for each param.

    With equal numbers, errors of several columns could cancel in the product. Multiples `k` of the
    golden angle give independent signs.
    """
    angle = jnp.asarray(math.pi * (3 - math.sqrt(5)), x.dtype) * k
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
