"""Derivatives of the results of a batch of fits, by the implicit function theorem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.curves.batched._data import BatchData, Points, fill_masked, merge_points, one_fit
from fnopt.curves.batched._task import Task
from fnopt.jacobians import value_and_jacobian
from fnopt.numerics import is_inexact, per_row
from fnopt.programs import convert_closure
from fnopt.residuals import Box, minimum_tangent, pushed, value_and_slope
from fnopt.sharding import pvary_like
from fnopt.solvers import LaneEnds, differentiable_inverse

_IN_LOOPS = hasattr(jax, "set_mesh")  # JAX 0.8 and later transpose linear solves in loops


TaskArrays = tuple[Any, Any]
"""The losses of a task, and the arrays that the functions of the task close over."""


def differentiate_implicitly(
    iterate: Callable[[Task, BatchData, Any], LaneEnds],
    task: Task,
    data: BatchData,
    settings: Any,
    chunk: int,
) -> LaneEnds:
    """Run fits, and define their derivatives by the implicit function theorem.

    Params, sums of squares and covariances have derivatives with respect to data, bounds, scales of
    losses, and arrays that the model closes over. The derivatives with respect to initial guesses
    are zero, and so are the derivatives of non-finite results.

    Args:
        iterate: `iterate(task, data, settings)` returns the results of the fits.
        task: The functions of a fit.
        data: Initial guesses, data and bounds.
        settings: A tree of arrays without derivatives, passed to `iterate`.
        chunk: Number of fits that are differentiated at once.
    """
    # Inside shard_map, every device solves different fits, so the guesses vary over the mesh axes.
    data = data._replace(x0=pvary_like(data.x0, (data.shared, data.own)))
    task_of, consts = _convert_closures(task, data)

    @jax.custom_jvp
    def run(closed: TaskArrays, data: BatchData, settings: Any) -> LaneEnds:
        return iterate(task_of(closed), data, settings)

    @run.defjvp
    def rule(primals: Any, tangents: Any) -> tuple[LaneEnds, LaneEnds]:
        end = run(*primals)
        return end, _tangent(task_of, end, primals[:2], tangents[:2], chunk)

    return run((task.losses, consts), data, settings)


def _convert_closures(task: Task, data: BatchData) -> tuple[Callable[[TaskArrays], Task], Any]:
    """Convert a task to a function of the arrays in its closures, and return these arrays."""
    numbers, points = one_fit(data)
    predict, predict_consts = convert_closure(task.predict, numbers, points.x)
    jacobian, jacobian_consts = None, []
    if task.jacobian is not None:
        jacobian, jacobian_consts = convert_closure(task.jacobian, numbers, points.x)

    def task_of(closed: TaskArrays) -> Task:
        losses, (predict_consts, jacobian_consts) = closed
        bound_jacobian = None if jacobian is None else _bind_consts(jacobian, jacobian_consts)
        return Task(_bind_consts(predict, predict_consts), bound_jacobian, losses, task.solver)

    return task_of, (predict_consts, jacobian_consts)


def _bind_consts(fn: Callable[..., Any], consts: Any) -> Callable[..., Any]:
    return lambda x, positions: fn(x, positions, *consts)


def _split_inexact(tree: Any) -> tuple[Any, Any]:
    """Split a tree into floating leaves and other leaves, two trees with None elsewhere."""
    inexact = jax.tree.map(lambda leaf: leaf if is_inexact(leaf) else None, tree)
    return inexact, jax.tree.map(lambda leaf: None if is_inexact(leaf) else leaf, tree)


def _merge(inexact: Any, others: Any) -> Any:
    """Undo `_split_inexact`."""
    pick = lambda a, b: b if a is None else a  # noqa: E731
    return jax.tree.map(pick, inexact, others, is_leaf=lambda node: node is None)


def _floating_tangents(tangent: Any) -> Any:
    """Replace the float0 tangents of integers by None, as in the tree of floating leaves."""
    return jax.tree.map(lambda leaf: None if leaf.dtype == jax.dtypes.float0 else leaf, tangent)


def _tangent(
    task_of: Callable[[TaskArrays], Task],
    end: LaneEnds,
    primals: tuple[TaskArrays, BatchData],
    tangents: tuple[TaskArrays, BatchData],
    chunk: int,
) -> LaneEnds:
    """Tangents of the results of all fits, one fit after the other, in chunks."""
    # A finite fit stands in for each non-finite fit, because zero times NaN isn't zero.
    is_finite = jnp.isfinite(end.cost)
    index = jnp.where(is_finite, jnp.arange(is_finite.size), jnp.argmax(is_finite))
    (closed, batch), (d_closed, d_batch) = primals, tangents
    common, common_others = _split_inexact((closed, batch.shared))
    rows, rows_others = _split_inexact((batch.own, batch.box))
    d_common = _floating_tangents((d_closed, d_batch.shared))
    d_rows = _floating_tangents((d_batch.own, d_batch.box))
    mode = "auto" if task_of(closed).solver is None else "reverse"

    def fit_tangent(fit: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, end_inverse, inexact, others, d_rows = fit

        def parts(data: Any) -> tuple[Task, Points, Box | None]:
            closed, shared = _merge(data[0], common_others)
            own, box = _merge(data[1], others)
            return task_of(closed), fill_masked(merge_points(shared, own)), box

        def cost(x: jax.Array, data: Any) -> jax.Array:
            task, points, _ = parts(data)
            return task.cost(tuple(x), points)

        def jacobian() -> jax.Array:
            task, points, _ = parts(data)
            direction = "forward" if mode == "auto" else mode
            m, losses = points.y.size, task.losses_of(points)
            r, J = value_and_jacobian(lambda x: task.residual(tuple(x), points), x, m, direction)
            return J if losses is None else losses.weight_rows(J, r)

        def summary(x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
            task, points, _ = parts(data)
            lane = jax.tree.map(lambda a: a[..., None], (x, points, end_inverse))
            inverse = differentiable_inverse(task.problems(Points(None)), *lane)
            return task.cost(tuple(x), points), inverse[..., 0]

        data, d_data = (common, inexact), (d_common, d_rows)
        active = None
        box = parts(data)[2]
        if box is not None:
            # A param in the active set follows its bound.
            d_box = d_rows[1]
            mask = box.held(x, value_and_slope(lambda x: cost(x, data), x)[1])
            active = mask, jnp.where(x <= box.lower, d_box.lower, d_box.upper)
        dx = minimum_tangent(cost, x, data, d_data, active, mode, jacobian=jacobian)
        return dx, *pushed(summary, (x, data), (dx, d_data), mode)[1]

    fits = jax.tree.map(lambda a: a[index], (end.x, end.inverse, rows, rows_others, d_rows))
    # JAX 0.7 can't transpose a linear solve in a loop, so all fits are differentiated at once.
    map_chunks = functools.partial(lax.map, fit_tangent, batch_size=chunk)
    results = map_chunks(fits) if _IN_LOOPS else jax.vmap(fit_tangent)(fits)
    dx, costs, inverse = (jnp.where(per_row(is_finite, a), a, jnp.zeros_like(a)) for a in results)
    zero = jax.custom_derivatives.zero_from_primal(end)
    return zero._replace(x=dx, cost=costs, inverse=inverse)
