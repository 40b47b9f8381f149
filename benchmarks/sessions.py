"""Base class of comparisons of methods on one problem, with tuning, seeds and a record file."""

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
    """A comparison on one problem, whose record is written after every run.

    Args:
        file: File of the record; recorded runs aren't repeated.
        about: Description of the problem in the record.
        methods: The compared methods; each has a `name`.
        deadline: Time of `time.monotonic` after which no run starts.
    """

    TUNED: ClassVar[str]  # key that the entry of a tuned method has

    def __init__(self, file: Path, about: Entry, methods: Sequence[Any], deadline: float) -> None:
        self.file, self.methods, self.deadline = file, methods, deadline
        self.record: Entry = read_record(file)
        self.record.setdefault("methods", {})
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        self.record |= about | {"date": today}

    @abc.abstractmethod
    def tune(self, method: Any, entry: Entry) -> None:
        """Tune the hyper-parameters of a method, and store them in its entry."""

    @abc.abstractmethod
    def train(self, method: Any, entry: Entry, seed: int) -> Entry:
        """Run a method with one seed, and return the record of the run."""

    def after_seed(self, seed: int) -> None:
        """Do nothing; subclasses act when all methods have run with a seed."""
        del seed

    def run(self, seeds: int) -> bool:
        """Tune and run until the deadline; return whether the comparison is complete."""
        return self._tune() and all(self._round(seed) for seed in range(seeds))

    def entry(self, method: Any) -> Entry:
        """Return the entry of a method in the record."""
        return self.record["methods"].setdefault(method.name, {"runs": {}})

    def save(self) -> None:
        """Write the record to its file."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.record, indent=1) + "\n")

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
        """Run all methods with one seed, close in time, so that the machine's load is similar."""
        for method in self.methods[:: 1 if seed % 2 == 0 else -1]:
            entry = self.entry(method)
            if str(seed) in entry["runs"]:
                continue
            if self._late():
                return False
            entry["runs"][str(seed)] = self.train(method, entry, seed)
            self.save()
        self.after_seed(seed)
        return True


def read_record(file: Path) -> Entry:
    """Read the record of an earlier session; return an empty record if there is no file."""
    return json.loads(file.read_text()) if file.exists() else {}


def machine(versions: dict[str, str]) -> Entry:
    """Return the machine and the versions of the compared libraries."""
    return report.machine() | {"versions": versions}


def short(value: float) -> float | None:
    """Round to four digits; return None for a non-finite number, which JSON can't represent."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
