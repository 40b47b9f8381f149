"""Run solvers on collections of problems, and count solved problems and evaluations."""

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
    """Judgment of a solution."""

    text: str  # "solved", or the kind of failure
    figure: float  # criterion, such as correct digits or a cost


class Task(NamedTuple):
    """A problem with several initial guesses, compiled once."""

    name: str
    residuals: Residuals
    data: Any  # a tree of float64 arrays
    starts: dict[str, np.ndarray]  # initial guesses, keyed by labels for the table
    verdict: Callable[[np.ndarray, str], Verdict]  # function of params and dtype


class Outcome(NamedTuple):
    """Result of a solver from one initial guess."""

    start: str
    verdict: Verdict
    evaluations: int
    seconds: int  # number of second derivatives r'' along a step
    converged: bool
    flagged: bool

    @property
    def solved(self) -> bool:
        """Whether the solution is correct."""
        return self.verdict.text == "solved"

    @property
    def misled(self) -> bool:
        """Whether the solver reports convergence at a point that isn't a minimum."""
        return self.converged and self.verdict.text not in ("solved", "local minimum")


Outcomes = dict[str, list[Outcome]]
"""Outcomes keyed by the name of the solver with its settings."""


def outcomes(tasks: list[Task], fitters: list[Fitter], dtype: str) -> Outcomes:
    """Run every solver on every task, and print the progress."""
    results: Outcomes = {}
    # optimistix computes in float32 only if x64 is off.
    with jax.enable_x64(dtype == "float64"):
        for fitter in fitters:
            start = time.perf_counter()
            for task in tasks:
                _run(task, fitter, dtype, results)
            print(f"  {dtype}, {fitter.name}: {time.perf_counter() - start:.0f} s", flush=True)
    return results


def _run(task: Task, fitter: Fitter, dtype: str, results: Outcomes) -> None:
    data = jax.tree.map(lambda a: jnp.asarray(a, dtype), task.data)
    for name, fit in fitter.make(task.residuals).items():
        for label, start in task.starts.items():
            end = fit(jnp.asarray(start, dtype), data)
            outcome = _judge(task, label, end, dtype)
            results.setdefault(name, []).append(outcome)


def _judge(task: Task, label: str, end: Fit, dtype: str) -> Outcome:
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


def figures(results: Outcomes, dtype: str, ours: str = "fnopt") -> Iterator[Metric]:
    """Yield for each solver the number of solved fits, and evaluations relative to fnopt.

    The ratio of evaluations counts only the fits that both solvers solve, because a solver that
    gives up early takes few evaluations.
    """
    for name, runs in results.items():
        pairs = [(a, b) for a, b in zip(results[ours], runs, strict=True) if a.solved and b.solved]
        relative = sum(b.evaluations for _, b in pairs) / max(
            1, sum(a.evaluations for a, _ in pairs)
        )
        detail = {
            "evaluations": sum(run.evaluations for run in runs),
            "second_derivatives": sum(run.seconds for run in runs),
            "where_both_solve_x_ours": relative,
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


def print_failures(results: Outcomes, dtype: str) -> None:
    """Print the unsolved fits and their judgments."""
    for name, runs in results.items():
        missed = [
            f"{run.start} ({run.verdict.text}, {run.verdict.figure:.6g})"
            for run in runs
            if not run.solved
        ]
        if missed:
            print(f"  {dtype}, {name} misses: {', '.join(missed)}")
