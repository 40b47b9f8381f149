"""Record of all sessions in one compact file, and statistics of the record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import recorded

RECORD = Path(__file__).parent.parent / "pinns.json"


class Record(NamedTuple):
    """Records of the sessions, keyed by problem."""

    problems: dict[str, dict[str, Any]]

    def text(self) -> str:
        """Format the record as JSON with one line for each run."""
        return recorded.text(self.problems) + "\n"

    def methods(self, problem: str) -> list[str]:
        """Return the methods that ran with all seeds."""
        methods = self.problems[problem]["methods"]
        seeds = max((len(m["runs"]) for m in methods.values()), default=0)
        return [name for name, m in methods.items() if len(m["runs"]) == max(seeds, 1)]

    def runs(self, problem: str, method: str) -> list[dict[str, Any]]:
        """Return the runs of a method, one for each seed."""
        return list(self.problems[problem]["methods"][method]["runs"].values())

    def ends(self, problem: str, method: str) -> list[float]:
        """Return the final error of each seed."""
        return [_number(run["errors"][-1]) for run in self.runs(problem, method)]

    def final(self, problem: str, method: str) -> float:
        """Return the median final error."""
        return median(self.ends(problem, method))

    def steps(self, problem: str, method: str) -> float:
        """Return the median number of steps within the time budget."""
        return median(run["steps"][-1] for run in self.runs(problem, method))

    def curve(self, problem: str, method: str, axis: str) -> tuple[list[float], list[float]]:
        """Return the medians over seeds of steps or seconds, and of errors, for each reading."""
        runs = self.runs(problem, method)
        size = min(len(run["errors"]) for run in runs)
        errors = [[_number(run["errors"][k]) for run in runs] for k in range(-size, 0)]
        positions = [[run[axis][k] for run in runs] for k in range(-size, 0)]
        return [median(v) for v in positions], [median(v) for v in errors]

    def below(self, problem: str, method: str, others: tuple[str, ...]) -> float:
        """Return the lowest median error of other methods divided by the method's median error."""
        best = min(self.final(problem, other) for other in others)
        return best / self.final(problem, method)


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def read(file: Path = RECORD) -> Record:
    """Read a record, by default the committed record."""
    return Record(json.loads(file.read_text()))


def merged(folder: Path, problems: list[str]) -> Record:
    """Merge the records of the problems in a folder."""
    return Record(recorded.of_folder(folder, problems, "problem"))
