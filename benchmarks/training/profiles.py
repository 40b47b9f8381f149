"""What a loss costs, and in which share of the tasks a method is within a factor of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

NEVER = float("inf")


def cost_to(target: float, costs: Sequence[float], losses: Sequence[float]) -> float:
    """The cost of the first reading at or below a target; inf if there is none.

    A loss that isn't finite never counts, and nothing is interpolated.
    """
    for cost, loss in zip(costs, losses, strict=True):
        if loss <= target:
            return cost
    return NEVER


def middle(values: Sequence[float]) -> float:
    """The median, inf if one of the two in the middle is; what is no number counts as inf."""
    ordered = sorted(NEVER if np.isnan(v) else v for v in values)
    half = len(ordered) // 2
    low, high = ordered[(len(ordered) - 1) // 2], ordered[half]
    return low if low == high else (low + high) / 2


def factors(costs: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """By method and task, the cost over that of the best method on the task.

    Args:
        costs: By task and method. A method that isn't there doesn't have that task at all.
    """
    found: dict[str, dict[str, float]] = {}
    for task, by_method in costs.items():
        best = min(by_method.values(), default=NEVER)
        for method, cost in by_method.items():
            found.setdefault(method, {})[task] = cost / best if np.isfinite(cost) else NEVER
    return found


def share_within(factor: float, of_tasks: Mapping[str, float]) -> float:
    """The share of the tasks on which a method is within a factor of the best."""
    return float(np.mean([ratio <= factor for ratio in of_tasks.values()])) if of_tasks else 0.0


def profile(of_tasks: Mapping[str, float], upto: float) -> tuple[list[float], list[float]]:
    """The steps of `share_within` from 1 to a factor, as points of a line."""
    ends = sorted(r for r in of_tasks.values() if r <= upto)
    x = [1.0, *ends, upto]
    return x, [share_within(at, of_tasks) for at in x]
