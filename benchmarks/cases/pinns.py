"""Test the comparison on equations at tiny sizes; `python -m benchmarks pinns` measures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.metric import Metric, Skipped
from benchmarks.pinns.equations import EQUATIONS
from benchmarks.pinns.record import merged
from benchmarks.pinns.session import smoke
from benchmarks.pinns.tables import printed
from benchmarks.timing import Settings

SMOKE = {"burgers": ["gauss_newton", "scipy_lbfgs", "adam"]}  # one method of each kind


def run(settings: Settings) -> Iterator[Metric]:
    """Tune and train; return the fraction of problems with a result."""
    if not settings.smoke:
        raise Skipped("run the separate command instead: python -m benchmarks pinns")
    with tempfile.TemporaryDirectory() as folder:
        successes = [smoke(EQUATIONS[name](), Path(folder), m) for name, m in SMOKE.items()]
        record = merged(Path(folder), [*SMOKE])
    print(printed(record))
    yield Metric("problems that ran", sum(successes) / len(SMOKE), "x all", "higher")
