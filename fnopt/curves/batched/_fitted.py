"""The program of a batch: scaling, search, fallback, derivatives, covariances."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, is_converged, select_tree
from fnopt.curves.batched._data import BatchData, FitUnits, Points
from fnopt.curves.batched._fit import BatchFit
from fnopt.curves.batched._implicit import implicitly
from fnopt.curves.batched._split import Split, by_device
from fnopt.curves.batched._task import Task
from fnopt.curves.batched._units import in_units
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


def fitted(
    task: Task,
    data: BatchData,
    method: levenberg_marquardt,
    *,
    split: Split | None,
    **settings: Any,
) -> tuple[BatchFit, jax.Array]:
    """Run fits on the devices of their data; also return a mask of fits for the fallback."""

    def run(task: Task, shared: Points, method: levenberg_marquardt, own: BatchData) -> Any:
        return _fit_here(task, own._replace(shared=shared), method, **settings)

    common, own = (data.shared, method), data._replace(shared=Points(None))
    if task.is_value:
        return by_device(run, split, (task, *common), (own,))
    return by_device(functools.partial(run, task), split, common, (own,))


def _fit_here(
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
    chunk = min(chunk, data.x0.shape[0])
    wrong = None
    if task.jacobian is not None:  # one fit suffices: a wrong Jacobian is wrong in every fit
        first = data.fit(lambda a: a[0])
        wrong = task.is_wrong(first.x0, first.points)
    if scaled:
        data = in_units(data, task.losses)

    def iterate(task: Task, data: BatchData, method: levenberg_marquardt) -> LaneEnds:
        x0 = data.x0 if data.box is None else data.box.nearest(data.x0)
        problems, tolerances = task.problems(data.shared), method.tolerances(x0, x0.dtype)
        ends = search_lanes(problems, x0, data.own, data.box, method, tolerances, max_steps, chunk)
        return _refitted(task, data._replace(x0=x0), ends, max_steps) if fallback else ends

    ends = implicitly(iterate, task, data, method, chunk)
    points, units = _point_counts(data), data.own.units
    x, cost = ends.x, jnp.where(jnp.isfinite(ends.cost), ends.cost, jnp.inf)
    covariance, errors = _covariances(ends, points, absolute_sigma, units)
    if units is not None:
        # A compiler may merge two divisions into one division by the square, which may overflow.
        whole = 1 / units.residuals
        x, cost = x * units.params, cost * whole * whole
    status = checked_status(ends.status, points > 0, ends.cost, points)
    if wrong is not None:
        failed = (status == Status.NONFINITE_START.value) | (status == Status.ILL_POSED.value)
        status = jnp.where(wrong & ~failed, Status.WRONG_JACOBIAN.array, status)
    fits = BatchFit(
        params=x,
        covariance=covariance,
        errors=errors,
        cost=cost,
        rank=ends.rank,
        steps=ends.steps,
        status=status,
        undetermined=ends.undetermined,
        certified=ends.certified,
    )
    return fits, _needs_fallback(ends)


def _needs_fallback(ends: LaneEnds) -> jax.Array:
    """Return a mask of failed or uncertified fits that `least_squares` may solve.

    :func:`fnopt.least_squares` also rescales a fit if only squares overflow at its initial guess.
    """
    failed = functools.reduce(jnp.logical_or, [ends.status == code.value for code in _UNSOLVED])
    failed |= is_converged(ends.status) & ~ends.certified
    return failed | ((ends.status == Status.NONFINITE_START.value) & (ends.cost == jnp.inf))


def _refitted(task: Task, data: BatchData, ends: LaneEnds, max_steps: int) -> LaneEnds:
    """Repeat unsolved fits from their initial guesses with `least_squares`, one after the other.

    QR and acceleration would be too expensive for all problems of a batch.
    """
    failed = _needs_fallback(ends)
    # Failed fits come first in the order, so that the loop below visits no others.
    order = jnp.nonzero(failed, size=len(data.x0), fill_value=0)[0]

    def refit(i: jax.Array, ends: LaneEnds) -> LaneEnds:
        k = order[i]
        old = jax.tree.map(lambda a: a[k], ends)
        new = _fit_alone(task, data.fit(lambda a: a[k]), max_steps)
        # A refit that doesn't converge is kept too, unless its cost is higher.
        solved = is_converged(new.status) | ~(new.cost > old.cost)
        kept = select_tree(solved, new, old)
        kept = kept._replace(steps=old.steps + new.steps)
        return jax.tree.map(lambda all_, some: all_.at[k].set(some), ends, kept)

    return lax.fori_loop(0, jnp.sum(failed, dtype=jnp.int32), refit, ends)


def _fit_alone(task: Task, fit: BatchData, max_steps: int) -> LaneEnds:
    points = fit.points
    losses = task.losses_of(points)
    found = least_squares(
        lambda x: task.residual(tuple(x), points),
        fit.x0,
        jac=task.jacobian_of(points),
        loss=None if losses is None else losses.losses[0],
        bounds=None if fit.box is None else tuple(fit.box),
        solver=task.solver,
        max_steps=max_steps,
        check_jac=False,
    )
    lane = jax.tree.map(lambda a: a[..., None], (found.params, fit.own))
    cost, inverse = lane_summary(task.problems(fit.shared), *lane)
    assert found.certificate is not None
    return LaneEnds(
        x=found.params,
        cost=cost[0],
        inverse=inverse[..., 0],
        rank=found.rank,
        undetermined=found.certificate.undetermined,
        certified=found.certificate.certified,
        steps=found.steps,
        status=found.status,
    )


def _covariances(
    ends: LaneEnds, points: jax.Array, absolute_sigma: bool, units: FitUnits | None
) -> tuple[jax.Array, jax.Array]:
    """Return covariances of fits, and standard errors, which underflow at smaller scales.

    Both are infinite if the data leave a param undetermined.
    """
    n = ends.x.shape[1]
    known = (ends.rank == n) & jnp.isfinite(ends.cost)
    variance = jnp.ones_like(ends.cost)
    if not absolute_sigma:
        known &= points > n  # without degrees of freedom the variance is unknown
        variance = 2 * ends.cost / jnp.maximum(points - n, 1).astype(variance.dtype)
    covariance = ends.inverse * variance[:, None, None]
    errors = safe_sqrt(jnp.diagonal(covariance, axis1=1, axis2=2))
    if units is not None:
        size = units.params * (units.residuals[:, None] if absolute_sigma else 1)
        # Two products, because the product of two scales may overflow.
        covariance = (covariance * size[:, :, None]) * size[:, None, :]
        errors = errors * size
    infinite = jnp.asarray(jnp.inf, covariance.dtype)
    return (
        jnp.where(known[:, None, None], covariance, infinite),
        jnp.where(known[:, None], errors, infinite),
    )


def _point_counts(data: BatchData) -> jax.Array:
    """The number of points of each fit, `int32[fits]`."""
    mask = data.points.mask
    counts = jnp.broadcast_to(True if mask is None else mask, data.own.y.shape)
    return jnp.sum(counts.reshape(len(counts), -1), axis=1, dtype=jnp.int32)
