"""The record: what all sessions found, in one compact file, and what is read from it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import recorded
from benchmarks.training.profiles import NEVER, cost_to, factors, middle

RECORD = Path(__file__).parent.parent / "training.json"
BASELINE = "adamw"  # whose final loss is the target of the others
SHORT = "adamw_fifth"  # the same with a fifth of the steps: shown, but not ranked
AXES = ("steps", "FLOPs", "seconds")


class Record(NamedTuple):
    """By task, what a session keeps."""

    tasks: dict[str, dict[str, Any]]

    def text(self) -> str:
        """JSON: a line for each run."""
        return recorded.text(self.tasks) + "\n"

    def methods(self, task: str) -> list[str]:
        """Those that have all runs, or all but one."""
        methods = self.tasks[task]["methods"]
        most = max((len(m["runs"]) for m in methods.values()), default=0)
        done = {name for name, m in methods.items() if len(m["runs"]) >= max(most - 1, 1)}
        return [name for name in methods if name in done and "flops" in methods[name]]

    def runs(self, task: str, method: str) -> list[dict[str, Any]]:
        """One for each seed."""
        return list(self.tasks[task]["methods"][method]["runs"].values())

    def final(self, task: str, method: str, which: str = "train") -> list[float]:
        """The losses at the end of training, a number for each seed."""
        return [_number(run[which][-1]) for run in self.runs(task, method)]

    def per_step(self, task: str, method: str, axis: str) -> float:
        """Steps, FLOPs or seconds of CPU of one step; of seconds the median over the runs."""
        if axis == "steps":
            return 1.0
        if axis == "FLOPs":
            return self.tasks[task]["methods"][method]["flops"]
        seconds = [run["cpu_seconds"] / run["steps"][-1] for run in self.runs(task, method)]
        return middle(seconds)

    def target(self, task: str) -> float:
        """The median final training loss of tuned AdamW."""
        return middle(self.final(task, BASELINE))

    def to_target(self, task: str, method: str, axis: str) -> float:
        """The median over the seeds of what it costs to get to the target; inf: more do not."""
        each, target = self.per_step(task, method, axis), self.target(task)
        found = [
            cost_to(target, [each * s for s in run["steps"]], [*map(_number, run["train"])])
            for run in self.runs(task, method)
        ]
        return middle(found)

    def costs(self, axis: str) -> dict[str, dict[str, float]]:
        """By task and method, what the target costs."""
        return {
            task: {
                method: self.to_target(task, method, axis)
                for method in self.methods(task)
                if method != SHORT
            }
            for task in self.tasks
        }

    def factors(self, axis: str) -> dict[str, dict[str, float]]:
        """Of the methods that ran on more than half of the tasks, the costs over the best's."""
        found = factors(self.costs(axis))
        return {m: of_tasks for m, of_tasks in found.items() if 2 * len(of_tasks) > len(self.tasks)}

    def relative(self, task: str, method: str, axis: str) -> float:
        """What the target costs, over what AdamW's whole training costs."""
        whole = self.per_step(task, BASELINE, axis) * self.tasks[task]["steps"]
        return self.to_target(task, method, axis) / whole

    def warnings(self) -> list[str]:
        """Methods whose best number was at the end of what was tried."""
        return [
            f"{task}: the best {m['tuning']['first']} of {name} is at the end of its grid"
            for task, entry in self.tasks.items()
            for name, m in entry["methods"].items()
            if m.get("tuning", {}).get("at_edge")
        ]


def _number(value: float | None) -> float:
    return NEVER if value is None else value


def read(file: Path = RECORD) -> Record:
    """The committed record, or another."""
    return Record(json.loads(file.read_text()))


def merged(folder: Path, tasks: Iterable[str]) -> Record:
    """The record of the tasks that a folder has, in this order."""
    return Record(recorded.of_folder(folder, tasks, "task"))
