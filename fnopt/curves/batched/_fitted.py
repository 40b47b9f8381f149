"""The program behind a batch: units, the search, the fallback, derivatives, and the covariance."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from fnopt.core import Status
from fnopt.curves.batched._alone import alone, is_open
from fnopt.curves.batched._data import FitUnits, Points, joined
from fnopt.curves.batched._fit import BatchFit
from fnopt.curves.batched._implicit import Batch, implicitly
from fnopt.curves.batched._split import Split, by_device
from fnopt.curves.batched._task import Task
from fnopt.curves.batched._units import in_units
from fnopt.residuals import Box
from fnopt.solvers import LaneEnds, checked_status, levenberg_marquardt, search_lanes


def fitted(
    task: Task,
    x0: jax.Array,
    shared: Points,
    own: Points,
    box: Box | None,
    method: levenberg_marquardt,
    *,
    split: Split | None,
    **settings: Any,
) -> tuple[BatchFit, jax.Array]:
    """Fits where their data are, on as many devices as those lie on; and which are open."""

    def run(task: Task, shared: Points, method: Any, x0: jax.Array, own: Points, box: Any) -> Any:
        return _fit_here(task, x0, shared, own, box, method, **settings)

    if task.is_value:
        return by_device(run, split, (task, shared, method), (x0, own, box))
    return by_device(functools.partial(run, task), split, (shared, method), (x0, own, box))


def _fit_here(
    task: Task,
    x0: jax.Array,
    shared: Points,
    own: Points,
    box: Box | None,
    method: levenberg_marquardt,
    *,
    absolute_sigma: bool,
    max_steps: int,
    chunk: int,
    fallback: bool,
    scaled: bool,
) -> tuple[BatchFit, jax.Array]:
    chunk = min(chunk, x0.shape[0])
    wrong = None
    if task.jacobian is not None:
        # A Jacobian that is wrong is so in every fit.
        wrong = task.is_wrong(x0[0], joined(shared, jax.tree.map(lambda a: a[0], own)))
    if scaled:
        x0, own, box = in_units(x0, shared, own, box, task.losses)

    def iterate(task: Task, x0: jax.Array, batch: Batch, method: levenberg_marquardt) -> LaneEnds:
        x0 = x0 if batch.box is None else batch.box.nearest(x0)
        problems, tolerances = task.problems(batch.shared), method.tolerances(x0, x0.dtype)
        ends = search_lanes(
            problems, x0, batch.own, batch.box, method, tolerances, max_steps, chunk
        )
        if fallback:
            ends = alone(task, x0, batch.shared, batch.own, batch.box, ends, max_steps)
        return ends

    ends = implicitly(iterate, task, x0, shared, own, box, method, chunk)
    points = _point_counts(shared, own)
    x, cost = ends.x, jnp.where(jnp.isfinite(ends.cost), ends.cost, jnp.inf)
    covariance, errors = _covariances(ends, points, absolute_sigma, own.units)
    if own.units is not None:
        whole = 1 / own.units.residuals  # a compiler makes one of two quotients, by a square
        x, cost = x * own.units.params, cost * whole * whole
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
    return fits, is_open(ends)


def _covariances(
    ends: LaneEnds, points: jax.Array, absolute_sigma: bool, units: FitUnits | None
) -> tuple[jax.Array, jax.Array]:
    """The covariances of fits and the roots of their diagonals, which underflow later.

    Both are infinite where the data don't determine all params.
    """
    n = ends.x.shape[1]
    known = (ends.rank == n) & jnp.isfinite(ends.cost)
    variance = jnp.ones_like(ends.cost)
    if not absolute_sigma:
        known &= points > n
        variance = 2 * ends.cost / jnp.maximum(points - n, 1).astype(variance.dtype)
    covariance = ends.inverse * variance[:, None, None]
    errors = _root(jnp.diagonal(covariance, axis1=1, axis2=2))
    if units is not None:
        size = units.params * (units.residuals[:, None] if absolute_sigma else 1)
        covariance = (covariance * size[:, :, None]) * size[:, None, :]
        errors = errors * size
    infinite = jnp.asarray(jnp.inf, covariance.dtype)
    return (
        jnp.where(known[:, None, None], covariance, infinite),
        jnp.where(known[:, None], errors, infinite),
    )


def _root(variance: jax.Array) -> jax.Array:
    """The square root, whose derivative at zero is zero: nobody may ask for that of the errors."""
    some = variance > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, variance, 1)), 0)


def _point_counts(shared: Points, own: Points) -> jax.Array:
    """The number of points of each fit, `int32[fits]`."""
    assert own.y is not None
    mask = joined(shared, own).mask
    counts = jnp.broadcast_to(True if mask is None else mask, own.y.shape)
    return jnp.sum(counts.reshape(len(counts), -1), axis=1, dtype=jnp.int32)
