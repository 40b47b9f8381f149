"""Linearizations and steps of many small problems along the last axis, the *lanes*."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, select_tree
from fnopt.linear import (
    DampedStep,
    Rows,
    cut_to_radius,
    divide,
    is_determined,
    length,
    normal_equations,
    rounding_damping,
    singular_triangle,
    sum_points,
    triangle,
    unrolled_backward,
    unrolled_cholesky,
    unrolled_forward,
    unrolled_inverse,
    unrolled_rank,
    unrolled_solve,
)
from fnopt.numerics import matmul
from fnopt.residuals import Box, RobustCost
from fnopt.sharding import cond
from fnopt.solvers._bounded import bounded_step
from fnopt.solvers._certify import Spectrum, singular_spectrum
from fnopt.solvers._levenberg_marquardt import levenberg_marquardt
from fnopt.solvers._loop import SearchState, after_step, metric
from fnopt.solvers._stopping import Tolerances
from fnopt.solvers._trust_region import Trial, linear_step
from fnopt.solvers.linear_model._linearization import Linearization, NormalMatrix
from fnopt.solvers.linear_model._scaling import initial_scale

over_lanes = functools.partial(jax.vmap, in_axes=-1, out_axes=-1)


class LaneProblems(NamedTuple):
    """The functions of many problems."""

    linearize: Callable[[tuple[jax.Array, ...], Any], tuple[list[jax.Array], jax.Array]]
    """Map params and data to the columns of the Jacobians and the residuals, each `[m, lanes]`."""
    losses: Callable[[Any], RobustCost | None]
    """Map the data to the robust cost of the residuals."""


class LossRows(NamedTuple):
    """The residuals before weighting by a loss, and the weighted columns of the Jacobian."""

    residuals: jax.Array  # [m, lanes]
    columns: list[jax.Array]


def evaluate(
    problems: LaneProblems, x: jax.Array, data: Any, dense: bool = False, **floor: float
) -> tuple[Linearization, Any]:
    """Return the linearization at `x`, and the `LossRows` of a robust loss, None without one.

    The normal matrix is a tuple of its entries, or dense if bounds may remove params.
    """
    columns, r, residuals = _weighted_rows(problems, x, data, **floor)
    losses = problems.losses(data)
    # Without the barrier, XLA would evaluate the model again for each use of r.
    *columns, r = jax.lax.optimization_barrier((*columns, r))
    sums = normal_equations(columns, r)
    A = NormalMatrix(_full(sums.A), jnp.ones_like(x)) if dense else sums.A
    cost = sums.square / 2
    if losses is not None:
        cost = costed(problems, RobustCost.clipped_cost, data, residuals)
    norms = jnp.sqrt(jnp.stack([row[-1] for row in sums.A]))
    point = Linearization(x, r, A, cost, jnp.stack(sums.g), norms)
    return point, None if losses is None else LossRows(residuals, columns)


def _weighted_rows(
    problems: LaneProblems, x: jax.Array, data: Any, **floor: float
) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    """Return columns and residuals weighted by a loss, and the residuals before weighting."""
    columns, r = problems.linearize(tuple(x), data)
    losses = problems.losses(data)
    if losses is None:
        return columns, r, r
    a, b = losses.corrections(r, **floor)
    return [b * column for column in columns], a * r, r


def costed(problems: LaneProblems, cost: Any, data: Any, *residuals: Any) -> jax.Array:
    """Return the robust cost of residuals, or its reduction between two residuals."""

    def one(data: Any, *r: jax.Array) -> jax.Array:
        return cost(problems.losses(data), *r)

    return over_lanes(one)(data, *residuals)


def lane_summary(problems: LaneProblems, x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
    r"""Return the cost at params `[n, lanes]`, and :math:`(J^T J)^{-1}` of `[n, n, lanes]`.

    `J` has no lower bound on the curvature of a loss.
    """
    point, r = evaluate(problems, x, data, floor=0.0)
    inverse = lane_spectra(problems, point, data, floor=0.0).inverse
    if r is None:
        return point.cost, inverse
    return costed(problems, RobustCost.cost, data, r.residuals), inverse


def differentiable_inverse(
    problems: LaneProblems, x: jax.Array, data: Any, inverse: jax.Array
) -> jax.Array:
    """Return the inverse of :func:`lane_summary` as a function of the params and the data."""
    columns = _weighted_rows(problems, x, data, floor=0.0)[0]
    return over_lanes(_normal_inverse)(inverse, jnp.stack(columns, axis=1))


@jax.custom_jvp
def _normal_inverse(inverse: jax.Array, J: jax.Array) -> jax.Array:
    """Return the inverse of :math:`J^T J` as a differentiable function of `J`."""
    del J
    return inverse


@_normal_inverse.defjvp
def _normal_inverse_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    # dC = -C (dJ^T J + J^T dJ) C, where J C is formed first, because J^T J squares the condition.
    (C, J), J_dot = primals, tangents[1]
    K = matmul(C, matmul(J_dot.T, matmul(J, C)))
    return C, -K - K.T


def step(
    problems: LaneProblems,
    method: levenberg_marquardt,
    tolerances: Tolerances,
    data: Any,
    box: Box | None,
    search: SearchState,
    radius: jax.Array,
) -> SearchState:
    """Take one step in every search; the state of finished lanes is bitwise unchanged.

    Args:
        problems: The functions of the problems.
        method: The method.
        tolerances: The tolerances of the method.
        data: The data of the problems.
        box: The bounds, of shape `[n, lanes]`.
        search: The searches.
        radius: Initial radii of restarts; 0 selects the default of the method.
    """
    scale = metric(search, relative=box is None)
    if box is None:
        trial = _propose(search.point, scale, search.radius, search.lam)
        x = search.point.x + trial.step
    else:
        trial, x = over_lanes(_propose_within)(search, scale, box)
    # A radius of zero marks the evaluation of the initial point.
    x = jnp.where(search.radius <= 0, search.point.x, x)
    end, r = evaluate(problems, x, data, dense=box is not None)
    rows: Any = search.residuals
    if r is None:
        before, after = search.point.r, end.r
        # A difference of squares would cancel; these products don't.
        actual = sum_points([(before - after) * (before + after)])[0] / 2
    else:
        pulled = search.point.r * sum(c * p for c, p in zip(rows.columns, trial.step, strict=True))
        reduction = RobustCost.reduction
        actual = costed(problems, reduction, data, rows.residuals, r.residuals, pulled)

    running = search.status == Status.RUNNING.value
    # A finished lane takes no step.
    actual = jnp.where(running, actual, -jnp.inf)
    after, _ = after_step(method, tolerances, box, search, scale, trial, end, r, actual, radius)
    small = {
        name: jnp.where(running, getattr(after, name), getattr(search, name))
        for name in ("radius", "lam", "rejections", "status", "steps")
    }
    return after._replace(**small)


def _propose_within(state: SearchState, scale: jax.Array, box: Box) -> tuple[Trial, jax.Array]:
    """Return the step of one problem within bounds, and its end point."""

    def propose(point: Linearization, lam: jax.Array) -> Trial:
        return _propose(point, scale, state.radius, lam)

    return bounded_step(state.point, box, scale, state.radius, state.lam, propose)


def _propose(point: Linearization, scale: jax.Array, radius: jax.Array, lam: jax.Array) -> Trial:
    """Return the steps of all problems by an unrolled Cholesky factorization, for given damping.

    As in :class:`fnopt.linear.TriangleSystem`, a step is truncated to the radius. One factorization
    is sufficient, because the damping of the next step follows from this solution.
    """
    A, g = _scaled_rows(point, scale), point.gradient / scale
    least = rounding_damping(jnp.ones_like(lam), len(g))
    factor = unrolled_cholesky(A, jnp.maximum(lam, least))
    p = [-entry for entry in unrolled_solve(factor, tuple(g))]
    inner = jnp.sum(jnp.square(jnp.stack(unrolled_forward(factor, p))), axis=0)  # ||L^-1 p||^2
    p = jnp.stack(p)
    square = jnp.sum(jnp.square(p), axis=0)
    model_norm = -jnp.sum(g * p, axis=0) - jnp.maximum(lam, least) * square
    step = DampedStep(
        p,
        lam,
        model_norm,
        predicted=model_norm / 2 + lam * square,
        solution_length=jnp.sqrt(square),
        hebden=divide(square, inner),
    )
    return linear_step(point, scale, cut_to_radius(step, radius))


def _scaled_rows(point: Linearization, scale: jax.Array) -> Any:
    """Return the lower triangle of the scaled normal matrix as a tuple of rows of entries."""
    A = point.J.matrix if isinstance(point.J, NormalMatrix) else point.J
    return tuple(
        tuple(A[i][j] / (scale[i] * scale[j]) for j in range(i + 1)) for i in range(len(scale))
    )


def _full(A: Rows) -> jax.Array:
    """Return the symmetric matrix with a given lower triangle."""
    n = range(len(A))
    return jnp.stack([jnp.stack([A[max(i, j)][min(i, j)] for j in n]) for i in n])


def lane_spectra(
    problems: LaneProblems, point: Linearization, data: Any, **floor: float
) -> Spectrum:
    r"""Return the spectra of all problems.

    The relative error of an inverse normal matrix is about :math:`\epsilon` times the largest
    variance inflation factor :math:`\|J_j\|^2 \, (J^T J)^{-1}_{jj}`. Problems with factors above
    :math:`\epsilon^{-1/2}` are factorized without normal equations.

    Reference:
        Belsley, Kuh and Welsch (1980), Regression Diagnostics, section 3.1 (variance inflation).
    """
    # Without the barrier, XLA would compute the inverse again for each of its uses.
    spectra = jax.lax.optimization_barrier(over_lanes(_gram_spectrum)(point))
    scale = over_lanes(initial_scale)(point.columns)
    inflation = jnp.stack([spectra.inverse[j, j] for j in range(len(scale))]) * jnp.square(scale)
    limit = jnp.asarray(float(jnp.finfo(scale.dtype).eps) ** -0.5, scale.dtype)
    # A param without a pivot has no variance. Params with an active bound have no column.
    nonzero = jnp.sum(point.columns > 0, axis=0, dtype=jnp.int32)
    is_weak = (spectra.rank < nonzero) | ~(jnp.max(inflation, axis=0) <= limit)

    def refined() -> Spectrum:
        columns, r, _ = _weighted_rows(problems, point.x, data, **floor)
        J = jnp.stack(columns, axis=1) * (point.columns > 0).astype(r.dtype)
        return select_tree(is_weak, over_lanes(_jacobian_spectrum)(J, r, scale), spectra)

    return cond(jnp.any(is_weak), refined, lambda: spectra)


def _jacobian_spectrum(J: jax.Array, r: jax.Array, scale: jax.Array) -> Spectrum:
    """Return the spectrum of one problem from its Jacobian."""
    factors = singular_triangle(triangle(J / scale, r))
    size = max(J.shape)
    determined = is_determined(factors.s, size)
    root = jnp.where(determined, divide(factors.Vt.T, factors.s), 0) / scale[:, None]
    return singular_spectrum(factors, size)._replace(inverse=matmul(root, root.T))


def _gram_spectrum(point: Linearization) -> Spectrum:
    """Return the spectrum of one problem from its normal matrix with unit diagonal.

    A pivot at rounding level is treated as zero, and its param as linearly dependent on the others.
    """
    scale = initial_scale(point.columns)
    A = _scaled_rows(point, scale)
    least = rounding_damping(jnp.ones_like(point.cost), len(scale))
    factor = unrolled_cholesky(A, jnp.zeros_like(point.cost), least)
    c = unrolled_forward(factor, tuple(point.gradient / scale))
    inverse, full = _full(unrolled_inverse(factor)), _full(A)
    dropped = ~jnp.isfinite(jnp.stack(factor.diagonal))
    # A param is determined if it doesn't depend on the params without a pivot.
    effects = jnp.abs(jnp.sum(inverse[:, :, None] * full[None], axis=1))
    effects = effects * dropped.astype(scale.dtype)
    root = jnp.asarray(float(jnp.finfo(scale.dtype).eps) ** 0.5, scale.dtype)
    null = dropped | jnp.any(effects > root, axis=1)
    decrement = jnp.sum(jnp.square(jnp.stack(c))) / 2
    step = length(jnp.stack(unrolled_backward(factor, c)))
    return Spectrum(unrolled_rank(factor), decrement, step, null, inverse / scale / scale[:, None])
