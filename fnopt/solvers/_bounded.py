"""Bound-constrained steps: the trust-region step of the free params, truncated at the bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.linear import Triangle, norm
from fnopt.numerics import matmul
from fnopt.residuals import Box, FlatResidual
from fnopt.sharding import psum_rows, while_loop
from fnopt.solvers._trust_region import Trial, next_damping
from fnopt.solvers.linear_model._choice import is_large_and_sparse
from fnopt.solvers.linear_model._linearization import Linearization, NormalMatrix

# A param stops half-way to its bound if the step to the bound changes the cost by more than this
# share. With shares from 0.01 to 0.5, 80 to 82 of the 638 fits of `python -m benchmarks bounds` end
# in another minimum.
_MAX_CHANGE = 0.1

Map = Callable[[jax.Array], jax.Array]
Products = tuple[Map, Map] | None
"""Products with the Jacobian and with its transpose; None if the point stores a matrix."""


def within_bounds(solver: Any, flat: FlatResidual) -> Any:
    """Replace linear solvers that don't support active bounds by QR.

    With active bounds, the number of free params may be less than the number of residuals, even in
    a wide problem. The Gram matrix of the rows is then singular.
    """
    is_row_gram = solver.linear_solver == "cholesky" and flat.rows < flat.n
    if solver.linear_solver == "auto" and is_large_and_sparse(flat):
        return solver
    if solver.linear_solver != "auto" and not is_row_gram:
        return solver
    return dataclasses.replace(solver, linear_solver="qr")


def without_active_params(
    point: Linearization,
    active: jax.Array,
    shift: jax.Array | None = None,
    products: Products = None,
) -> Linearization:
    r"""Remove the active params from the linear model, by zeros in Jacobian and gradient.

    Args:
        point: The linearization.
        active: Mask of the active params, of shape `[n]`.
        shift: The step of the active params, with zeros for the free params. The residuals become
            the residuals :math:`r + J s` of the linear model after this step.
        products: The products with the Jacobian, if the point stores no matrix.

    Returns:
        The linearization, with arrays of unchanged shapes.
    """
    # Zeros instead of fewer columns, because shapes can't depend on values under `jit`.
    free = (~active).astype(point.x.dtype)
    columns = point.columns * free
    if products is not None or not isinstance(point.J, (jax.Array, NormalMatrix)):
        return _shift_without_matrix(point, free, columns, shift, products)
    if isinstance(point.J, NormalMatrix):
        # The residuals stay unshifted, because only the acceleration of a step depends on them.
        G = point.J
        gradient = point.gradient if shift is None else point.gradient + G.times(shift)
        J = G._replace(matrix=G.matrix * free * free[:, None])
        return point._replace(J=J, gradient=gradient * free, columns=columns)
    r = point.r if shift is None else point.r + matmul(point.J, shift)
    J = point.J * free
    gradient = point.gradient * free if shift is None else psum_rows(matmul(r, J))
    factors = point.triangle
    if factors is not None:
        c = factors.c if shift is None else factors.c + matmul(shift, factors.L)
        factors = Triangle(factors.L * free[:, None], c)
    return point._replace(r=r, J=J, gradient=gradient, columns=columns, triangle=factors)


def _shift_without_matrix(
    point: Linearization,
    free: jax.Array,
    columns: jax.Array,
    shift: jax.Array | None,
    products: Products,
) -> Linearization:
    # Models without a matrix skip the zero columns in their products.
    if shift is None:
        return point._replace(gradient=point.gradient * free, columns=columns)
    assert products is not None
    push, pull = products
    r = point.r + push(shift)
    return point._replace(r=r, gradient=pull(r) * free, columns=columns)


class _TruncatedStep(NamedTuple):
    """State of the passes of `bounded_step`, each of which truncates more params."""

    truncated: jax.Array  # bool[n], mask of the params that stop at or before their bounds
    end: jax.Array  # [n], the end of the step, in the box
    best: jax.Array  # [n], the end with the largest predicted reduction so far
    predicted: jax.Array  # predicted reduction at `best`
    lam: jax.Array  # damping of the next pass
    is_new: jax.Array  # bool, whether the last pass truncated a param that wasn't truncated before


def bounded_step(
    point: Linearization,
    box: Box,
    scale: jax.Array,
    radius: jax.Array,
    lam: jax.Array,
    propose: Callable[[Linearization, jax.Array], Trial],
    products: Products = None,
) -> tuple[Trial, jax.Array]:
    r"""Compute a step that satisfies the bounds.

    Params with an active bound stay fixed, and all other params take the step of the method. A
    param that would leave the box stops at its bound. If the step to the bound would change the
    cost by more than a tenth, to first order, the param stops half-way. Reaching a bound too early
    may lead to another minimum: at an amplitude of 0, the other params of a term have no effect.

    Truncating one param invalidates the step of the correlated params. Therefore the step of the
    other params is recomputed, until a pass truncates no further param. Of all passes, the end
    point with the lowest cost of the linear model is returned. If the predicted reduction isn't
    positive there, the step is rejected and the trust region shrinks. Short steps follow the scaled
    negative gradient, and a truncated gradient step still decreases the cost.

    Args:
        point: The linearization at the current point, in the box, with the full Jacobian.
        box: The bounds.
        scale: The scaling `D` of the params, of shape `[n]`.
        radius: The trust-region radius.
        lam: An initial guess of the damping.
        propose: `propose(point, lam)` returns the step of the method.
        products: The products with the Jacobian, if the point stores no matrix.

    Returns:
        The trial step with its predicted reduction, and the end point. The end point is exactly on
        the bounds that the step reaches; `point.x` plus the step may be off by rounding error.

    Reference:
        Coleman and Li (1996), An interior trust region approach for nonlinear minimization subject
        to bounds, never lets an iterate reach a bound. Lin and Moré (1999), Newton's method for
        large bound-constrained optimization problems, section 4: minor iterations, each with more
        active bounds. Kanzow, Yamashita and Fukushima (2004), Levenberg-Marquardt methods with
        strong local convergence properties for solving nonlinear equations with convex constraints.
    """
    active = box.held(point.x, point.gradient)
    trial = propose(without_active_params(point, active), lam)

    def truncate(truncated: jax.Array, target: jax.Array, trial: Trial) -> _TruncatedStep:
        projected = box.nearest(target)
        change = jnp.abs(point.gradient * (projected - point.x))
        limit = jnp.asarray(_MAX_CHANGE, change.dtype) * point.cost
        stops_halfway = (projected != target) & (change > limit)
        # A sum of the two points may overflow.
        end = jnp.where(stops_halfway, point.x / 2 + projected / 2, projected)
        is_cut = end != target
        is_new = jnp.any(is_cut & ~truncated)
        predicted = _predicted_reduction(point, end - point.x, products)
        damping = next_damping(trial, radius)
        return _TruncatedStep(truncated | is_cut, end, end, predicted, damping, is_new)

    def advance(state: _TruncatedStep) -> _TruncatedStep:
        truncated = state.truncated
        shift = jnp.where(truncated, state.end - point.x, jnp.zeros_like(state.end))
        reduced = without_active_params(point, active | truncated, shift, products)
        rest = propose(reduced, state.lam)
        target = point.x + jnp.where(truncated, shift, rest.step)
        new = truncate(truncated, target, rest)
        better = new.predicted > state.predicted
        best = jnp.where(better, new.end, state.best)
        return new._replace(best=best, predicted=jnp.where(better, new.predicted, state.predicted))

    first = truncate(jnp.zeros_like(active), point.x + trial.step, trial)
    # Every pass adds a truncated param, so there are at most n + 1 passes.
    last = while_loop(lambda state: state.is_new, advance, first)
    # The method's own prediction is more accurate, but only for a step that isn't truncated.
    predicted = jnp.where(first.is_new, last.predicted, trial.predicted)
    step = jnp.where(first.is_new, last.best - point.x, trial.step)
    trial = trial._replace(
        step=step,
        length=jnp.where(first.is_new, norm(scale * step), trial.length),
        slope=matmul(point.gradient, step),
        predicted=predicted,
    )
    return trial, last.best


def _predicted_reduction(point: Linearization, step: jax.Array, products: Products) -> jax.Array:
    """Return the reduction of the cost that the linear model predicts for a step."""
    if isinstance(point.J, NormalMatrix):
        model_norm = matmul(step, point.J.times(step))
    else:
        change = matmul(point.J, step) if products is None else products[0](step)
        model_norm = psum_rows(jnp.sum(jnp.square(change)))
    return -matmul(point.gradient, step) - jnp.asarray(0.5, step.dtype) * model_norm


def free_point(point: Linearization, box: Box | None) -> Linearization:
    """Remove the params with an active bound from the linear model."""
    if box is None:
        return point
    return without_active_params(point, box.held(point.x, point.gradient))


def active_set_tangent(box: Box, x: jax.Array, gradient: jax.Array, change: Any) -> Any:
    """Return the mask of the params with an active bound, and the tangents of their bounds.

    A param with an active bound moves with its bound.

    Args:
        box: The bounds.
        x: The solution, of shape `[n]`.
        gradient: The gradient of the cost at `x`.
        change: The tangents of the bounds, a `Box`.
    """
    active = box.held(x, gradient)
    return active, jnp.where(x <= box.lower, change.lower, change.upper)
