"""Fits that the batch leaves unsolved, each by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, is_converged
from fnopt.curves.batched._data import Points, joined
from fnopt.curves.batched._model import jacobian_columns
from fnopt.curves.batched._progress import (
    BatchState,
    chosen,
    columns,
    indices,
    inverse_and_rank,
    take,
)
from fnopt.curves.batched._retries import is_open
from fnopt.curves.batched._task import Sums, Task
from fnopt.residuals import Box
from fnopt.solvers import Solution, least_squares


def alone(
    sums: Sums, x0: jax.Array, own: Points, box: Box | None, end: BatchState, max_steps: int
) -> BatchState:
    """The progress with unsolved fits made again from their starts, one after the other.

    The steps are those of :func:`fnopt.least_squares`: with QR, acceleration and learned curvature,
    which would be dear in lanes.

    Args:
        sums: The sums over the points of a fit.
        x0: Where to start, of shape `[fits, n]`.
        own: The data of each fit.
        box: The bounds, of shape `[fits, n]`.
        end: Where the batch left them.
        max_steps: The most steps of each, beside those of the batch.
    """
    left = is_open(end.status)
    order = indices(left, len(x0))

    def one(i: jax.Array, end: BatchState) -> BatchState:
        k = order[i][None]
        row, start, data, sides = jax.tree.map(lambda a: take(a, k), (end, x0, own, box))
        now = _again(sums, start, data, sides, row, max_steps)
        solved = is_converged(now.status) | (now.square <= row.square)
        kept = chosen(solved, now, row)._replace(steps=now.steps)
        return jax.tree.map(lambda all_, some: all_.at[k].set(some), end, kept)

    return lax.fori_loop(0, jnp.sum(left, dtype=jnp.int32), one, end)


def _again(
    sums: Sums, start: jax.Array, own: Points, box: Box | None, row: BatchState, max_steps: int
) -> BatchState:
    """One fit by itself; everything has a leading axis of length one."""
    points = joined(sums.shared, jax.tree.map(lambda a: a[0], own._replace(units=None)))
    size = jnp.ones_like(start) if own.units is None else own.units.params
    bounds = None if box is None else ((box.lower * size)[0], (box.upper * size)[0])
    found = _least_squares(sums.task, (start * size)[0], points, bounds, max_steps)
    x = found.params[None] / size
    there = sums(columns(x), jax.tree.map(lambda a: jnp.moveaxis(a, 0, -1), own))
    inverse, rank = inverse_and_rank(there.A)
    assert found.certificate is not None
    # A batch has no other word for params whose effect is gone though the rank doesn't show it.
    hidden = jnp.any(found.certificate.undetermined) & (rank[0] == start.shape[1])
    hidden &= is_converged(found.status)
    status = jnp.where(hidden, Status.NO_EFFECT.array, found.status)
    return row._replace(
        x=x,
        square=there.square,
        inverse=inverse,
        rank=rank,
        steps=row.steps + found.steps,
        status=status[None],
    )


def _least_squares(
    task: Task, x0: jax.Array, points: Points, bounds: Any, max_steps: int
) -> Solution[jax.Array]:
    """The solver for one problem, in the user's units; it finds its own."""

    def jac(x: jax.Array) -> jax.Array:
        assert task.jacobian is not None
        return jnp.stack(jacobian_columns(task.jacobian, tuple(x), points), axis=1)

    return least_squares(
        lambda x: task.residual(tuple(x), points),
        x0,
        jac=None if task.jacobian is None else jac,
        loss=None if task.losses is None else task.losses.losses[0],
        bounds=bounds,
        solver=task.solver,
        max_steps=max_steps,
        check_jac=False,
    )
