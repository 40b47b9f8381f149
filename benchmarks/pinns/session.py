"""Comparison on one problem: tuning trials, and runs with a budget of CPU seconds."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import jax
import scipy

import fnopt
from benchmarks import sessions
from benchmarks.pinns.equations import EQUATIONS
from benchmarks.pinns.methods import METHODS, Method
from benchmarks.pinns.problem import Problem
from benchmarks.pinns.runs import Programs
from benchmarks.sessions import Entry, short

TUNING_SEED = 100  # differs from the seeds of the compared runs
# Successive halving: (fraction of the budget for each trial, number of trials that continue).
HALVING = ((0.25, 3), (1.0, 1))

Trial = tuple[float, float]


class Session(sessions.Session):
    """The comparison on one problem.

    Args:
        problem: The problem.
        folder: Folder of the record file.
        methods: Names of the methods.
        seconds: CPU seconds of each run.
        deadline: Time of `time.monotonic` after which no run starts.
    """

    TUNED = "best"

    def __init__(
        self, problem: Problem, folder: Path, methods: list[str], seconds: float, deadline: float
    ) -> None:
        file = folder / f"{problem.name}.json"
        recorded = sessions.read_record(file).get("seconds", seconds)
        if recorded != seconds:
            raise ValueError(
                f"{file} has runs of {recorded} seconds, expected {seconds}; use another --folder"
            )
        compared = [METHODS[name] for name in methods]
        super().__init__(file, _description(problem, seconds), compared, deadline)
        self.problem, self.seconds = problem, seconds
        error = jax.jit(problem.error)
        jax.block_until_ready(error(problem.init(jax.random.key(0))))  # compile before timing
        self.programs = {m.name: Programs(problem, m, error) for m in compared}

    def tune(self, method: Method, entry: Entry) -> None:
        trials = [] if len(method.trials) == 1 else self._trials(method)
        entry["trials"] = [[a, b, share, short(error)] for a, b, share, error in trials]
        entry["best"] = list(_best(trials)[0] if trials else method.trials[0])
        print(f"  {self.problem.name}: {method.name} tuned: {entry['best']}", flush=True)

    def train(self, method: Method, entry: Entry, seed: int) -> Entry:
        programs = self.programs[method.name]
        rate, factor = entry["best"]
        readings = [*programs.run(rate, factor, seed, self.seconds)]
        entry.setdefault("compile_seconds", short(programs.compile_seconds))
        last = readings[-1]
        print(
            f"  {self.problem.name}: {method.name:20} seed {seed}: {last.error:.2g} after "
            f"{last.step} steps, {last.seconds:.1f} s",
            flush=True,
        )
        return {
            "steps": [r.step for r in readings],
            "seconds": [short(r.seconds) for r in readings],
            "errors": [short(r.error) for r in readings],
        }

    def _trials(self, method: Method) -> list[tuple[float, float, float, float]]:
        """Run short trials of all candidates and full trials of the best candidates."""
        results: list[tuple[float, float, float, float]] = []
        candidates = method.trials
        for share, _ in HALVING:
            for rate, factor in candidates:
                budget = share * self.seconds
                ends = [*self.programs[method.name].run(rate, factor, TUNING_SEED, budget)]
                results.append((rate, factor, share, ends[-1].error if ends else math.inf))
            candidates = _best([t for t in results if t[2] == share])[: HALVING[0][1]]
        return results


def _best(trials: list[tuple[float, float, float, float]]) -> list[Trial]:
    """Return the trials with the largest fraction of the budget, sorted by error."""
    share = max(t[2] for t in trials)
    longest = [t for t in trials if t[2] == share]
    longest.sort(key=lambda t: t[3] if math.isfinite(t[3]) else math.inf)
    return [(rate, factor) for rate, factor, _, _ in longest]


def _description(problem: Problem, seconds: float) -> Entry:
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
        "machine": sessions.machine({"fnopt": fnopt.__version__, "scipy": scipy.__version__}),
    }


def compare(
    problems: list[str],
    folder: Path,
    *,
    methods: list[str],
    seeds: int,
    seconds: float,
    wall: float = float("inf"),
) -> list[str]:
    """Run the problems within `wall` seconds; return the incomplete problems."""
    deadline = time.monotonic() + wall
    missing = []
    for name in problems:
        with jax.enable_x64(True):
            session = Session(EQUATIONS[name](), folder, methods, seconds, deadline)
            if not session.run(seeds):
                missing.append(name)
    return missing


def smoke(problem: Problem, folder: Path, methods: list[str]) -> bool:
    """Run a session with a tiny network and 0.05 seconds per run."""
    tiny = problem._replace(
        widths=(problem.widths[0], 4, 1), counts=tuple(8 for _ in problem.counts)
    )
    with jax.enable_x64(True):
        return Session(tiny, folder, methods, 0.05, float("inf")).run(1)
