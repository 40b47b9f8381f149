"""A comparison of methods on one problem: tuned, run with every seed, kept in a file meanwhile."""

from __future__ import annotations

import abc
import datetime
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import report

Entry = dict[str, Any]


class Session(abc.ABC):
    """The state of a problem's comparison, on disk after every piece of it.

    Args:
        file: Where it is kept; what stands there already isn't done again.
        about: What the file says of the problem.
        methods: What is compared; each has a `name`.
        deadline: Of `time.monotonic`: nothing new is begun after it.
    """

    TUNED: ClassVar[str]  # the key of an entry whose method is tuned

    def __init__(self, file: Path, about: Entry, methods: Sequence[Any], deadline: float) -> None:
        self.file, self.methods, self.deadline = file, methods, deadline
        self.kept: Entry = kept(file)
        self.kept.setdefault("methods", {})
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        self.kept |= about | {"date": today}

    @abc.abstractmethod
    def tune(self, method: Any, entry: Entry) -> None:
        """Finds a method's rates."""

    @abc.abstractmethod
    def train(self, method: Any, entry: Entry, seed: int) -> Entry:
        """Runs a method with one seed; returns what is kept of the run."""

    def seen(self, seed: int) -> None:
        """Called when all methods have run with a seed."""
        del seed

    def run(self, seeds: int) -> bool:
        """Whether all is done."""
        return self._tune() and all(self._round(seed) for seed in range(seeds))

    def entry(self, method: Any) -> Entry:
        """What is kept of a method."""
        return self.kept["methods"].setdefault(method.name, {"runs": {}})

    def save(self) -> None:
        """Writes the file."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.kept, indent=1) + "\n")

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def _tune(self) -> bool:
        for method in self.methods:
            entry = self.entry(method)
            if self.TUNED in entry:
                continue
            if self._late():
                return False
            self.tune(method, entry)
            self.save()
        return True

    def _round(self, seed: int) -> bool:
        """All methods with one seed, one after the other: the machine is alike for all of them."""
        for method in self.methods[:: 1 if seed % 2 == 0 else -1]:
            entry = self.entry(method)
            if str(seed) in entry["runs"]:
                continue
            if self._late():
                return False
            entry["runs"][str(seed)] = self.train(method, entry, seed)
            self.save()
        self.seen(seed)
        return True


def kept(file: Path) -> Entry:
    """What a file of an earlier session says; nothing if there is none."""
    return json.loads(file.read_text()) if file.exists() else {}


def machine(versions: dict[str, str]) -> Entry:
    """The machine, and the versions of what is compared."""
    return report.machine() | {"versions": versions}


def short(value: float) -> float | None:
    """Four digits; None where JSON has no number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
