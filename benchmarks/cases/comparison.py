"""Test the training comparison at tiny sizes; `python -m benchmarks training` measures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.metric import Metric, Skipped
from benchmarks.timing import Settings
from benchmarks.training.record import merged
from benchmarks.training.session import compare
from benchmarks.training.tables import printed

# AdamW, the reference of the comparison, and one method of each kind.
SMOKE = {
    "digits_mlp": ["adamw", "soap"],
    "pinn": ["adamw", "gauss_newton"],
}


def run(settings: Settings) -> Iterator[Metric]:
    """Tune and train; return the fraction of tasks with a result."""
    if not settings.smoke:
        raise Skipped("run the separate command instead: python -m benchmarks training")
    with tempfile.TemporaryDirectory() as folder:
        missing = compare([*SMOKE], Path(folder), smoke=True, methods=SMOKE.get, seeds=1)
        record = merged(Path(folder), SMOKE)
    assert not missing
    print(printed(record))
    yield Metric("tasks that ran", len(record.tasks) / len(SMOKE), "x all", "higher")
