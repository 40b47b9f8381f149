"""Comparison on one task: tuning trials, and runs with a fixed number of steps."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks import sessions
from benchmarks.sessions import Entry, short
from benchmarks.training.flops import step_flops
from benchmarks.training.methods import Method, methods_of
from benchmarks.training.programs import Programs, reader
from benchmarks.training.task import Task
from benchmarks.training.tasks import WIDE, create_task
from benchmarks.training.tuning import Tuned, tuned, untuned


def one_thread() -> None:
    """Set one thread, because waiting threads would add to the CPU seconds."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    # LAPACK's BLAS reads this variable when the first factorization is compiled.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


class Session(sessions.Session):
    """The comparison on one task.

    Args:
        name: Name of the task.
        folder: Folder of the record file.
        smoke: Whether to use tiny sizes.
        methods: Names of the methods, or None for all methods of the task.
        deadline: Time of `time.monotonic` after which no run starts.
    """

    TUNED = "tuning"

    def __init__(
        self, name: str, folder: Path, smoke: bool, methods: list[str] | None, deadline: float
    ) -> None:
        with jax.enable_x64(name in WIDE):
            self.task: Task = create_task(name, smoke)
        file, compared = folder / f"{name}.json", methods_of(self.task, methods)
        super().__init__(file, _description(self.task), compared, deadline)
        self.programs: dict[str, Programs] = {}

    def run(self, seeds: int) -> bool:
        """Tune and run until the deadline; return whether the comparison is complete."""
        with jax.enable_x64(self.task.wide):
            read = reader(self.task)
            self.programs = {m.name: Programs(self.task, m, read) for m in self.methods}
            return super().run(seeds)

    def tune(self, method: Method, entry: Entry) -> None:
        clock = time.process_time()
        fixed = dict(self.task.untuned)
        if method.name in fixed:
            result = untuned(*fixed[method.name])
        else:
            result = tuned(method, self.programs[method.name].final_losses)
        spent = time.process_time() - clock
        entry["tuning"] = _tuning(method, result) | {"cpu_seconds": round(spent, 1)}
        print(f"  {self.task.name}: {method.name} tuned, {spent:.0f} s", flush=True)

    def train(self, method: Method, entry: Entry, seed: int) -> Entry:
        programs = self.programs[method.name]
        best = entry["tuning"]["best"]
        readings = [*programs.run(best[0], best[1], seed)]
        entry.setdefault("compile_seconds", short(programs.compile_seconds or 0.0))
        print(f"  {self.task.name}: {method.name} seed {seed}", flush=True)
        return {
            "steps": [r.step for r in readings],
            "train": [short(r.train) for r in readings],
            "test": [short(r.test) for r in readings],
            "cpu_seconds": short(readings[-1].seconds),
            "trips": short(sum(r.trips for r in readings) / len(readings)),
        }

    def after_seed(self, seed: int) -> None:
        self._count_flops()
        print(f"  {self.task.name}: seed {seed} of all methods", flush=True)

    def _count_flops(self) -> None:
        """Count the FLOPs of a step, with the number of loop iterations measured in the runs."""
        for method in self.methods:
            entry = self.entry(method)
            if "flops" not in entry:
                trips = [run["trips"] for run in entry["runs"].values()]
                flops, unknown = step_flops(self.task, method, sum(trips) / len(trips))
                entry |= {"flops": short(flops), "not_counted": unknown}
                self.save()


def _description(task: Task) -> Entry:
    return {
        "task": task.name,
        "title": task.title,
        "test_title": task.test_title,
        "size": task.size,
        "steps": task.steps,
        "params": sum(x.size for x in jax.tree.leaves(_shapes(task))),
        "dtype": "float64" if task.wide else "float32",
        "skipped": task.skip,
        "machine": sessions.machine(_versions()),
    }


def _shapes(task: Task) -> Any:
    return jax.eval_shape(task.init, jax.random.key(0))


def _versions() -> dict[str, str]:
    return {
        name: sys.modules[name].__version__ for name in ("fnopt", "optax") if name in sys.modules
    }


def _tuning(method: Method, result: Tuned) -> Entry:
    return {
        "first": method.first[0],
        "second": method.second[0],
        "best": [short(result.best.first), short(result.best.second)],
        "trials": [[short(value) for value in trial] for trial in result.trials],
        "seeds": method.tuning_seeds,
        "widened": result.widened,
        "at_edge": result.at_edge,
    }


def compare(
    tasks: list[str],
    folder: Path,
    *,
    smoke: bool = False,
    methods: Callable[[str], list[str] | None] = lambda task: None,
    seeds: int = 5,
    budget: float = float("inf"),
) -> list[str]:
    """Run the tasks within `budget` seconds; return the incomplete tasks."""
    deadline = time.monotonic() + budget
    missing = []
    for name in tasks:
        session = Session(name, folder, smoke, methods(name), deadline)
        if not session.run(seeds):
            missing.append(name)
    return missing
