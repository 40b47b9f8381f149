"""Further tries of failed problems, from their starts and with other steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnopt.core import Status, is_converged, while_loop
from fnopt.curves.batched._lanes import LaneTolerances, is_running
from fnopt.curves.batched._metric import SIZE_FLOOR
from fnopt.curves.batched._progress import BatchState, chosen, empty

_DAMPING = (1e2, 1e4, 1.0)  # of the tries after the first
_OPEN = (Status.MAX_STEPS, Status.STALLED, Status.NONFINITE_STEP, Status.NO_EFFECT)
_FIRST, _FEW, _NEXT = 0.15, 30, 0.12  # steps: of the first try, at least, and of those after it


class _Best(NamedTuple):
    """The best ends of all tries so far."""

    number: jax.Array  # int32, of tries
    progress: BatchState


def with_retries(
    run: Callable[[BatchState, LaneTolerances, jax.Array], BatchState],
    x0: jax.Array,
    tol: LaneTolerances,
    max_steps: int,
) -> BatchState:
    """Runs problems until all have a status, and those that fail again.

    The first try has the metric of :func:`fnopt.least_squares` and little damping. Steps that
    throw a param to where it has no effect are the usual reason why it fails, and steps that
    creep along behind a limit at infinity another. So the next begin at the start again with more
    and more damping, by the columns alone; a problem that is not solved by any of them goes on
    from its best end, as if nothing had been between.

    Args:
        run: `run(progress, tol, most)` steps all problems that run to an end, or `most` steps.
        x0: Where to start, of shape `[fits, n]`.
        tol: The tolerances.
        max_steps: The most steps of a problem, in all tries together.
    """
    first = max(_FIRST * max_steps, _FEW)
    last = len(_DAMPING) + 1
    limits = [min(int(first + k * _NEXT * max_steps), max_steps) for k in range(last)]
    limits.append(max_steps)
    damping = jnp.asarray([0.0, *_DAMPING, 0.0], x0.dtype)

    def attempt(best: _Best) -> _Best:
        number, before = best
        again = _unsolved(before, max_steps)
        own = (number == 0) | (number == last)
        now = _restarted(before, x0, again, damping[number], number == last)
        size_floor = jnp.where(own, jnp.asarray(SIZE_FLOOR, x0.dtype), jnp.zeros((), x0.dtype))
        now = run(now, tol._replace(size_floor=size_floor), jnp.asarray(limits, jnp.int32)[number])
        return _Best(number + jnp.ones((), jnp.int32), _better(before, now, again))

    def unfinished(best: _Best) -> jax.Array:
        return (best.number <= last) & jnp.any(_unsolved(best.progress, max_steps))

    begun = _Best(jnp.zeros((), jnp.int32), empty(x0, tol))
    return while_loop(unfinished, attempt, begun).progress


def _unsolved(progress: BatchState, max_steps: int) -> jax.Array:
    """Which problems have another try: those not begun, and those that other steps may solve."""
    return is_running(progress.status) | (is_open(progress.status) & (progress.steps < max_steps))


def is_open(status: jax.Array) -> jax.Array:
    """Which problems failed, but may be solved by other steps."""
    return functools.reduce(jnp.logical_or, [status == code.value for code in _OPEN])


def _restarted(
    best: BatchState, x0: jax.Array, again: jax.Array, damping: jax.Array, goes_on: jax.Array
) -> BatchState:
    """Problems at their start again, with more damping, or where they were."""
    anew = again & ~goes_on
    return best._replace(
        x=jnp.where(anew[:, None], x0, best.x),
        lam=jnp.where(anew & (damping > 0), damping, best.lam),
        growth=jnp.where(again, jnp.full_like(best.growth, 2), best.growth),
        radius=jnp.where(anew, jnp.zeros_like(best.radius), best.radius),
        status=jnp.where(again, Status.RUNNING.array, best.status),
        peak=jnp.where(anew[:, None], jnp.zeros_like(best.peak), best.peak),
    )


def _better(best: BatchState, now: BatchState, again: jax.Array) -> BatchState:
    """The better end of each problem, with the steps of all tries."""
    solved, before = is_converged(now.status), is_converged(best.status)
    lower = (now.square <= best.square) | ~jnp.isfinite(best.square)
    taken = again & ((solved & ~before) | ((solved == before) & lower))
    return chosen(taken, now, best)._replace(steps=now.steps)
