"""From any number of problems to chunks of lanes, and back.

Problems are worked through in chunks that stay in a core's cache. A chunk is left as soon as most
of its lanes are done; the others go back to the queue and meet in full chunks in the next round.
So a slow problem holds up nobody, and no vector instruction runs for a few lanes only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fnopt.core import Status, is_converged
from fnopt.curves.batched._lanes import Lanes, Params, Tolerances, is_running
from fnopt.curves.batched._method import advance
from fnopt.linear import (
    NormalEquations,
    jacobi_scale,
    scaled,
    unrolled_cholesky,
    unrolled_inverse,
    unrolled_rank,
)

Evaluate = Callable[[Params, Any], NormalEquations]
"""The sums at params of many problems, from their data (the last axis is the lanes)."""

_RETRIES = 3  # of a problem that fails, with a damping of 100, 1e4 and 1e6
_LEAVE = 4  # a chunk is left when less than one lane in four still runs


class Progress(NamedTuple):
    """What is known of all problems; the first axis is theirs."""

    x: jax.Array  # [fits, n]
    square: jax.Array  # [fits], the sum of squares
    inverse: jax.Array  # [fits, n, n], (J^T J)^-1
    rank: jax.Array  # int32[fits]
    lam: jax.Array  # [fits]
    growth: jax.Array  # [fits]
    steps: jax.Array  # int32[fits]
    status: jax.Array  # int32[fits]
    used: jax.Array  # int32[fits], a bit for each param with an effect at the start, or -1


def fit_all(
    evaluate: Evaluate, x0: jax.Array, rows: Any, tol: Tolerances, max_steps: int, chunk: int
) -> Progress:
    """Fits all problems.

    Args:
        evaluate: The sums at params.
        x0: Where to start, of shape `[fits, n]`.
        rows: The problems' data: arrays whose first axis is the problems.
        tol: The tolerances.
        max_steps: The most steps of a problem.
        chunk: How many problems are worked on at once.

    Returns:
        The progress when all problems have a status. Memory beyond data and result is what one
        chunk needs, an index of the problems, and a second result.

    What fails is tried again from its start with more and more damping: steps that throw a param
    to where it has no effect are the usual reason, and short ones don't.
    """
    fits = x0.shape[0]

    def one_chunk(order: jax.Array, k: jax.Array, progress: Progress) -> Progress:
        index = lax.dynamic_slice_in_dim(order, k * chunk, chunk)
        data = jax.tree.map(lambda a: jnp.moveaxis(_take(a, index), 0, -1), rows)
        lanes = _load(progress, index, fits)
        lanes = _work(lanes, lambda x: evaluate(x, data), tol, max_steps)
        return _store(progress, lanes, index)

    def one_round(progress: Progress) -> Progress:
        running = is_running(progress.status)
        count = jnp.sum(running, dtype=jnp.int32)
        order = _indices(running, -(-fits // chunk) * chunk)
        chunks = (count + (chunk - 1)) // chunk
        return lax.fori_loop(0, chunks, lambda k, p: one_chunk(order, k, p), progress)

    def attempt(state: tuple[jax.Array, Progress]) -> tuple[jax.Array, Progress]:
        number, best = state
        again = _failed(best, max_steps)
        now = _restarted(best, x0, again, jnp.asarray(100, x0.dtype) ** number.astype(x0.dtype))
        now = lax.while_loop(lambda p: jnp.any(is_running(p.status)), one_round, now)
        return number + jnp.ones((), jnp.int32), _better(best, now, again)

    def unfinished(state: tuple[jax.Array, Progress]) -> jax.Array:
        number, best = state
        return (number <= _RETRIES) & jnp.any(_failed(best, max_steps))

    return lax.while_loop(unfinished, attempt, (jnp.zeros((), jnp.int32), _empty(x0, tol)))[1]


def _failed(progress: Progress, max_steps: int) -> jax.Array:
    """Which problems have another try: those not begun, and those that other steps may solve."""
    status = progress.status
    lost = (status == Status.STALLED.value) | (status == Status.NONFINITE_STEP.value)
    return is_running(status) | (lost & (progress.steps < max_steps))


def _restarted(best: Progress, x0: jax.Array, again: jax.Array, damping: jax.Array) -> Progress:
    """Problems at their start again: the first time with their own damping, then with more."""
    lam = jnp.where(damping > 1, damping, best.lam)
    return best._replace(
        x=jnp.where(again[:, None], x0, best.x),
        lam=jnp.where(again, lam, best.lam),
        growth=jnp.where(again, jnp.full_like(best.growth, 2), best.growth),
        status=jnp.where(again, Status.RUNNING.array, best.status),
    )


def _better(best: Progress, now: Progress, again: jax.Array) -> Progress:
    """The better end of each problem, with the steps of both tries."""
    solved, before = is_converged(now.status), is_converged(best.status)
    lower = (now.square <= best.square) | ~jnp.isfinite(best.square)
    taken = again & ((solved & ~before) | ((solved == before) & lower))

    def choose(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(taken.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, now, best)._replace(steps=now.steps)


def _empty(x0: jax.Array, tol: Tolerances) -> Progress:
    fits, n = x0.shape
    dtype = x0.dtype
    count = jnp.zeros(fits, jnp.int32)
    return Progress(
        x=x0,
        square=jnp.full(fits, jnp.inf, dtype),
        inverse=jnp.zeros((fits, n, n), dtype),
        rank=count,
        lam=jnp.broadcast_to(tol.damping, fits),
        growth=jnp.full(fits, 2, dtype),
        steps=count,
        status=jnp.full(fits, Status.RUNNING.value, jnp.int32),
        used=jnp.full(fits, -1, jnp.int32),
    )


def _indices(running: jax.Array, size: int) -> jax.Array:
    """Where there is work left, then indices out of range."""
    fits = running.shape[0]
    return jnp.nonzero(running, size=size, fill_value=fits)[0].astype(jnp.int32)


def _take(a: jax.Array, index: jax.Array) -> jax.Array:
    return a.at[index].get(mode="clip")


def _load(progress: Progress, index: jax.Array, fits: int) -> Lanes:
    """Puts problems into lanes; a lane without one is done from the start."""
    n = progress.x.shape[1]
    x = _take(progress.x, index)
    params = tuple(x[:, i] for i in range(n))
    unknown = jnp.full(index.shape, jnp.inf, x.dtype)
    status = _take(progress.status, index)
    return Lanes(
        x=params,
        trial=params,
        sums=NormalEquations(
            unknown, (unknown,) * n, tuple((unknown,) * (i + 1) for i in range(n))
        ),
        lam=_take(progress.lam, index),
        growth=_take(progress.growth, index),
        steps=_take(progress.steps, index),
        status=jnp.where(index < fits, status, Status.MAX_STEPS.array),
        fresh=jnp.ones(index.shape, bool),
        used=_take(progress.used, index),
    )


def _work(
    lanes: Lanes, evaluate: Callable[[Params], NormalEquations], tol: Tolerances, max_steps: int
) -> Lanes:
    """Steps until most lanes are done; all of them if there are few."""

    def running(lanes: Lanes) -> jax.Array:
        return jnp.sum(is_running(lanes.status), dtype=jnp.int32)

    few = running(lanes) // _LEAVE
    return lax.while_loop(
        lambda now: running(now) > few,
        lambda now: advance(now, evaluate(now.trial), tol, max_steps),
        lanes,
    )


def _store(progress: Progress, lanes: Lanes, index: jax.Array) -> Progress:
    # A lane that is not done is evaluated again when it is next loaded.
    s = jacobi_scale(lanes.sums.A)
    least = 8 * len(s) * float(jnp.finfo(lanes.lam.dtype).eps)
    factor = unrolled_cholesky(scaled(lanes.sums.A, s), jnp.zeros_like(lanes.lam), least)
    lower = scaled(unrolled_inverse(factor), s)
    n = len(lower)
    full = [lower[max(i, j)][min(i, j)] for i in range(n) for j in range(n)]
    new = Progress(
        x=jnp.stack(lanes.x, axis=-1),
        square=lanes.sums.square,
        inverse=jnp.stack(full, axis=-1).reshape(-1, n, n),
        rank=unrolled_rank(factor),
        lam=lanes.lam,
        growth=lanes.growth,
        steps=lanes.steps,
        status=lanes.status,
        used=lanes.used,
    )
    return jax.tree.map(lambda all_, some: all_.at[index].set(some, mode="drop"), progress, new)
