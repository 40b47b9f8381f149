"""Steps to a validation target: trials, studies, targets, and a session that goes on."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.training import validation
from benchmarks.training.space import BASELINES, DECADES, METHODS, MOMENTUM, numbers, points
from benchmarks.training.validation import (
    RECORD,
    SKIPPED,
    TARGET,
    TASKS,
    Clock,
    Session,
    study_points,
)
from benchmarks.training.validation_table import margin, reached, tables, target_runs, verdict

RNG = np.random.default_rng(0)


def runs(mean, spread=0.1, seeds=8):
    losses = RNG.standard_normal((seeds, 1)) * spread + np.asarray(mean)
    return {
        str(i): {"loss": [*map(float, row)], "cpu_seconds": 1.0} for i, row in enumerate(losses)
    }


def test_all_methods_have_the_same_points_inside_of_their_ranges():
    first = points(15)
    assert points(30)[:15] == first
    assert len({*first}) == 15
    for method in METHODS.values():
        least = method.first[1]
        for rate, momentum in (numbers(method, p) for p in first):
            assert least <= rate <= least * 10**DECADES
            assert MOMENTUM[0] <= 1 - momentum <= MOMENTUM[1]
    assert METHODS["muon"].first == METHODS["optax.muon"].first


def test_a_method_is_judged_by_its_median_study():
    trials: list[float | None] = [9.0] * 15
    trials[3], trials[7], trials[11] = 3.0, 1.0, 2.0
    assert study_points({"trials": trials}) == (11, 7)
    trials[7] = None  # broke
    assert study_points({"trials": trials}) == (3, 11)  # the studies end at 2, 3 and 9


def test_a_session_goes_on_where_its_budget_ended(tmp_path, monkeypatch):
    done = []

    def train(self, name, point, seed):
        done.append((name, point, seed))
        return [1.0 + point, 0.5 + point], 0.1

    monkeypatch.setattr(Session, "_train", train)
    monkeypatch.setattr(validation, "step_flops", lambda *a: (1.0, []))
    assert not Session("digits_mlp", tmp_path, Clock(0), smoke=True).run(2)
    assert not done
    assert Session("digits_mlp", tmp_path, Clock(math.inf), smoke=True).run(2)
    trials = 30 * len(BASELINES) + 15 * (len(METHODS) - len(BASELINES))
    assert len(done) == trials + 2 * (len(METHODS) + 1)
    assert Session("digits_mlp", tmp_path, Clock(0), smoke=True).run(2)
    assert len(done) == len({*done})
    kept = json.loads((tmp_path / "digits_mlp.json").read_text())
    assert kept["methods"]["adamw"]["trials"][4] == 4.5
    assert f"`{kept[TARGET]['method']}`" in tables({"t": kept})


def test_the_target_is_the_best_mean_of_any_baseline():
    methods = {b: {"runs": runs([3.0, 2.0 + i])} for i, b in enumerate(BASELINES)}
    task = {"methods": methods, TARGET: {"method": "sgd", "runs": runs([3.0, 2.5])}}
    assert target_runs(task) == (BASELINES[0], methods[BASELINES[0]]["runs"])
    task[TARGET]["runs"] = runs([3.0, 0.5])
    assert target_runs(task)[0] == "sgd"


def test_what_is_significant_is_welchs_test():
    a, b = RNG.standard_normal((2, 8, 1)) + np.asarray([0.0, 2.0])[:, None, None]
    assert margin(a, b) == pytest.approx(stats.ttest_ind(b[:, 0], a[:, 0], equal_var=False)[0])
    assert verdict(a - 3, b) == "below"
    assert verdict(b + 3, a) == "above"
    assert verdict(a, a) == "level"
    assert verdict(np.full((8, 1), np.inf), a) == "above"


def test_the_target_is_reached_by_a_mean_over_seeds():
    losses = np.asarray([[4.0, 2.0, 0.0], [4.0, 3.0, 1.0]])
    assert reached(losses, 2.5) == 1
    assert reached(losses, 0.2) is None


def test_the_committed_record_is_whole_and_small():
    record = json.loads(RECORD.read_text())
    assert RECORD.stat().st_size < 300_000
    assert record
    assert {*record} <= {*TASKS}
    for name, task in record.items():
        assert {*task["methods"]} == {*METHODS} - SKIPPED.get(name, set())
        seeds = {len(m["runs"]) for m in (*task["methods"].values(), task[TARGET])}
        assert len(seeds) == 1
    assert tables(record).count("`optax.muon`") == len(record)
