"""Fits that the batch leaves unsolved, each by itself."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, is_converged
from fnopt.curves.batched._data import Points, joined
from fnopt.curves.batched._task import Task
from fnopt.residuals import Box
from fnopt.solvers import LaneEnds, lane_summary, least_squares

_OPEN = (Status.MAX_STEPS, Status.STALLED, Status.NONFINITE_STEP)


def is_open(ends: LaneEnds) -> jax.Array:
    """Which fits failed or aren't certified, but may be solved by other steps.

    Where only the squares overflow at the start, :func:`fnopt.least_squares` has other units.
    """
    failed = functools.reduce(jnp.logical_or, [ends.status == code.value for code in _OPEN])
    failed |= is_converged(ends.status) & ~ends.certified
    return failed | ((ends.status == Status.NONFINITE_START.value) & (ends.cost == jnp.inf))


def alone(
    task: Task,
    x0: jax.Array,
    shared: Points,
    own: Points,
    box: Box | None,
    ends: LaneEnds,
    max_steps: int,
) -> LaneEnds:
    """The ends with unsolved fits made again from their starts, one after the other.

    The steps are those of :func:`fnopt.least_squares`: with QR, acceleration and a trust region,
    which would be dear in lanes.

    Args:
        task: The functions of a fit.
        x0: Where to start, of shape `[fits, n]`.
        shared: The data that all fits share.
        own: The data of each fit.
        box: The bounds, of shape `[fits, n]`.
        ends: Where the batch left them.
        max_steps: The most steps of each, beside those of the batch.
    """
    failed = is_open(ends)
    order = jnp.nonzero(failed, size=len(x0), fill_value=0)[0]

    def one(i: jax.Array, ends: LaneEnds) -> LaneEnds:
        k = order[i]
        start, data, sides, old = jax.tree.map(lambda a: a[k], (x0, own, box, ends))
        new = _again(task, start, shared, data, sides, old.steps, max_steps)
        solved = is_converged(new.status) | ~(new.cost > old.cost)
        kept = jax.tree.map(lambda a, b: jnp.where(solved, a, b), new, old)
        kept = kept._replace(steps=new.steps)
        return jax.tree.map(lambda all_, some: all_.at[k].set(some), ends, kept)

    return lax.fori_loop(0, jnp.sum(failed, dtype=jnp.int32), one, ends)


def _again(
    task: Task,
    start: jax.Array,
    shared: Points,
    own: Points,
    box: Box | None,
    steps: jax.Array,
    max_steps: int,
) -> LaneEnds:
    """One fit by itself."""
    points = joined(shared, own)
    losses = task.losses_of(points)
    found = least_squares(
        lambda x: task.residual(tuple(x), points),
        start,
        jac=task.jacobian_of(points),
        loss=None if losses is None else losses.losses[0],
        bounds=None if box is None else tuple(box),
        solver=task.solver,
        max_steps=max_steps,
        check_jac=False,
    )
    lane = jax.tree.map(lambda a: a[..., None], (found.params, own))
    cost, inverse = lane_summary(task.problems(shared), *lane)
    assert found.certificate is not None
    return LaneEnds(
        x=found.params,
        cost=cost[0],
        inverse=inverse[..., 0],
        rank=found.rank,
        undetermined=found.certificate.undetermined,
        certified=found.certificate.certified,
        steps=steps + found.steps,
        status=found.status,
    )
