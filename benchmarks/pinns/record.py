"""The record: what all sessions found, in one compact file, and what is read from it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import recorded

RECORD = Path(__file__).parent.parent / "pinns.json"


class Record(NamedTuple):
    """By problem, what a session keeps."""

    problems: dict[str, dict[str, Any]]

    def text(self) -> str:
        """JSON: a line for each run."""
        return recorded.text(self.problems) + "\n"

    def methods(self, problem: str) -> list[str]:
        """Those that have all runs."""
        methods = self.problems[problem]["methods"]
        most = max((len(m["runs"]) for m in methods.values()), default=0)
        return [name for name, m in methods.items() if len(m["runs"]) == max(most, 1)]

    def runs(self, problem: str, method: str) -> list[dict[str, Any]]:
        """One for each seed."""
        return list(self.problems[problem]["methods"][method]["runs"].values())

    def ends(self, problem: str, method: str) -> list[float]:
        """The errors when the seconds are spent, a number for each seed."""
        return [_number(run["errors"][-1]) for run in self.runs(problem, method)]

    def final(self, problem: str, method: str) -> float:
        """Their median."""
        return median(self.ends(problem, method))

    def steps(self, problem: str, method: str) -> float:
        """How many steps fit into the seconds, the median of the seeds."""
        return median(run["steps"][-1] for run in self.runs(problem, method))

    def curve(self, problem: str, method: str, axis: str) -> tuple[list[float], list[float]]:
        """Steps or seconds, and errors: of each reading the medians of the seeds."""
        runs = self.runs(problem, method)
        size = min(len(run["errors"]) for run in runs)
        by_reading = [[_number(run["errors"][k]) for run in runs] for k in range(-size, 0)]
        where = [[run[axis][k] for run in runs] for k in range(-size, 0)]
        return [median(v) for v in where], [median(v) for v in by_reading]

    def below(self, problem: str, method: str, others: tuple[str, ...]) -> float:
        """How many times the error lies below the best of others, by the medians of the seeds."""
        best = min(self.final(problem, other) for other in others)
        return best / self.final(problem, method)


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def read(file: Path = RECORD) -> Record:
    """The committed record, or another."""
    return Record(json.loads(file.read_text()))


def merged(folder: Path, problems: list[str]) -> Record:
    """The record of the problems that a folder has, in this order."""
    return Record(recorded.of_folder(folder, problems, "problem"))
