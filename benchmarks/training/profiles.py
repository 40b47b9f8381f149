"""Cost to reach a loss, and performance profiles over tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

NEVER = float("inf")


def cost_to(target: float, costs: Sequence[float], losses: Sequence[float]) -> float:
    """Return the cost of the first reading with a loss at or below the target; inf if none.

    Non-finite losses are above every target, and readings aren't interpolated.
    """
    for cost, loss in zip(costs, losses, strict=True):
        if loss <= target:
            return cost
    return NEVER


def middle(values: Sequence[float]) -> float:
    """Return the median, with NaN as infinity."""
    ordered = sorted(NEVER if np.isnan(v) else v for v in values)
    half = len(ordered) // 2
    low, high = ordered[(len(ordered) - 1) // 2], ordered[half]
    return low if low == high else (low + high) / 2


def factors(costs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the cost relative to the best method of the task, keyed by method and task.

    Args:
        costs: Costs keyed by task and method; a method that didn't run on a task is absent.
    """
    ratios: dict[str, dict[str, float]] = {}
    for task, by_method in costs.items():
        best = min(by_method.values(), default=NEVER)
        for method, cost in by_method.items():
            ratios.setdefault(method, {})[task] = cost / best if np.isfinite(cost) else NEVER
    return ratios


def share_within(factor: float, ratios: Mapping[str, float]) -> float:
    """Return the fraction of tasks on which the relative cost is at most `factor`."""
    return float(np.mean([ratio <= factor for ratio in ratios.values()])) if ratios else 0.0


def profile(ratios: Mapping[str, float], upto: float) -> tuple[list[float], list[float]]:
    """Return the points of the step function `share_within` between 1 and `upto`."""
    ends = sorted(r for r in ratios.values() if r <= upto)
    x = [1.0, *ends, upto]
    return x, [share_within(factor, ratios) for factor in x]
