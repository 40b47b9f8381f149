"""NIST StRD nonlinear regression: starts solved, against optimistix, SciPy and jaxopt.

27 data sets with two starts each. Solved means 6 digits of the worst parameter in float64, 3 in
float32 (`log_relative_error`; a relabeled copy of the fit counts). The data are found through the
environment variable `FNOPT_NIST_STRD`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.fitters import fitters
from benchmarks.metric import Metric, Skipped
from benchmarks.problems import nist
from benchmarks.reliability import Task, Verdict, figures, outcomes, print_failures
from benchmarks.timing import Settings

DIGITS = {"float64": 6, "float32": 3}
A_FEW = ("Misra1a",)


def task(name: str) -> Task:
    """A data set; the model's data are arguments, so that nothing is folded away."""
    problem = nist.load(name)

    def verdict(params: np.ndarray, dtype: str) -> Verdict:
        digits = nist.log_relative_error(problem, params)
        return Verdict("solved" if digits >= DIGITS[dtype] else "too few digits", digits)

    starts = {str(k + 1): start for k, start in enumerate(problem.starts)}
    return Task(
        name,
        lambda b, data: problem.model(b, data[0]) - data[1],
        (problem.x, problem.y),
        starts,
        verdict,
    )


def run(settings: Settings) -> Iterator[Metric]:
    """All solvers in float64, and in float32 those that it is worth it for."""
    if nist.folder() is None:
        raise Skipped(nist.WHERE)
    tasks = [task(name) for name in (A_FEW if settings.smoke else nist.MODELS)]
    for dtype in DIGITS:
        chosen = [f for f in fitters(settings) if f.float32 or dtype == "float64"]
        found = outcomes(tasks, chosen, dtype)
        print_failures(found, dtype)
        yield from figures(found, dtype)
