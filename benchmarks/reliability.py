"""Runs solvers on collections of problems and counts what they solve, and at what cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.fitters import Fit, Fitter, Residuals
from benchmarks.metric import Metric


class Verdict(NamedTuple):
    """What is said of the params at the end of a fit."""

    text: str  # "solved", or how it failed
    figure: float  # that it was judged by: digits, say, or a cost


class Task(NamedTuple):
    """A problem of a collection: one compilation, several starts."""

    name: str
    residuals: Residuals
    data: Any  # a tree of float64 arrays
    starts: dict[str, np.ndarray]  # by a name for the table
    verdict: Callable[[np.ndarray, str], Verdict]  # of params and dtype


class Outcome(NamedTuple):
    """How a solver did from one start."""

    start: str
    verdict: Verdict
    evaluations: int
    seconds: int  # derivatives r'' along a step
    converged: bool
    flagged: bool

    @property
    def solved(self) -> bool:
        """Whether the params are right."""
        return self.verdict.text == "solved"

    @property
    def misled(self) -> bool:
        """Whether the solver reports convergence where there is no minimum."""
        return self.converged and self.verdict.text not in ("solved", "local minimum")


Outcomes = dict[str, list[Outcome]]
"""By solver, with its settings."""


def outcomes(tasks: list[Task], fitters: list[Fitter], dtype: str) -> Outcomes:
    """Every solver on every task; prints how far it is."""
    found: Outcomes = {}
    # optimistix needs x64 off for float32.
    with jax.enable_x64(dtype == "float64"):
        for fitter in fitters:
            began = time.perf_counter()
            for task in tasks:
                _run(task, fitter, dtype, found)
            print(f"  {dtype}, {fitter.name}: {time.perf_counter() - began:.0f} s", flush=True)
    return found


def _run(task: Task, fitter: Fitter, dtype: str, found: Outcomes) -> None:
    data = jax.tree.map(lambda a: jnp.asarray(a, dtype), task.data)
    for name, fit in fitter.make(task.residuals).items():
        for label, start in task.starts.items():
            end = fit(jnp.asarray(start, dtype), data)
            outcome = _judged(task, label, end, dtype)
            found.setdefault(name, []).append(outcome)


def _judged(task: Task, label: str, end: Fit, dtype: str) -> Outcome:
    finite = bool(np.all(np.isfinite(end.params)))
    verdict = task.verdict(end.params, dtype) if finite else Verdict("not finite", np.nan)
    return Outcome(
        f"{task.name} {label}",
        verdict,
        end.evaluations,
        end.seconds,
        end.converged,
        end.flagged,
    )


def figures(found: Outcomes, dtype: str, ours: str = "fnopt") -> Iterator[Metric]:
    """A line a solver: how many starts it solves, and its evaluations against ours.

    The ratio of evaluations is over the starts that both solve, so that nobody is held to the
    starts that the other one gives up early.
    """
    for name, runs in found.items():
        both = [(a, b) for a, b in zip(found[ours], runs, strict=True) if a.solved and b.solved]
        spent = sum(b.evaluations for _, b in both) / max(1, sum(a.evaluations for a, _ in both))
        detail = {
            "evaluations": sum(run.evaluations for run in runs),
            "second_derivatives": sum(run.seconds for run in runs),
            "where_both_solve_x_ours": spent,
            "false": sum(run.misled and not run.flagged for run in runs),
            "false_but_flagged": sum(run.misled and run.flagged for run in runs),
        }
        for text in sorted({run.verdict.text for run in runs if not run.solved}):
            detail[text.replace(" ", "_")] = sum(run.verdict.text == text for run in runs)
        yield Metric(
            f"{dtype}, {name}",
            sum(run.solved for run in runs),
            f"of {len(runs)} solved",
            direction="higher",
            tolerance=0.0 if name == ours else float("inf"),
            detail=detail,
        )


def print_failures(found: Outcomes, dtype: str) -> None:
    """Which starts were not solved, and what came instead."""
    for name, runs in found.items():
        missed = [
            f"{run.start} ({run.verdict.text}, {run.verdict.figure:.6g})"
            for run in runs
            if not run.solved
        ]
        if missed:
            print(f"  {dtype}, {name} misses: {', '.join(missed)}")
