"""Derivatives of many solutions by the implicit function theorem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.curves.batched._data import BatchData, Points, filled, joined, one_fit
from fnopt.curves.batched._task import Task
from fnopt.numerics import is_inexact, per_row
from fnopt.programs import convert_closure
from fnopt.residuals import Box, minimum_tangent, pushed, value_and_slope
from fnopt.sharding import pvary_like
from fnopt.solvers import LaneEnds, lane_summary

_IN_LOOPS = hasattr(jax, "set_mesh")  # JAX 0.8 and later transpose linear solves in loops


Closed = tuple[Any, Any]
"""The losses of a task, and the arrays that its functions close over."""


def implicitly(
    iterate: Callable[[Task, BatchData, Any], LaneEnds],
    task: Task,
    data: BatchData,
    settings: Any,
    chunk: int,
) -> LaneEnds:
    """Differentiate the results of fits by the implicit function theorem.

    Params, sums of squares and covariances have derivatives with respect to data, bounds, scales of
    losses, and arrays that the model closes over. The derivatives with respect to initial guesses,
    and the derivatives of non-finite results, are zero.

    Args:
        iterate: `iterate(task, data, settings)` returns the results of the fits.
        task: The functions of a fit.
        data: Initial guesses, data and bounds.
        settings: A tree of arrays that isn't differentiated.
        chunk: Number of fits that are differentiated at once.
    """
    # Inside shard_map, every device solves different fits, so the guesses vary over the mesh axes.
    data = data._replace(x0=pvary_like(data.x0, (data.shared, data.own)))
    task_of, consts = _opened(task, data)

    @jax.custom_jvp
    def run(closed: Closed, data: BatchData, settings: Any) -> LaneEnds:
        return iterate(task_of(closed), data, settings)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[LaneEnds, LaneEnds]:
        end = run(*primals)
        return end, _tangent(task_of, end, primals[:2], tangents[:2], chunk)

    return run((task.losses, consts), data, settings)


def _opened(task: Task, data: BatchData) -> tuple[Callable[[Closed], Task], Any]:
    """Return the task as a function of the arrays in its closures, and these arrays."""
    numbers, points = one_fit(data)
    predict, consts = convert_closure(task.predict, numbers, points.x)
    given = task.jacobian
    jacobian, more = (None, []) if given is None else convert_closure(given, numbers, points.x)

    def task_of(closed: Closed) -> Task:
        losses, (first, second) = closed
        derivative = None if jacobian is None else _with(jacobian, second)
        return Task(_with(predict, first), derivative, losses, task.solver)

    return task_of, (consts, more)


def _with(fn: Callable[..., Any], more: Any) -> Callable[..., Any]:
    return lambda x, at: fn(x, at, *more)


def _split_inexact(tree: Any) -> tuple[Any, Any]:
    """Split a tree into its differentiable leaves and its other leaves; None elsewhere."""
    inexact = jax.tree.map(lambda leaf: leaf if is_inexact(leaf) else None, tree)
    return inexact, jax.tree.map(lambda leaf: None if is_inexact(leaf) else leaf, tree)


def _merged(inexact: Any, others: Any) -> Any:
    """Return the tree whose leaves `_split_inexact` separated."""
    pick = lambda a, b: b if a is None else a  # noqa: E731
    return jax.tree.map(pick, inexact, others, is_leaf=lambda node: node is None)


def _changes(tangent: Any) -> Any:
    """Select the leaves of a tangent whose primals are differentiable; None elsewhere."""
    return jax.tree.map(lambda leaf: None if leaf.dtype == jax.dtypes.float0 else leaf, tangent)


def _tangent(
    task_of: Callable[[Closed], Task],
    end: LaneEnds,
    primals: tuple[Closed, BatchData],
    tangents: tuple[Closed, BatchData],
    chunk: int,
) -> LaneEnds:
    # A fit that isn't finite gets finite values, because zero times NaN isn't zero.
    good = jnp.isfinite(end.cost)
    index = jnp.where(good, jnp.arange(good.size), jnp.argmax(good))
    (closed, batch), (d_closed, d_batch) = primals, tangents
    common, common_others = _split_inexact((closed, batch.shared))
    rows, rows_others = _split_inexact((batch.own, batch.box))
    d_common, d_rows = _changes((d_closed, d_batch.shared)), _changes((d_batch.own, d_batch.box))
    mode = "auto" if task_of(closed).solver is None else "reverse"

    def fit_tangent(fit: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, inexact, others, d_rows = fit

        def parts(data: Any) -> tuple[Task, Points, Box | None]:
            closed, shared = _merged(data[0], common_others)
            own, box = _merged(data[1], others)
            return task_of(closed), filled(joined(shared, own)), box

        def cost(x: jax.Array, data: Any) -> jax.Array:
            task, points, _ = parts(data)
            return task.cost(tuple(x), points)

        def summary(x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
            task, points, _ = parts(data)
            lane = jax.tree.map(lambda a: a[..., None], (x, points))
            cost, inverse = lane_summary(task.problems(Points(None)), *lane)
            return cost[0], inverse[..., 0]

        data, d_data = (common, inexact), (d_common, d_rows)
        held = None
        box = parts(data)[2]
        if box is not None:
            d_box = d_rows[1]
            mask = box.held(x, value_and_slope(lambda x: cost(x, data), x)[1])
            held = mask, jnp.where(x <= box.lower, d_box.lower, d_box.upper)
        dx = minimum_tangent(cost, x, data, d_data, held, mode)
        return dx, *pushed(summary, (x, data), (dx, d_data), mode)[1]

    fits = jax.tree.map(lambda a: a[index], (end.x, rows, rows_others, d_rows))
    # JAX 0.7 can't transpose a linear solve in a loop, so it gets no chunks.
    in_chunks = functools.partial(lax.map, fit_tangent, batch_size=chunk)
    found = in_chunks(fits) if _IN_LOOPS else jax.vmap(fit_tangent)(fits)
    dx, costs, inverse = (jnp.where(per_row(good, a), a, jnp.zeros_like(a)) for a in found)
    none = jax.custom_derivatives.zero_from_primal(end)
    return none._replace(x=dx, cost=costs, inverse=inverse)
