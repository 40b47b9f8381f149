"""Format the validation record as Markdown tables, with a significance test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.training.space import BASELINES
from benchmarks.training.tables import markdown_table
from benchmarks.training.validation import STUDIES, TARGET, TRIALS

LEVEL = 0.99  # level of the one-sided test

Entry = dict[str, Any]


def curves(runs: dict[str, Entry]) -> np.ndarray:
    """Return validation losses `[seeds, readings]`, infinite for missing values."""
    losses = [[math.inf if x is None else x for x in run["loss"]] for run in runs.values()]
    return np.asarray(losses)


def lowest(losses: np.ndarray) -> tuple[int, float, float]:
    """Return the reading with the lowest mean loss, the mean, and the standard deviation."""
    i = int(np.argmin(np.mean(losses, axis=0)))
    with np.errstate(invalid="ignore"):  # losses may be infinite
        return i, float(np.mean(losses[:, i])), float(np.std(losses[:, i], ddof=1))


def margin(losses: np.ndarray, target: np.ndarray) -> float:
    """Return Welch's statistic: `target - mean` divided by the standard error of the difference."""
    (_, mean, spread), (_, goal, noise) = lowest(losses), lowest(target)
    error = math.sqrt(spread**2 / len(losses) + noise**2 / len(target))
    return (goal - mean) / error if math.isfinite(mean) and error else math.nan


def verdict(losses: np.ndarray, target: np.ndarray) -> str:
    """Return whether the mean is significantly below or above the target, or level with it."""
    # The smaller sample bounds Welch's degrees of freedom from below, so the test is conservative.
    bound = student.ppf(LEVEL, min(len(losses), len(target)) - 1)
    statistic = margin(losses, target)
    return "below" if statistic > bound else "above" if not statistic >= -bound else "level"


def reached(losses: np.ndarray, goal: float) -> int | None:
    """Return the first reading whose mean loss is at or below the target."""
    below = np.flatnonzero(np.mean(losses, axis=0) <= goal)
    return int(below[0]) if len(below) else None


def target_runs(task: Entry) -> tuple[str, dict[str, Entry]]:
    """Return the baseline whose runs have the lowest mean loss, and these runs.

    One seed selected the best trial, so another trial may be better for the other seeds.
    """
    best = task[TARGET]
    candidates = [(b, task["methods"][b]["runs"]) for b in BASELINES]
    candidates.append((best["method"], best["runs"]))
    return min(candidates, key=lambda pair: lowest(curves(pair[1]))[1])


def task_table(task: Entry) -> str:
    """Table with one row per method, sorted by steps to the target."""
    baseline, runs = target_runs(task)
    target, methods = curves(runs), task["methods"]
    goal, rows = lowest(target)[1], []
    for name, entry in methods.items():
        losses = curves(entry["runs"])
        i = reached(losses, goal)
        steps = math.inf if i is None else (i + 1) * task["every"]
        flops = steps / task["steps"] * entry["flops"] / methods[baseline]["flops"]
        _, mean, spread = lowest(losses)
        row = [
            f"`{name}`",
            "never" if i is None else f"{steps}",
            "never" if i is None else f"{flops:.2f}",
            f"{mean:.4g} ± {spread:.2g}",
            verdict(losses, target),
            _spread_of_studies(entry),
        ]
        rows.append((steps, mean, row))
    head = ["", "steps", "FLOPs", "lowest mean loss", "target", "best of each study, tuning seed"]
    return markdown_table(head, [row for _, _, row in sorted(rows, key=lambda r: r[:2])])


def _spread_of_studies(entry: Entry) -> str:
    losses = [math.inf if x is None else x for x in entry["trials"]]
    best = sorted(min(losses[TRIALS * k : TRIALS * (k + 1)]) for k in range(STUDIES))
    return " / ".join(f"{x:.3g}" for x in best)


def summary(task: Entry) -> str:
    """Describe the task and its target."""
    name, runs = target_runs(task)
    i, goal, spread = lowest(curves(runs))
    return (
        f"**{task['title']}**: {task['params']:,} parameters, {task['steps']} steps, "
        f"{task['loss']}, {len(runs)} seeds. The target is {goal:.4g} ± {spread:.2g}, by `{name}` "
        f"at step {(i + 1) * task['every']}."
    )


def tables(record: dict[str, Entry]) -> str:
    """Return the tables of all tasks that have a target."""
    complete = [task for task in record.values() if TARGET in task]
    return "\n\n".join(f"{summary(task)}\n\n{task_table(task)}" for task in complete)
