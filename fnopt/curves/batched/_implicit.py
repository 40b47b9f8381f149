"""Derivatives of many solutions by the implicit function theorem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import is_inexact, per_row
from fnopt.curves.batched._data import Points, filled, joined
from fnopt.curves.batched._task import Task
from fnopt.programs import convert_closure
from fnopt.residuals import Box, minimum_tangent, pushed, value_and_slope
from fnopt.sharding import pvary_like, varying_axes
from fnopt.solvers import LaneEnds, lane_summary

_IN_LOOPS = hasattr(jax, "set_mesh")  # since JAX 0.8


class Batch(NamedTuple):
    """All that the solutions of a batch depend on, but for where they start."""

    losses: Any
    consts: Any  # what the functions close over
    shared: Points
    own: Points
    box: Box | None


def implicitly(
    iterate: Callable[[Task, jax.Array, Batch, Any], LaneEnds],
    task: Task,
    x0: jax.Array,
    shared: Points,
    own: Points,
    box: Box | None,
    settings: Any,
    chunk: int,
) -> LaneEnds:
    """Fits whose results are differentiated by the implicit function theorem.

    Params, sums of squares and covariances have derivatives with respect to data, bounds, scales
    of losses, and what the model closes over. Where they start has none. What isn't finite has a
    derivative of zero.

    Args:
        iterate: `iterate(task, x0, batch, settings)` returns where the fits end.
        task: The functions of a fit.
        x0: Where to start.
        shared: The data that all fits share.
        own: Those of each.
        box: The bounds.
        settings: A tree of arrays that isn't differentiated.
        chunk: How many fits are looked at at once.
    """
    x0 = pvary_like(x0, (shared, own))  # each device has fits of its own
    rebuilt, consts = _opened(task, x0, shared, own)

    def task_of(batch: Batch) -> Task:
        return rebuilt(batch.losses, batch.consts)

    @jax.custom_jvp
    def run(x0: jax.Array, batch: Batch, settings: Any) -> LaneEnds:
        return iterate(task_of(batch), x0, batch, settings)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[LaneEnds, LaneEnds]:
        end = run(*primals)
        return end, _tangent(task_of, end, primals[1], tangents[1], chunk)

    return run(x0, Batch(task.losses, consts, shared, own, box), settings)


def _opened(
    task: Task, x0: jax.Array, shared: Points, own: Points
) -> tuple[Callable[[Any, Any], Task], Any]:
    """The task as a function of what its functions close over, and that."""

    def row(a: jax.Array) -> Any:
        # A shape doesn't say that devices have different numbers: where they do, one stands for it.
        return a[0] if varying_axes(a) else jax.ShapeDtypeStruct(a.shape[1:], a.dtype)

    one = jax.tree.map(row, own)
    numbers = (x0[0, 0] if varying_axes(x0) else jax.ShapeDtypeStruct((), x0.dtype),) * x0.shape[1]
    at = joined(shared, one).x
    predict, consts = convert_closure(task.predict, numbers, at)
    given = task.jacobian
    jacobian, more = (None, []) if given is None else convert_closure(given, numbers, at)

    def rebuilt(losses: Any, consts: Any) -> Task:
        first, second = consts
        derivative = None if jacobian is None else _with(jacobian, second)
        return Task(_with(predict, first), derivative, losses, task.solver)

    return rebuilt, (consts, more)


def _with(fn: Callable[..., Any], more: Any) -> Callable[..., Any]:
    return lambda x, at: fn(x, at, *more)


class _Apart(NamedTuple):
    """A tree, its leaves that can be differentiated apart from the others."""

    moving: list[jax.Array]
    still: list[jax.Array]
    rebuilt: Callable[[Any, Any], Any]


def _apart(tree: Any) -> _Apart:
    leaves, treedef = jax.tree.flatten(tree)
    moves = [is_inexact(leaf) for leaf in leaves]

    def rebuilt(moving: Any, still: Any) -> Any:
        first, second = iter(moving), iter(still)
        return jax.tree.unflatten(treedef, [next(first if m else second) for m in moves])

    moving = [leaf for leaf, m in zip(leaves, moves, strict=True) if m]
    return _Apart(moving, [leaf for leaf, m in zip(leaves, moves, strict=True) if not m], rebuilt)


def _changes(tangent: Any) -> list[jax.Array]:
    """The leaves of a tangent whose primals can be differentiated."""
    return [leaf for leaf in jax.tree.leaves(tangent) if leaf.dtype != jax.dtypes.float0]


def _tangent(
    task_of: Callable[[Batch], Task], end: LaneEnds, batch: Batch, change: Batch, chunk: int
) -> LaneEnds:
    # A fit that isn't finite looks at one that is: zero times what it has would not be zero.
    good = jnp.isfinite(end.cost)
    index = jnp.where(good, jnp.arange(good.size), jnp.argmax(good))
    common = _apart((batch.losses, batch.consts, batch.shared))
    rows = _apart((batch.own, batch.box))
    d_common = _changes((change.losses, change.consts, change.shared))
    mode = "auto" if task_of(batch).solver is None else "reverse"

    def one(fit: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, moving, still, d_moving = fit

        def batch_at(data: Any) -> tuple[Task, Points, Box | None]:
            losses, consts, shared = common.rebuilt(data[0], common.still)
            own, box = rows.rebuilt(data[1], still)
            points = filled(joined(shared, own))
            return task_of(Batch(losses, consts, shared, own, box)), points, box

        def cost(x: jax.Array, data: Any) -> jax.Array:
            task, points, _ = batch_at(data)
            return task.cost(tuple(x), points)

        def summary(x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
            task, points, _ = batch_at(data)
            lane = jax.tree.map(lambda a: a[..., None], (x, points))
            cost, inverse = lane_summary(task.problems(Points(None)), *lane)
            return cost[0], inverse[..., 0]

        data, d_data = (common.moving, moving), (d_common, d_moving)
        held = None
        box = batch_at(data)[2]
        if box is not None:
            d_box = rows.rebuilt(d_moving, still)[1]
            mask = box.held(x, value_and_slope(lambda x: cost(x, data), x)[1])
            held = mask, jnp.where(x <= box.lower, d_box.lower, d_box.upper)
        dx = minimum_tangent(cost, x, data, d_data, held, mode)
        return dx, *pushed(summary, (x, data), (dx, d_data), mode)[1]

    d_rows = _changes((change.own, change.box))
    fits = jax.tree.map(lambda a: a[index], (end.x, rows.moving, rows.still, d_rows))
    # JAX 0.7 can't transpose a linear solve inside of a loop: no chunks there.
    many = functools.partial(lax.map, one, batch_size=chunk) if _IN_LOOPS else jax.vmap(one)
    found = many(fits)
    dx, costs, inverse = (jnp.where(per_row(good, a), a, jnp.zeros_like(a)) for a in found)
    none = jax.custom_derivatives.zero_from_primal(end)
    return none._replace(x=dx, cost=costs, inverse=inverse)
