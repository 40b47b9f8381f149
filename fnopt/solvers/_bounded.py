"""Bound-constrained steps: the trust-region step of the free params, projected onto the box."""

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

# Relative first-order change of the cost up to a bound, above which steps stop half-way. With
# 0.01 to 0.5 `python -m benchmarks bounds` counts 80 to 82 of 638 fits in another minimum.
_FAR = 0.1


Map = Callable[[jax.Array], jax.Array]
Products = tuple[Map, Map] | None
"""Products with the Jacobian and with its transpose, if the point stores no matrix."""


def within_bounds(solver: Any, flat: FlatResidual) -> Any:
    """Choose a linear solver that supports active bounds.

    With active bounds the free params may be fewer than the residuals, even in a wide problem. The
    Gram matrix of the rows is then singular.
    """
    wide = solver.linear_solver == "cholesky" and flat.rows < flat.n
    if solver.linear_solver == "auto" and is_large_and_sparse(flat):
        return solver
    if solver.linear_solver != "auto" and not wide:
        return solver
    return dataclasses.replace(solver, linear_solver="qr")


def without(
    point: Linearization, held: jax.Array, shift: jax.Array | None = None, products: Products = None
) -> Linearization:
    r"""Return the linearization without the columns of active params.

    Args:
        point: The linearization.
        held: Mask of the active params, of shape `[n]`.
        shift: The step of the active params, zero for all other params; the residuals are then the
            residuals of the linear model after this step.
        products: The products with the Jacobian, if the point stores no matrix.

    Returns:
        The linearization whose Jacobian and gradient have zeros for the active params.
    """
    free = (~held).astype(point.x.dtype)
    columns = point.columns * free
    if products is not None or not isinstance(point.J, (jax.Array, NormalMatrix)):
        return _without_matrix(point, free, columns, shift, products)
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


def _without_matrix(
    point: Linearization,
    free: jax.Array,
    columns: jax.Array,
    shift: jax.Array | None,
    products: Products,
) -> Linearization:
    if shift is None:
        return point._replace(gradient=point.gradient * free, columns=columns)
    assert products is not None
    push, pull = products
    r = point.r + push(shift)
    return point._replace(r=r, gradient=pull(r) * free, columns=columns)


class _BoxCut(NamedTuple):
    """State of the passes of `bounded_step`, each of which fixes more params on their bounds."""

    moved: jax.Array  # bool[n], mask of the params on a bound
    end: jax.Array  # [n], the end of the step, in the box
    best: jax.Array  # [n], the best end so far
    predicted: jax.Array  # the predicted reduction of the best end
    lam: jax.Array  # damping of the next pass
    more: jax.Array  # bool, whether the last step put more params on a bound


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
    may lead to another minimum. With an amplitude of 0, the other params of a term have no effect.

    Truncating one param invalidates the step of the correlated params. Therefore the step of the
    other params is recomputed until it doesn't truncate another param. The result is the end point
    with the lowest cost of the linear model. If the predicted reduction at this end point isn't
    positive, the step is rejected and the trust region shrinks. Short steps follow the scaled
    negative gradient, along which truncation keeps the descent.

    Args:
        point: The linearization at the current point, in the box, with the full Jacobian.
        box: The bounds.
        scale: The scaling `D` of the params, of shape `[n]`.
        radius: The trust-region radius.
        lam: An initial guess of the damping.
        propose: `propose(point, lam)` returns the step of the method.
        products: The products with the Jacobian, if the point stores no matrix.

    Returns:
        The trial, with the linear model's predicted reduction for the truncated step, and its end
        point, which is exactly on the bounds that it reaches.

    Reference:
        Coleman and Li (1996), An interior trust region approach for nonlinear minimization subject
        to bounds, never lets an iterate reach a bound. Lin and Moré (1999), Newton's method for
        large bound-constrained optimization problems, section 4: minor iterations, each with more
        active bounds. Kanzow, Yamashita and Fukushima (2004), Levenberg-Marquardt methods with
        strong local convergence properties for solving nonlinear equations with convex constraints.
    """
    held = box.held(point.x, point.gradient)
    trial = propose(without(point, held), lam)

    def cut(moved: jax.Array, goal: jax.Array, trial: Trial) -> _BoxCut:
        bound = box.nearest(goal)
        change = jnp.abs(point.gradient * (bound - point.x))
        far = (bound != goal) & (change > jnp.asarray(_FAR, change.dtype) * point.cost)
        end = jnp.where(far, point.x / 2 + bound / 2, bound)
        stopped = end != goal
        more = jnp.any(stopped & ~moved)
        predicted = _predicted_reduction(point, end - point.x, products)
        following = next_damping(trial, radius)
        return _BoxCut(moved | stopped, end, end, predicted, following, more)

    def advance(at: _BoxCut) -> _BoxCut:
        shift = jnp.where(at.moved, at.end - point.x, jnp.zeros_like(at.end))
        rest = propose(without(point, held | at.moved, shift, products), at.lam)
        goal = point.x + jnp.where(at.moved, shift, rest.step)
        new = cut(at.moved, goal, rest)
        better = new.predicted > at.predicted
        best = jnp.where(better, new.end, at.best)
        return new._replace(best=best, predicted=jnp.where(better, new.predicted, at.predicted))

    first = cut(jnp.zeros_like(held), point.x + trial.step, trial)
    last = while_loop(lambda at: at.more, advance, first)
    # Where nothing was truncated, the method's own prediction is more accurate.
    predicted = jnp.where(first.more, last.predicted, trial.predicted)
    step = jnp.where(first.more, last.best - point.x, trial.step)
    trial = trial._replace(
        step=step,
        length=jnp.where(first.more, norm(scale * step), trial.length),
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
    """Reduce the linearization to the params without an active bound."""
    return point if box is None else without(point, box.held(point.x, point.gradient))


def active_set_tangent(box: Box, x: jax.Array, gradient: jax.Array, change: Any) -> Any:
    """Return the mask of params with an active bound, and their tangents for tangents of bounds."""
    held = box.held(x, gradient)
    return held, jnp.where(x <= box.lower, change.lower, change.upper)
