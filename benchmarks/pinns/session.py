"""One problem: tunes what has a rate, runs the seeds in turns, keeps what is done in a file."""

from __future__ import annotations

import datetime
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import jax
import scipy

import fnopt
from benchmarks import report
from benchmarks.pinns.equations import EQUATIONS
from benchmarks.pinns.methods import METHODS, Method
from benchmarks.pinns.problem import Problem
from benchmarks.pinns.runs import Programs

TUNING_SEED = 100  # another start and other points than those of the runs that are compared
HALVING = ((0.25, 3), (1.0, 1))  # a share of the budget for every trial, and how many go on

Entry = dict[str, Any]
Trial = tuple[float, float]


class Session:
    """The state of a problem's comparison, on disk after every piece of it.

    Args:
        problem: What is solved.
        folder: Where its file is, and is looked for.
        methods: Names.
        seconds: Of CPU for each run.
        deadline: Of `time.monotonic`: nothing new is begun after it.
    """

    def __init__(
        self, problem: Problem, folder: Path, methods: list[str], seconds: float, deadline: float
    ) -> None:
        self.problem, self.seconds, self.deadline = problem, seconds, deadline
        self.file = folder / f"{problem.name}.json"
        self.kept: Entry = json.loads(self.file.read_text()) if self.file.exists() else {}
        if self.kept.get("seconds", seconds) != seconds:
            raise ValueError(
                f"{self.file} has runs of {self.kept['seconds']} seconds, not of {seconds}"
            )
        self.kept.setdefault("methods", {})
        self.kept |= _described(problem, seconds)
        self.methods = [METHODS[name] for name in methods]
        error = jax.jit(problem.error)
        jax.block_until_ready(error(problem.init(jax.random.key(0))))  # compiled before clocks run
        self.programs = {m.name: Programs(problem, m, error) for m in self.methods}

    def run(self, seeds: int) -> bool:
        """Whether all is done."""
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
            if "best" in entry:
                continue
            if self._late():
                return False
            trials = [] if len(method.trials) == 1 else self._trials(method)
            entry["trials"] = [[a, b, share, _short(error)] for a, b, share, error in trials]
            entry["best"] = list(_best(trials)[0] if trials else method.trials[0])
            print(f"  {self.problem.name}: {method.name} tuned: {entry['best']}", flush=True)
            self._save()
        return True

    def _trials(self, method: Method) -> list[tuple[float, float, float, float]]:
        """The errors that trials end at: short ones for all, long ones for the best of them."""
        found: list[tuple[float, float, float, float]] = []
        left = method.trials
        for share, _ in HALVING:
            for rate, factor in left:
                budget = share * self.seconds
                ends = [*self.programs[method.name].run(rate, factor, TUNING_SEED, budget)]
                found.append((rate, factor, share, ends[-1].error if ends else math.inf))
            left = _best([t for t in found if t[2] == share])[: HALVING[0][1]]
        return found

    def _round(self, seed: int) -> bool:
        """All methods with one seed, one after the other: the machine is alike for all of them."""
        for method in self.methods[:: 1 if seed % 2 == 0 else -1]:
            entry = self._entry(method)
            if str(seed) in entry["runs"]:
                continue
            if self._late():
                return False
            programs = self.programs[method.name]
            readings = [*programs.run(*entry["best"], seed, self.seconds)]
            entry["runs"][str(seed)] = {
                "steps": [r.step for r in readings],
                "seconds": [_short(r.seconds) for r in readings],
                "errors": [_short(r.error) for r in readings],
            }
            entry.setdefault("compile_seconds", _short(programs.compile_seconds))
            self._save()
            last = readings[-1]
            print(
                f"  {self.problem.name}: {method.name:20} seed {seed}: {last.error:.2g} after "
                f"{last.step} steps, {last.seconds:.1f} s",
                flush=True,
            )
        return True


def _best(trials: list[tuple[float, float, float, float]]) -> list[Trial]:
    """Those with the largest share of the budget, the least error first."""
    share = max(t[2] for t in trials)
    kept = [t for t in trials if t[2] == share]
    kept.sort(key=lambda t: t[3] if math.isfinite(t[3]) else math.inf)
    return [(rate, factor) for rate, factor, _, _ in kept]


def _described(problem: Problem, seconds: float) -> Entry:
    shapes = jax.eval_shape(problem.init, jax.random.key(0))
    return {
        "problem": problem.name,
        "title": problem.title,
        "text": problem.text,
        "widths": list(problem.widths),
        "params": sum(x.size for x in jax.tree.leaves(shapes)),
        "points": list(problem.counts),
        "dtype": str(jax.tree.leaves(shapes)[0].dtype),
        "seconds": seconds,
        "flags": os.environ.get("XLA_FLAGS", ""),
        "machine": report.machine()
        | {"versions": {"fnopt": fnopt.__version__, "scipy": scipy.__version__}},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _short(value: float) -> float | None:
    """Four digits; None where JSON has no number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def compare(
    problems: list[str],
    folder: Path,
    *,
    methods: list[str],
    seeds: int,
    seconds: float,
    wall: float = float("inf"),
) -> list[str]:
    """Runs problems until the budget of the clock is spent; returns those not complete."""
    deadline = time.monotonic() + wall
    missing = []
    for name in problems:
        with jax.enable_x64(True):
            session = Session(EQUATIONS[name](), folder, methods, seconds, deadline)
            if not session.run(seeds):
                missing.append(name)
    return missing


def smoke(problem: Problem, folder: Path, methods: list[str]) -> bool:
    """The same with a tiny network for a moment."""
    tiny = problem._replace(
        widths=(problem.widths[0], 4, 1), counts=tuple(8 for _ in problem.counts)
    )
    with jax.enable_x64(True):
        return Session(tiny, folder, methods, 0.05, float("inf")).run(1)
