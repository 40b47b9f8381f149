"""The state of all problems between their turns in the lanes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, per_row
from fnopt.curves.batched._bounds import LaneBox
from fnopt.curves.batched._claim import settled
from fnopt.curves.batched._judge import least_gain
from fnopt.curves.batched._lanes import Lanes, LaneTolerances, Params
from fnopt.linear import (
    NormalEquations,
    Rows,
    jacobi_scale,
    scaled,
    unrolled_cholesky,
    unrolled_inverse,
    unrolled_rank,
)


class BatchState(NamedTuple):
    """The state of all problems, along the first axis."""

    x: jax.Array  # [fits, n]
    square: jax.Array  # [fits], the sum of squares
    least_gain: jax.Array  # [fits], what a change of that has to exceed
    inverse: jax.Array  # [fits, n, n], (J^T J)^-1
    rank: jax.Array  # int32[fits]
    lam: jax.Array  # [fits]
    growth: jax.Array  # [fits]
    radius: jax.Array  # [fits]
    steps: jax.Array  # int32[fits]
    status: jax.Array  # int32[fits]
    peak: jax.Array  # [fits, n], the squares of the largest columns so far


def empty(x0: jax.Array, tol: LaneTolerances) -> BatchState:
    """Problems at their starts, of shape `[fits, n]`."""
    fits, n = x0.shape
    dtype = x0.dtype
    count = jnp.zeros(fits, jnp.int32)
    return BatchState(
        x=x0,
        square=jnp.full(fits, jnp.inf, dtype),
        least_gain=jnp.zeros(fits, dtype),
        inverse=jnp.zeros((fits, n, n), dtype),
        rank=count,
        lam=jnp.broadcast_to(tol.damping, fits),
        growth=jnp.full(fits, 2, dtype),
        radius=jnp.zeros(fits, dtype),
        steps=count,
        status=jnp.full(fits, Status.RUNNING.value, jnp.int32),
        peak=jnp.zeros((fits, n), dtype),
    )


def take(a: jax.Array, index: jax.Array) -> jax.Array:
    """Rows; any for an index that is out of range."""
    return a.at[index].get(mode="clip")


def chosen(taken: jax.Array, new: Any, old: Any) -> Any:
    """A tree with a leading axis of fits: of those that are taken the new one, else the old one."""

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(per_row(taken, new), new, old)

    return jax.tree.map(choose, new, old)


def indices(running: jax.Array, size: int) -> jax.Array:
    """The indices of problems with work left, then indices out of range."""
    fits = running.shape[0]
    return jnp.nonzero(running, size=size, fill_value=fits)[0].astype(jnp.int32)


def load(progress: BatchState, index: jax.Array) -> Lanes:
    """Puts problems into lanes; a lane without one is done from the start."""
    fits = progress.x.shape[0]
    params = columns(take(progress.x, index))
    unknown = jnp.full(index.shape, jnp.inf, progress.x.dtype)
    status = take(progress.status, index)
    n = len(params)
    return Lanes(
        x=params,
        trial=params,
        sums=NormalEquations(
            unknown, unknown, (unknown,) * n, tuple((unknown,) * (i + 1) for i in range(n))
        ),
        lam=take(progress.lam, index),
        growth=take(progress.growth, index),
        radius=take(progress.radius, index),
        steps=take(progress.steps, index),
        status=jnp.where(index < fits, status, Status.MAX_STEPS.array),
        fresh=jnp.ones(index.shape, bool),
        peak=columns(take(progress.peak, index)),
    )


def store(
    progress: BatchState,
    lanes: Lanes,
    index: jax.Array,
    x0: jax.Array,
    tol: LaneTolerances,
    box: LaneBox | None,
) -> BatchState:
    """The progress with what is known of some problems, whose claims are settled."""
    # A lane that is not done is evaluated again when it is next loaded.
    inverse, rank = inverse_and_rank(lanes.sums.A)
    new = BatchState(
        x=jnp.stack(lanes.x, axis=-1),
        square=lanes.sums.square,
        least_gain=least_gain(lanes),
        inverse=inverse,
        rank=rank,
        lam=lanes.lam,
        growth=lanes.growth,
        radius=lanes.radius,
        steps=lanes.steps,
        status=settled(lanes, columns(take(x0, index)), inverse, rank, tol, box),
        peak=jnp.stack(lanes.peak, axis=-1),
    )
    return jax.tree.map(lambda all_, some: all_.at[index].set(some, mode="drop"), progress, new)


def inverse_and_rank(A: Rows) -> tuple[jax.Array, jax.Array]:
    """The inverses, of shape `[lanes, n, n]`, and how many pivots there are."""
    s = jacobi_scale(A)
    dtype = A[0][0].dtype
    n = len(s)
    least = 8 * n * float(jnp.finfo(dtype).eps)
    factor = unrolled_cholesky(scaled(A, s), jnp.zeros_like(A[0][0]), least)
    lower = scaled(unrolled_inverse(factor), s)
    full = [lower[max(i, j)][min(i, j)] for i in range(n) for j in range(n)]
    return jnp.stack(full, axis=-1).reshape(-1, n, n), unrolled_rank(factor)


def columns(a: jax.Array) -> Params:
    """A matrix of shape `[lanes, n]` column by column."""
    return tuple(a[:, i] for i in range(a.shape[1]))
