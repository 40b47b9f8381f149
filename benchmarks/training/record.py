"""Record of all sessions in one compact file, and statistics of the record."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import recorded
from benchmarks.training.profiles import NEVER, cost_to, factors, middle

RECORD = Path(__file__).parent.parent / "training.json"
BASELINE = "adamw"  # the final loss of this method is the target of all methods
SHORT = "adamw_fifth"  # the baseline with a fifth of the steps, which isn't ranked
AXES = ("steps", "FLOPs", "seconds")


class Record(NamedTuple):
    """Records of the sessions, keyed by task."""

    tasks: dict[str, dict[str, Any]]

    def text(self) -> str:
        """Format the record as JSON with one line for each run."""
        return recorded.text(self.tasks) + "\n"

    def methods(self, task: str) -> list[str]:
        """Return the methods that ran with all seeds or all seeds but one."""
        methods = self.tasks[task]["methods"]
        seeds = max((len(m["runs"]) for m in methods.values()), default=0)
        complete = {name for name, m in methods.items() if len(m["runs"]) >= max(seeds - 1, 1)}
        return [name for name in methods if name in complete and "flops" in methods[name]]

    def runs(self, task: str, method: str) -> list[dict[str, Any]]:
        """Return the runs of a method, one for each seed."""
        return list(self.tasks[task]["methods"][method]["runs"].values())

    def final(self, task: str, method: str, which: str = "train") -> list[float]:
        """Return the final loss of each seed."""
        return [_number(run[which][-1]) for run in self.runs(task, method)]

    def per_step(self, task: str, method: str, axis: str) -> float:
        """Return 1, the FLOPs, or the median CPU seconds of one step."""
        if axis == "steps":
            return 1.0
        if axis == "FLOPs":
            return self.tasks[task]["methods"][method]["flops"]
        seconds = [run["cpu_seconds"] / run["steps"][-1] for run in self.runs(task, method)]
        return middle(seconds)

    def target(self, task: str) -> float:
        """Return the median final training loss of tuned AdamW."""
        return middle(self.final(task, BASELINE))

    def to_target(self, task: str, method: str, axis: str) -> float:
        """Return the median cost to reach the target; inf if most seeds don't reach it."""
        each, target = self.per_step(task, method, axis), self.target(task)
        costs = [
            cost_to(target, [each * s for s in run["steps"]], [*map(_number, run["train"])])
            for run in self.runs(task, method)
        ]
        return middle(costs)

    def costs(self, axis: str) -> dict[str, dict[str, float]]:
        """Return the cost to reach the target, keyed by task and method."""
        return {
            task: {
                method: self.to_target(task, method, axis)
                for method in self.methods(task)
                if method != SHORT
            }
            for task in self.tasks
        }

    def factors(self, axis: str) -> dict[str, dict[str, float]]:
        """Return relative costs of the methods that ran on more than half of the tasks."""
        methods = factors(self.costs(axis))
        return {m: ratios for m, ratios in methods.items() if 2 * len(ratios) > len(self.tasks)}

    def relative(self, task: str, method: str, axis: str) -> float:
        """Return the cost to reach the target, relative to AdamW's whole training run."""
        baseline = self.per_step(task, BASELINE, axis) * self.tasks[task]["steps"]
        return self.to_target(task, method, axis) / baseline

    def warnings(self) -> list[str]:
        """List the methods whose best hyper-parameter is the smallest or largest of its trials."""
        return [
            f"{task}: the best {m['tuning']['first']} of {name} is at the edge of its grid"
            for task, entry in self.tasks.items()
            for name, m in entry["methods"].items()
            if m.get("tuning", {}).get("at_edge")
        ]


def _number(value: float | None) -> float:
    return NEVER if value is None else value


def read(file: Path = RECORD) -> Record:
    """Read a record, by default the committed record."""
    return Record(json.loads(file.read_text()))


def merged(folder: Path, tasks: Iterable[str]) -> Record:
    """Merge the records of the tasks in a folder."""
    return Record(recorded.of_folder(folder, tasks, "task"))
