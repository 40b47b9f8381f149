"""Further tries of problems that failed, or may have: from elsewhere, with other steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Status, is_converged, while_loop
from fnopt.curves.batched._lanes import LaneTolerances, is_running
from fnopt.curves.batched._metric import SIZE_FLOOR
from fnopt.curves.batched._progress import BatchState, chosen, empty
from fnopt.residuals import Box

_DAMPING = (1e2, 1e4, 1.0)  # of the tries after the first
_OPEN = (Status.MAX_STEPS, Status.STALLED, Status.NONFINITE_STEP, Status.NO_EFFECT)
_FIRST, _FEW, _NEXT = 0.15, 30, 0.12  # steps: of the first try, at least, and of those after it
_PLACES = 4  # by the end and the start in turns, where a doubtful claim is tried, before its start
_AWAY = 4.0  # powers of two, by which params differ there, as of a normal distribution
_LESS = 1e-3  # of the cost, by which that of a false claim is too high at least


class _Best(NamedTuple):
    """The best ends of all tries so far."""

    number: jax.Array  # int32, of tries
    progress: BatchState


class _Try(NamedTuple):
    """How problems are tried."""

    damping: jax.Array  # the first one; 0 for that of before
    size_floor: jax.Array  # of the metric
    most: jax.Array  # int32, the most steps
    at_start: jax.Array  # bool, whether it begins by the start, or else by the best end so far
    factors: jax.Array  # [n], by which params differ from those there


def with_retries(
    run: Callable[[BatchState, LaneTolerances, jax.Array], BatchState],
    x0: jax.Array,
    box: Box | None,
    tol: LaneTolerances,
    max_steps: int,
) -> BatchState:
    """Runs problems until all have a status, and those that fail again.

    The first try has the metric of :func:`fnopt.least_squares` and little damping. Steps that
    throw a param to where it has no effect are the usual reason why it fails, and steps that
    creep along behind a limit at infinity another. So the next begin at the start again with more
    and more damping, by the columns alone; a problem that is not solved by any of them goes on
    from its best end, as if nothing had been between.

    Claims with params that can't be told apart are tried from elsewhere then. Either the data say
    nothing of them, which is so anywhere; or that is a limit at infinity, and only looks so there.
    Of a param whose column never had a square other than zero nobody knows whether it has an
    effect: the sums of a batch don't tell underflow from nothing. That is no claim.

    Args:
        run: `run(progress, tol, most)` steps all problems that run to an end, or `most` steps.
        x0: Where to start, of shape `[fits, n]`.
        box: The bounds, of shape `[fits, n]`.
        tol: The tolerances.
        max_steps: The most steps of a problem, in all tries together.
    """
    last = len(_DAMPING) + 1
    tries = _tries(x0, max_steps)

    def attempt(best: _Best) -> _Best:
        number, before = best
        looks = number > last
        again = jnp.where(looks, _doubtful(before, max_steps), _unsolved(before, max_steps))
        how = jax.tree.map(lambda a: a[number], tries)
        now = _restarted(before, x0, box, again, how, number == last)
        now = run(now, tol._replace(size_floor=how.size_floor), how.most)
        better = jnp.where(looks, _refutes(now, before), _is_better(now, before))
        kept = chosen(again & better, now, before)._replace(steps=now.steps)
        return _Best(number + jnp.ones((), jnp.int32), kept)

    def unfinished(best: _Best) -> jax.Array:
        unsolved = (best.number <= last) & jnp.any(_unsolved(best.progress, max_steps))
        doubtful = (best.number < len(tries.most)) & jnp.any(_doubtful(best.progress, max_steps))
        return unsolved | doubtful

    begun = _Best(jnp.zeros((), jnp.int32), empty(x0, tol))
    end = while_loop(unfinished, attempt, begun).progress
    unseen = is_converged(end.status) & jnp.any(end.peak <= 0, axis=1) & _has_more(end)
    return end._replace(status=jnp.where(unseen, Status.NO_EFFECT.array, end.status))


def _tries(x0: jax.Array, max_steps: int) -> _Try:
    """All tries, along the first axis: those of problems that failed, then those of claims."""
    n, dtype = x0.shape[1], x0.dtype
    first, count = max(_FIRST * max_steps, _FEW), len(_DAMPING)
    most = [min(int(first + k * _NEXT * max_steps), max_steps) for k in range(count + 1)]
    shaken = np.exp2(_AWAY * np.random.default_rng(0).standard_normal((_PLACES, n)))
    factors = np.concatenate([np.ones((2 + count, n)), shaken, np.ones((1, n))])
    at_start = [True] * (1 + count) + [False] + [k % 2 > 0 for k in range(_PLACES)] + [True]
    return _Try(
        damping=jnp.asarray([0, *_DAMPING, 0, *[1] * _PLACES, 1e2], dtype),
        size_floor=jnp.asarray([SIZE_FLOOR, *[0] * count, *[SIZE_FLOOR] * (2 + _PLACES)], dtype),
        most=jnp.asarray(most + [max_steps] * (2 + _PLACES), jnp.int32),
        at_start=jnp.asarray(at_start),
        factors=jnp.asarray(factors, dtype),
    )


def _unsolved(progress: BatchState, max_steps: int) -> jax.Array:
    """Which problems have another try: those not begun, and those that other steps may solve."""
    return is_running(progress.status) | (is_open(progress.status) & (progress.steps < max_steps))


def _doubtful(progress: BatchState, max_steps: int) -> jax.Array:
    """Which claims may be none: those with params that can't be told apart, and some cost left."""
    deficient = (progress.rank > 0) & (progress.rank < progress.x.shape[1])
    may_go_on = _has_more(progress) & (progress.steps < max_steps)
    return is_converged(progress.status) & deficient & may_go_on


def _has_more(progress: BatchState) -> jax.Array:
    """Which problems have more of a cost left than rounding explains."""
    return progress.square > progress.least_gain


def is_open(status: jax.Array) -> jax.Array:
    """Which problems failed, but may be solved by other steps."""
    return functools.reduce(jnp.logical_or, [status == code.value for code in _OPEN])


def _restarted(
    best: BatchState,
    x0: jax.Array,
    box: Box | None,
    again: jax.Array,
    how: _Try,
    goes_on: jax.Array,
) -> BatchState:
    """Problems where they are tried again, as if nothing had been before, unless one goes on."""
    anew = again & ~goes_on
    x = how.factors * jnp.where(how.at_start, x0, best.x)
    x = x if box is None else box.nearest(x)
    return best._replace(
        x=jnp.where(anew[:, None], x, best.x),
        lam=jnp.where(anew & (how.damping > 0), how.damping, best.lam),
        growth=jnp.where(again, jnp.full_like(best.growth, 2), best.growth),
        radius=jnp.where(anew, jnp.zeros_like(best.radius), best.radius),
        status=jnp.where(again, Status.RUNNING.array, best.status),
        peak=jnp.where(anew[:, None], jnp.zeros_like(best.peak), best.peak),
    )


def _is_better(now: BatchState, best: BatchState) -> jax.Array:
    """Whether a try of a problem that had failed ends better."""
    solved, before = is_converged(now.status), is_converged(best.status)
    lower = (now.square <= best.square) | ~jnp.isfinite(best.square)
    return (solved & ~before) | ((solved == before) & lower)


def _refutes(now: BatchState, claimed: BatchState) -> jax.Array:
    """Whether a try shows that a claim was none, be it solved itself or not."""
    least = jnp.asarray(_LESS, now.square.dtype) * claimed.square
    return now.square < claimed.square - jnp.maximum(least, claimed.least_gain)
