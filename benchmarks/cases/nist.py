"""Count solved regressions of NIST StRD, for fnopt, optimistix, SciPy and jaxopt.

The 27 data sets have two initial guesses each. A fit is solved if the least accurate parameter has
six correct digits in float64, or three in float32 (`log_relative_error`, which accepts permuted
terms). The environment variable `FNOPT_NIST_STRD` is the folder of the data files.
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
    """Convert a data set to a `Task`, with the data as arguments, which XLA can't fold."""
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
    """Run all solvers in float64, and the solvers with `float32` in float32."""
    if nist.folder() is None:
        raise Skipped(nist.WHERE)
    tasks = [task(name) for name in (A_FEW if settings.smoke else nist.MODELS)]
    for dtype in DIGITS:
        solvers = [f for f in fitters(settings) if f.float32 or dtype == "float64"]
        results = outcomes(tasks, solvers, dtype)
        print_failures(results, dtype)
        yield from figures(results, dtype)
