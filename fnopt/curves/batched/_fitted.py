"""Program of a batch of fits: scaling, search, fallback, derivatives and covariances."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, is_converged, select_tree
from fnopt.curves.batched._data import BatchData, FitUnits, Points
from fnopt.curves.batched._fit import BatchFit
from fnopt.curves.batched._implicit import differentiate_implicitly
from fnopt.curves.batched._split import Split, map_devices
from fnopt.curves.batched._task import Task
from fnopt.curves.batched._units import scale_fits
from fnopt.numerics import safe_sqrt
from fnopt.solvers import (
    LaneEnds,
    checked_status,
    lane_summary,
    least_squares,
    levenberg_marquardt,
    search_lanes,
)

_UNSOLVED = (Status.MAX_STEPS, Status.STALLED, Status.NONFINITE_STEP)


def run_fits(
    task: Task,
    data: BatchData,
    method: levenberg_marquardt,
    *,
    split: Split | None,
    **settings: Any,
) -> tuple[BatchFit, jax.Array]:
    """Run fits on the devices of their data, and also return a mask of fits for the fallback."""

    def run(task: Task, shared: Points, method: levenberg_marquardt, own: BatchData) -> Any:
        return _run_on_device(task, own._replace(shared=shared), method, **settings)

    common, own = (data.shared, method), data._replace(shared=Points(None))
    if task.is_value:
        return map_devices(run, split, (task, *common), (own,))
    return map_devices(functools.partial(run, task), split, common, (own,))


def _run_on_device(
    task: Task,
    data: BatchData,
    method: levenberg_marquardt,
    *,
    absolute_sigma: bool,
    max_steps: int,
    chunk: int,
    fallback: bool,
    scaled: bool,
) -> tuple[BatchFit, jax.Array]:
    """Run the fits of one device; see :func:`curve_fit_batch` for the settings."""
    chunk = min(chunk, data.x0.shape[0])
    is_wrong = None
    if task.jacobian is not None:
        # One check is sufficient, because a wrong Jacobian function is wrong in every fit.
        first = data.fit(lambda a: a[0])
        is_wrong = task.is_wrong(first.x0, first.points)
    if data.box is not None:
        data = data._replace(own=data.own._replace(fixed=data.box.fixed))
    if scaled:
        data = scale_fits(data, task.losses)

    def iterate(task: Task, data: BatchData, method: levenberg_marquardt) -> LaneEnds:
        x0 = data.x0 if data.box is None else data.box.nearest(data.x0)
        problems, tolerances = task.problems(data.shared), method.tolerances(x0, x0.dtype)
        ends = search_lanes(problems, x0, data.own, data.box, method, tolerances, max_steps, chunk)
        return _refit_failed(task, data._replace(x0=x0), ends, max_steps) if fallback else ends

    ends = differentiate_implicitly(iterate, task, data, method, chunk)
    points, units, fixed = _point_counts(data), data.own.units, data.own.fixed
    free = jnp.full_like(points, ends.x.shape[1])
    undetermined = ends.undetermined
    if fixed is not None:
        free -= jnp.sum(fixed, axis=1, dtype=jnp.int32)
        undetermined &= ~fixed
    x, cost = ends.x, jnp.where(jnp.isfinite(ends.cost), ends.cost, jnp.inf)
    covariance, errors = _covariances(ends, points, free, absolute_sigma, units)
    if units is not None:
        # Products, because XLA may merge two divisions into a division by the square of the scale,
        # which may overflow.
        inverse_scale = 1 / units.residuals
        x, cost = x * units.params, cost * inverse_scale * inverse_scale
    status = checked_status(ends.status, points > 0, ends.cost, points)
    if is_wrong is not None:
        failed = (status == Status.NONFINITE_START.value) | (status == Status.ILL_POSED.value)
        status = jnp.where(is_wrong & ~failed, Status.WRONG_JACOBIAN.array, status)
    fits = BatchFit(
        params=x,
        covariance=covariance,
        errors=errors,
        cost=cost,
        rank=ends.rank,
        steps=ends.steps,
        status=status,
        undetermined=undetermined,
        certified=ends.certified,
    )
    return fits, _needs_fallback(ends)


def _needs_fallback(ends: LaneEnds) -> jax.Array:
    """Mask of failed or uncertified fits that `least_squares` may solve.

    Fits with an infinite cost at their initial guess are included, because
    :func:`fnopt.least_squares` rescales residuals whose squares overflow.
    """
    failed = functools.reduce(jnp.logical_or, [ends.status == code.value for code in _UNSOLVED])
    failed |= is_converged(ends.status) & ~ends.certified
    return failed | ((ends.status == Status.NONFINITE_START.value) & (ends.cost == jnp.inf))


def _refit_failed(task: Task, data: BatchData, ends: LaneEnds, max_steps: int) -> LaneEnds:
    """Repeat failed fits from their initial guesses with `least_squares`, one after the other.

    QR and geodesic acceleration would be too expensive for all fits of a batch.
    """
    failed = _needs_fallback(ends)
    # The indices of failed fits come first, and the loop ends after them.
    order = jnp.nonzero(failed, size=len(data.x0), fill_value=0)[0]

    def refit(i: jax.Array, ends: LaneEnds) -> LaneEnds:
        k = order[i]
        old = jax.tree.map(lambda a: a[k], ends)
        new = _fit_alone(task, data.fit(lambda a: a[k]), max_steps)
        # A refit replaces the old result if it converges, or if its cost isn't higher.
        is_better = is_converged(new.status) | ~(new.cost > old.cost)
        result = select_tree(is_better, new, old)
        result = result._replace(steps=old.steps + new.steps)
        return jax.tree.map(lambda array, value: array.at[k].set(value), ends, result)

    return lax.fori_loop(0, jnp.sum(failed, dtype=jnp.int32), refit, ends)


def _fit_alone(task: Task, fit: BatchData, max_steps: int) -> LaneEnds:
    """Solve one fit with `least_squares`, and convert the solution to a row of the batch."""
    points = fit.points
    losses = task.losses_of(points)
    solution = least_squares(
        lambda x: task.residual(tuple(x), points),
        fit.x0,
        jac=task.jacobian_of(points),
        loss=None if losses is None else losses.losses[0],
        bounds=None if fit.box is None else tuple(fit.box),
        solver=task.solver,
        max_steps=max_steps,
        check_jac=False,
    )
    batch_of_one = jax.tree.map(lambda a: a[..., None], (solution.params, fit.own))
    cost, inverse = lane_summary(task.problems(fit.shared), *batch_of_one)
    assert solution.certificate is not None
    return LaneEnds(
        x=solution.params,
        cost=cost[0],
        inverse=inverse[..., 0],
        rank=solution.rank,
        undetermined=solution.certificate.undetermined,
        certified=solution.certificate.certified,
        steps=solution.steps,
        status=solution.status,
    )


def _covariances(
    ends: LaneEnds,
    points: jax.Array,
    free: jax.Array,
    absolute_sigma: bool,
    units: FitUnits | None,
) -> tuple[jax.Array, jax.Array]:
    """Compute the covariances and standard errors of the fits.

    Both are infinite if the data don't determine all `free` params. The errors are computed before
    the scaling of the covariance, whose squares may underflow or overflow.
    """
    is_determined = (ends.rank == free) & jnp.isfinite(ends.cost)
    variance = jnp.ones_like(ends.cost)
    if not absolute_sigma:
        is_determined &= points > free  # without degrees of freedom, the variance is unknown
        variance = 2 * ends.cost / jnp.maximum(points - free, 1).astype(variance.dtype)
    covariance = ends.inverse * variance[:, None, None]
    errors = safe_sqrt(jnp.diagonal(covariance, axis1=1, axis2=2))
    if units is not None:
        scale = units.params * (units.residuals[:, None] if absolute_sigma else 1)
        # Two products, because the product of two scales may overflow.
        covariance = (covariance * scale[:, :, None]) * scale[:, None, :]
        errors = errors * scale
    infinite = jnp.asarray(jnp.inf, covariance.dtype)
    return (
        jnp.where(is_determined[:, None, None], covariance, infinite),
        jnp.where(is_determined[:, None], errors, infinite),
    )


def _point_counts(data: BatchData) -> jax.Array:
    """Number of valid points of each fit, `int32[fits]`."""
    points = data.points
    mask = jnp.broadcast_to(True if points.mask is None else points.mask, data.own.y.shape)
    return jnp.sum(mask.reshape(len(mask), -1), axis=1, dtype=jnp.int32)
