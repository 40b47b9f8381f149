"""One task: tunes every method, runs the seeds in turns, keeps what is done in a file."""

from __future__ import annotations

import datetime
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks import report
from benchmarks.training.flops import step_flops
from benchmarks.training.methods import Method, wanted
from benchmarks.training.programs import Programs, reader
from benchmarks.training.task import Task
from benchmarks.training.tasks import WIDE, made
from benchmarks.training.tuning import Tuned, tuned, untuned

Entry = dict[str, Any]


def one_thread() -> None:
    """Seconds of CPU are then those of one core: threads that wait for work spend some too."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    # Of the BLAS behind LAPACK; it is read when the first factorisation is compiled.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class Session:
    """The state of a task's comparison, on disk after every piece of it.

    Args:
        name: Of the task.
        folder: Where its file is, and is looked for.
        smoke: Whether sizes are tiny.
        methods: Names, or None for all that fit.
        deadline: Of `time.monotonic`: nothing new is begun after it.
    """

    def __init__(
        self, name: str, folder: Path, smoke: bool, methods: list[str] | None, deadline: float
    ) -> None:
        self.file, self.deadline = folder / f"{name}.json", deadline
        with jax.enable_x64(name in WIDE):
            self.task: Task = made(name, smoke)
        self.methods = wanted(self.task, methods)
        self.kept: Entry = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.kept.setdefault("methods", {})
        self.kept |= _described(self.task)
        self.programs: dict[str, Programs] = {}

    def run(self, seeds: int) -> bool:
        """Whether all is done."""
        with jax.enable_x64(self.task.wide):
            read = reader(self.task)
            self.programs = {m.name: Programs(self.task, m, read) for m in self.methods}
            return self._tune() and all(self._round(seed) for seed in range(seeds))

    def _entry(self, method: Method) -> Entry:
        return self.kept["methods"].setdefault(method.name, {"runs": {}})

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def _save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.kept, indent=1) + "\n")

    def _tune(self) -> bool:
        for method in self.methods:
            entry = self._entry(method)
            if "tuning" in entry:
                continue
            if self._late():
                return False
            clock = time.process_time()
            given = dict(self.task.untuned)
            if method.name in given:
                found = untuned(*given[method.name])
            else:
                found = tuned(method, self.programs[method.name].final_losses)
            entry["tuning"] = _tuning(method, found)
            spent = time.process_time() - clock
            entry["tuning"]["cpu_seconds"] = round(spent, 1)
            print(f"  {self.task.name}: {method.name} tuned, {spent:.0f} s", flush=True)
            self._save()
        return True

    def _round(self, seed: int) -> bool:
        """All methods with one seed, one after the other: the machine is alike for all of them."""
        for method in self.methods[:: 1 if seed % 2 == 0 else -1]:
            entry = self._entry(method)
            if str(seed) in entry["runs"]:
                continue
            if self._late():
                return False
            programs = self.programs[method.name]
            best = entry["tuning"]["best"]
            readings = [*programs.run(best[0], best[1], seed)]
            print(f"  {self.task.name}: {method.name} seed {seed}", flush=True)
            entry["runs"][str(seed)] = {
                "steps": [r.step for r in readings],
                "train": [_short(r.train) for r in readings],
                "test": [_short(r.test) for r in readings],
                "cpu_seconds": _short(readings[-1].seconds),
                "trips": _short(sum(r.trips for r in readings) / len(readings)),
            }
            entry.setdefault("compile_seconds", _short(programs.compile_seconds or 0.0))
            self._save()
        self._count()
        print(f"  {self.task.name}: seed {seed} of all methods", flush=True)
        return True

    def _count(self) -> None:
        """FLOPs of a step, once some runs say how often loops turn."""
        for method in self.methods:
            entry = self._entry(method)
            if "flops" not in entry:
                trips = [run["trips"] for run in entry["runs"].values()]
                flops, unknown = step_flops(self.task, method, sum(trips) / len(trips))
                entry |= {"flops": _short(flops), "not_counted": unknown}
                self._save()


def _described(task: Task) -> Entry:
    return {
        "task": task.name,
        "title": task.title,
        "test_title": task.test_title,
        "size": task.size,
        "steps": task.steps,
        "params": sum(x.size for x in jax.tree.leaves(_shapes(task))),
        "dtype": "float64" if task.wide else "float32",
        "skipped": task.skip,
        "machine": report.machine() | {"versions": _versions()},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _shapes(task: Task) -> Any:
    return jax.eval_shape(task.init, jax.random.key(0))


def _versions() -> dict[str, str]:
    return {
        name: sys.modules[name].__version__ for name in ("fnopt", "optax") if name in sys.modules
    }


def _tuning(method: Method, found: Tuned) -> Entry:
    return {
        "first": method.first[0],
        "second": method.second[0],
        "best": [_short(found.best.first), _short(found.best.second)],
        "trials": [[_short(value) for value in trial] for trial in found.trials],
        "seeds": method.tuning_seeds,
        "widened": found.widened,
        "at_edge": found.at_edge,
    }


def _short(value: float) -> float | None:
    """Four digits; None where JSON has no number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def compare(
    tasks: list[str],
    folder: Path,
    *,
    smoke: bool = False,
    methods: Callable[[str], list[str] | None] = lambda task: None,
    seeds: int = 5,
    budget: float = float("inf"),
) -> list[str]:
    """Runs tasks until the budget of seconds is spent; returns those that are not complete."""
    deadline = time.monotonic() + budget
    missing = []
    for name in tasks:
        session = Session(name, folder, smoke, methods(name), deadline)
        if not session.run(seeds):
            missing.append(name)
    return missing
