"""The comparison on equations at tiny sizes; for figures there is `python -m benchmarks pinns`."""

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

SMOKE = {"burgers": ["gauss_newton", "scipy_lbfgs", "adam"]}  # one of each way to make a step


def run(settings: Settings) -> Iterator[Metric]:
    """Tunes and trains; the share of the problems that got a result."""
    if not settings.smoke:
        raise Skipped("it has a command of its own: python -m benchmarks pinns")
    with tempfile.TemporaryDirectory() as folder:
        done = [smoke(EQUATIONS[name](), Path(folder), m) for name, m in SMOKE.items()]
        record = merged(Path(folder), [*SMOKE])
    print(printed(record))
    yield Metric("problems that ran", sum(done) / len(SMOKE), "x all", "higher")
