"""Measure the steps to a target validation loss: `python -m benchmarks training validation`.

Every baseline has `BASELINE_TRIALS` trials, and every other method has `STUDIES` studies of
`TRIALS` trials. All methods use the same points of the search space and the same tuning seed. The
result of a trial is its lowest validation loss. Then each method runs with `--seeds` other seeds,
with the hyper-parameters of the best trial of its median study. The best baseline also runs with
the hyper-parameters of its best trial. The target is the lowest mean validation loss of a baseline.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import recorded, report, sessions
from benchmarks.sessions import Entry, short
from benchmarks.training.digits import autoencoder, classifier, convolutional
from benchmarks.training.flops import step_flops
from benchmarks.training.poisson import pinn
from benchmarks.training.programs import TUNING_SEED, Programs
from benchmarks.training.session import one_thread
from benchmarks.training.space import BASELINES, METHODS, numbers, points
from benchmarks.training.tasks import WIDE
from benchmarks.training.text import topics

TASKS = {
    "digits_mlp": classifier,
    "autoencoder": autoencoder,
    "digits_cnn": convolutional,
    "topics": topics,
    "pinn": pinn,
}
BASELINE_TRIALS, STUDIES, TRIALS, READINGS = 30, 3, 5, 20
SKIPPED = {"topics": {"psgd_kron"}}  # a training run takes 20 CPU seconds, 20 times AdamW's time
TARGET = "target"  # key of the runs of the best baseline with its best trial
FOLDER = Path("benchmarks/results/validation")
RECORD = Path(__file__).parent.parent / "validation.json"


class Clock:
    """Budget of CPU time of this process."""

    def __init__(self, minutes: float) -> None:
        self.end = time.process_time() + 60 * minutes

    def is_late(self) -> bool:
        """Whether the budget is spent."""
        return time.process_time() > self.end


def study_points(entry: Entry) -> tuple[int, int]:
    """Return the indices of the best trial of the median study and of the best of all trials."""
    losses = [math.inf if x is None else x for x in entry["trials"]]
    studies = [range(TRIALS * k, TRIALS * (k + 1)) for k in range(STUDIES)]
    best = sorted((min(s, key=losses.__getitem__) for s in studies), key=losses.__getitem__)
    return best[STUDIES // 2], min(range(len(losses)), key=losses.__getitem__)


def best_baseline(entries: dict[str, Entry]) -> str:
    """Return the baseline whose best trial has the lowest validation loss."""
    return min(BASELINES, key=lambda b: entries[b]["trials"][study_points(entries[b])[1]])


class Session:
    """Measurements of one task, which are written to a file after every training run."""

    def __init__(self, name: str, folder: Path, clock: Clock, smoke: bool = False) -> None:
        self.file, self.clock, self.smoke = folder / f"{name}.json", clock, smoke
        self.record = sessions.read_record(self.file)
        self.task = TASKS[name](smoke)
        every = max(1, self.task.steps // READINGS)
        self.task = self.task._replace(every=every, steps=every * (self.task.steps // every))
        read = jax.jit(lambda params: (jnp.zeros(()), self.task.test(params)))
        self.names = [k for k in METHODS if k not in SKIPPED.get(name, ())]
        self.programs = {k: Programs(self.task, METHODS[k], read) for k in self.names}
        shapes = jax.eval_shape(self.task.init, jax.random.key(0))
        self.record |= {
            "task": name,
            "title": self.task.title,
            "loss": self.task.test_title,
            "size": self.task.size,
            "params": sum(x.size for x in jax.tree.leaves(shapes)),
            "steps": self.task.steps,
            "every": every,
            "points": [[short(x) for x in point] for point in points(BASELINE_TRIALS)],
            "machine": sessions.machine({}),
        }
        self.entries: dict[str, Entry] = self.record.setdefault("methods", {})

    def run(self, seeds: int) -> bool:
        """Tune and run within the budget; return whether the measurements are complete."""
        return self._tune() and all(self._seed(seed) for seed in range(seeds))

    def _train(self, name: str, point: int, seed: int) -> tuple[list[float | None], float]:
        pair = numbers(METHODS[name], points(BASELINE_TRIALS)[point])
        readings = [*self.programs[name].run(*pair, seed)]
        return [short(r.test) for r in readings], readings[-1].seconds

    def _save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.record) + "\n")

    def _tune(self) -> bool:
        for name in self.names:
            entry = self.entries.setdefault(name, {"trials": [], "runs": {}})
            count = BASELINE_TRIALS if name in BASELINES else STUDIES * TRIALS
            while len(entry["trials"]) < count:
                if self.clock.is_late():
                    return False
                losses, _ = self._train(name, len(entry["trials"]), TUNING_SEED)
                finite = [x for x in losses if x is not None]
                entry["trials"].append(min(finite, default=None))
                self._save()
            if "flops" not in entry:
                entry["flops"] = short(step_flops(self.task, METHODS[name], 0.0)[0])
                self._save()
            print(f"{self.task.name}: {name} tuned", flush=True)
        return True

    def _seed(self, seed: int) -> bool:
        """Run all methods with one seed, one after the other."""
        baseline = best_baseline(self.entries)
        target = self.record.setdefault(TARGET, {"method": baseline, "runs": {}})
        jobs = [(k, study_points(self.entries[k])[0], self.entries[k]["runs"]) for k in self.names]
        jobs.append((baseline, study_points(self.entries[baseline])[1], target["runs"]))
        for name, point, runs in jobs:
            if str(seed) in runs:
                continue
            if self.clock.is_late():
                return False
            losses, seconds = self._train(name, point, seed)
            runs[str(seed)] = {"loss": losses, "cpu_seconds": short(seconds)}
            self._save()
        print(f"{self.task.name}: seed {seed} of all methods", flush=True)
        return True


def main(argv: list[str]) -> int:
    """Continue the measurements; return 1 if runs are missing."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks training validation", description=__doc__
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS], metavar="TASK")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=math.inf, help="budget of CPU time")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the JSON files")
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"write {RECORD.name} and print the tables, without training",
    )
    args = parser.parse_args(argv)
    if args.record:
        from benchmarks.training.validation_table import tables  # it imports this module

        record: dict[str, Any] = recorded.of_folder(args.folder, TASKS, "task")
        RECORD.write_text(recorded.text(record) + "\n")
        print(tables(record))
        return 0
    one_thread()
    print(report.machine())
    clock, missing = Clock(args.minutes), []
    for name in args.tasks:
        with jax.enable_x64(name in WIDE):
            if not Session(name, args.folder, clock).run(args.seeds):
                missing.append(name)
    print(f"incomplete: {missing}; repeat the command" if missing else "complete")
    return bool(missing)
