"""Count solved problems of Moré, Garbow and Hillstrom, for fnopt, optimistix, SciPy and jaxopt.

The 35 problems, some in several sizes, start from the standard initial guess and from 10 and 100
times this guess. A fit is solved if the sum of squares, computed in float64 at the returned params,
is the global minimum to the digits that the paper prints. Known local minima and infima at infinity
are counted separately, because rounding errors decide which minimum a distant guess leads to.
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
    """Convert a problem to a `Task` without data."""

    def residuals(params: Any, data: Any) -> Any:
        del data
        return problem.residuals(params)

    def verdict(params: np.ndarray, dtype: str) -> Verdict:
        with jax.enable_x64(True):
            r = np.asarray(problem.residuals(jnp.asarray(params)))
        total = float(r @ r)
        return Verdict(outcome(problem, total, dtype), total)

    return Task(problem.name, residuals, (), problem.starts(), verdict)


def run(settings: Settings) -> Iterator[Metric]:
    """Run all solvers in float64, and the solvers with `float32` in float32."""
    tasks = [task(p) for p in PROBLEMS if not settings.smoke or p.name in A_FEW]
    for dtype in ("float64", "float32"):
        solvers = [f for f in fitters(settings) if f.float32 or dtype == "float64"]
        results = outcomes(tasks, solvers, dtype)
        print_failures(results, dtype)
        yield from figures(results, dtype)
