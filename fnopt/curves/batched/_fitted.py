"""The program behind a batch: units, steps, the fallback, derivatives, and what is told of it."""

from __future__ import annotations

import functools
from typing import Any

import jax

from fnopt.curves.batched._alone import alone
from fnopt.curves.batched._covariance import covariances, point_counts, robust_inverses
from fnopt.curves.batched._data import Points
from fnopt.curves.batched._fit import BatchFit
from fnopt.curves.batched._implicit import Batch, implicitly
from fnopt.curves.batched._lanes import LaneTolerances
from fnopt.curves.batched._progress import BatchState
from fnopt.curves.batched._queue import fit_all
from fnopt.curves.batched._split import Split, by_device
from fnopt.curves.batched._task import Sums, Task
from fnopt.curves.batched._units import in_units
from fnopt.curves.batched._wrong import doubted, wrong_jacobian
from fnopt.residuals import Box
from fnopt.solvers import checked_status


def fitted(
    task: Task,
    x0: jax.Array,
    shared: Points,
    own: Points,
    box: Box | None,
    tolerances: LaneTolerances,
    *,
    split: Split | None,
    **settings: Any,
) -> BatchFit:
    """Fits where their data are, on as many devices as those lie on."""

    def run(task: Task, shared: Points, tol: Any, x0: jax.Array, own: Points, box: Any) -> BatchFit:
        return _fit_here(task, x0, shared, own, box, tol, **settings)

    if task.is_value:
        return by_device(run, split, (task, shared, tolerances), (x0, own, box))
    return by_device(functools.partial(run, task), split, (shared, tolerances), (x0, own, box))


def _fit_here(
    task: Task,
    x0: jax.Array,
    shared: Points,
    own: Points,
    box: Box | None,
    tolerances: LaneTolerances,
    *,
    absolute_sigma: bool,
    max_steps: int,
    chunk: int,
    fallback: bool,
    scaled: bool,
) -> BatchFit:
    chunk = min(chunk, x0.shape[0])
    wrong = wrong_jacobian(task, x0, shared, own)
    units = None
    if scaled:
        x0, own, box, units = in_units(x0, shared, own, box, task.losses)

    def iterate(sums: Sums, x0: jax.Array, batch: Batch, tol: LaneTolerances) -> BatchState:
        x0 = x0 if batch.box is None else batch.box.nearest(x0)
        end = fit_all(sums, x0, batch.own, batch.box, tol, max_steps, chunk)
        if fallback:
            end = alone(sums, x0, batch.own, batch.box, end, max_steps)
        if sums.task.losses is None:
            return end
        return end._replace(inverse=robust_inverses(sums, end.x, batch.own, chunk))

    end = implicitly(iterate, task, x0, shared, own, box, tolerances, chunk)
    points = point_counts(shared, own)
    status = checked_status(end.status, end.rank > 0, end.square, points)
    x, cost = end.x, end.square / 2
    if units is not None:
        whole = 1 / units.residuals  # two quotients a compiler makes one, by a square out of range
        x, cost = x * units.params, cost * whole * whole
    covariance, errors = covariances(end, points, absolute_sigma, units)
    return BatchFit(
        params=x,
        covariance=covariance,
        errors=errors,
        cost=cost,
        rank=end.rank,
        steps=end.steps,
        status=doubted(status, wrong),
    )
