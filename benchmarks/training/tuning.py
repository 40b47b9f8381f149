"""The trials: six values times one or two, and further out while the best is at an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.training.methods import Method

AT_ONCE = 3  # values of the first number in one call of the compiled sweep
CALLS = 2  # of the grid itself
MOST_CALLS = 5  # with those further out


class Trial(NamedTuple):
    """Two numbers, and the loss that training with them ended at (inf: not finite)."""

    first: float
    second: float
    loss: float


class Tuned(NamedTuple):
    """The best trial and all others.

    Attributes:
        best: The best of `trials`.
        trials: In the order in which they were made.
        widened: How many of them are outside of the grid that all methods get.
        at_edge: Whether the best is still at an end: then it could be better.
    """

    best: Trial
    trials: tuple[Trial, ...]
    widened: int
    at_edge: bool


def best_of(trials: Sequence[Trial]) -> Trial:
    """That with the least loss; the first of equal ones.

    Raises:
        ValueError: If no trial ended at a finite loss.
    """
    best = min(trials, key=lambda trial: trial.loss)
    if not np.isfinite(best.loss):
        raise ValueError(f"none of {len(trials)} trials ended at a finite loss")
    return best


def edge(trials: Sequence[Trial]) -> int:
    """-1 or 1 if the best first number is the least or largest that was tried, else 0."""
    values = sorted({trial.first for trial in trials})
    best = best_of(trials).first
    return (best == values[-1]) - (best == values[0])


def further(values: Sequence[float], factor: float, side: int) -> list[float]:
    """The next numbers beyond one end of those that were tried."""
    end = max(values) if side > 0 else min(values)
    return sorted(end * factor ** (side * k) for k in range(1, AT_ONCE + 1))


def untuned(first: float, second: float) -> Tuned:
    """Numbers that nobody has tried."""
    return Tuned(Trial(first, second, float("inf")), (), 0, at_edge=False)


def tuned(method: Method, losses: Callable[[list[float], list[float]], Sequence[float]]) -> Tuned:
    """Tries the grid, and widens it until the best first number is inside.

    Args:
        method: Whose numbers they are.
        losses: The losses of trials with these first and second numbers.
    """
    _, least, factor = method.first
    trials: list[Trial] = []

    def tried(values: list[float]) -> None:
        pairs = [(a, b) for a in values for b in method.second[1]]
        found = losses([a for a, _ in pairs], [b for _, b in pairs])
        for (a, b), loss in zip(pairs, found, strict=True):
            trials.append(Trial(a, b, float(loss) if np.isfinite(loss) else float("inf")))

    for call in range(CALLS):
        tried([least * factor**k for k in range(call * AT_ONCE, (call + 1) * AT_ONCE)])
    planned = len(trials)
    for _ in range(MOST_CALLS - CALLS):
        side = edge(trials)
        if not side:
            break
        tried(further([trial.first for trial in trials], factor, side))
    return Tuned(best_of(trials), tuple(trials), len(trials) - planned, bool(edge(trials)))
