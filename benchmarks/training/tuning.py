"""Tuning trials: a grid, which is extended while the best value is at its edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.training.methods import Method

AT_ONCE = 3  # values of the first hyper-parameter in one call of `losses`
CALLS = 2  # calls for the grid
MAX_CALLS = 5  # calls for the grid and its extensions


class Trial(NamedTuple):
    """Two hyper-parameters, and the final loss (inf if it isn't finite)."""

    first: float
    second: float
    loss: float


class Tuned(NamedTuple):
    """Result of tuning.

    Attributes:
        best: Trial with the lowest loss.
        trials: All trials in order.
        widened: Number of trials outside of the initial grid.
        at_edge: Whether the best value is at the edge of the tried values.
    """

    best: Trial
    trials: tuple[Trial, ...]
    widened: int
    at_edge: bool


def best_of(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the lowest loss; the first of equal trials.

    Raises:
        ValueError: If no trial ended at a finite loss.
    """
    best = min(trials, key=lambda trial: trial.loss)
    if not np.isfinite(best.loss):
        raise ValueError(
            f"all {len(trials)} trials ended at non-finite losses, expected a finite one"
        )
    return best


def edge(trials: Sequence[Trial]) -> int:
    """Return -1 or 1 if the best first value is the smallest or largest tried value, else 0."""
    values = sorted({trial.first for trial in trials})
    best = best_of(trials).first
    return (best == values[-1]) - (best == values[0])


def further(values: Sequence[float], factor: float, side: int) -> list[float]:
    """Return the next values beyond one edge of the tried values."""
    end = max(values) if side > 0 else min(values)
    return sorted(end * factor ** (side * k) for k in range(1, AT_ONCE + 1))


def untuned(first: float, second: float) -> Tuned:
    """Return fixed hyper-parameters without trials."""
    return Tuned(Trial(first, second, float("inf")), (), 0, at_edge=False)


def tuned(method: Method, losses: Callable[[list[float], list[float]], Sequence[float]]) -> Tuned:
    """Try the grid, and extend it until the best first value isn't at the edge.

    Args:
        method: The method.
        losses: `losses(firsts, seconds)`, which runs trials and returns their losses.
    """
    _, lowest, factor = method.first
    trials: list[Trial] = []

    def run_trials(values: list[float]) -> None:
        pairs = [(a, b) for a in values for b in method.second[1]]
        results = losses([a for a, _ in pairs], [b for _, b in pairs])
        for (a, b), loss in zip(pairs, results, strict=True):
            trials.append(Trial(a, b, float(loss) if np.isfinite(loss) else float("inf")))

    for call in range(CALLS):
        run_trials([lowest * factor**k for k in range(call * AT_ONCE, (call + 1) * AT_ONCE)])
    planned = len(trials)
    for _ in range(MAX_CALLS - CALLS):
        side = edge(trials)
        if not side:
            break
        run_trials(further([trial.first for trial in trials], factor, side))
    return Tuned(best_of(trials), tuple(trials), len(trials) - planned, bool(edge(trials)))
