"""The problems of Moré, Garbow and Hillstrom: starts solved, against optimistix, SciPy and jaxopt.

35 problems, some in several sizes, from the standard start and from 10 and 100 times it. Solved
means that the sum of squares, computed in float64 at the params that were returned, is the global
minimum to the digits that the paper prints. A known local minimum, or an infimum at infinity, is
counted apart: where one ends up far from the solution is luck rather than merit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.fitters import fitters
from benchmarks.metric import Metric
from benchmarks.problems.mgh import PROBLEMS, Problem, outcome
from benchmarks.reliability import Task, Verdict, figures, outcomes, print_failures
from benchmarks.timing import Settings

A_FEW = ("watson6",)


def task(problem: Problem) -> Task:
    """A problem without data."""

    def residuals(params: Any, data: Any) -> Any:
        del data
        return problem.residuals(params)

    def verdict(params: np.ndarray, dtype: str) -> Verdict:
        with jax.enable_x64(True):
            r = np.asarray(problem.residuals(jnp.asarray(params)))
        found = float(r @ r)
        return Verdict(outcome(problem, found, dtype), found)

    return Task(problem.name, residuals, (), problem.starts(), verdict)


def run(settings: Settings) -> Iterator[Metric]:
    """All solvers in float64, and in float32 those that it is worth it for."""
    tasks = [task(p) for p in PROBLEMS if not settings.smoke or p.name in A_FEW]
    for dtype in ("float64", "float32"):
        chosen = [f for f in fitters(settings) if f.float32 or dtype == "float64"]
        found = outcomes(tasks, chosen, dtype)
        print_failures(found, dtype)
        yield from figures(found, dtype)
