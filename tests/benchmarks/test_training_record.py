"""What is read from a record, by hand on a small one; and that the committed one is whole."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.training.methods import METHODS
from benchmarks.training.pictures import COLORS
from benchmarks.training.record import RECORD, SHORT, Record, merged, read
from benchmarks.training.tables import printed, share_table, task_table, tuning_table
from benchmarks.training.tasks import TASKS


def _method(runs: list[list[float | None]], flops: float, seconds: float, edge: bool = False):
    return {
        "tuning": {
            "first": "rate",
            "second": "nothing",
            "best": [0.1, 0.0],
            "trials": [[0.1, 0.0, 1.0], [0.2, 0.0, None]],
            "at_edge": edge,
        },
        "flops": flops,
        "runs": {
            str(seed): {
                "steps": [10, 20, 30],
                "train": losses,
                "test": losses,
                "cpu_seconds": 30 * seconds,
            }
            for seed, losses in enumerate(runs)
        },
    }


@pytest.fixture
def record() -> Record:
    adamw = [[3.0, 2.0, 1.0], [3.0, 2.0, 1.2], [3.0, 2.0, 0.8]]
    quick = [[1.0, 0.5, 0.2], [0.9, 0.5, 0.1], [2.0, 1.0, None]]
    methods = {
        "adamw": _method(adamw, 100.0, 2.0),
        "kfac": _method(quick, 400.0, 4.0, edge=True),
        "sgd": _method([[4.0, 3.0, 2.0], [4.0, 3.0, 2.0], [None, None, None]], 50.0, 1.0),
        "lion": {"tuning": {}, "runs": {"0": {}}},  # not complete
    }
    entry = {"title": "a task", "task": "t", "test_title": "test", "steps": 30, "methods": methods}
    return Record({"t": entry})


def test_only_methods_with_nearly_all_runs_count(record):
    assert record.methods("t") == ["adamw", "kfac", "sgd"]


def test_the_target_is_the_median_of_the_ends_of_adamw(record):
    assert record.target("t") == 1.0


@pytest.mark.parametrize(("axis", "each"), [("steps", 1.0), ("FLOPs", 400.0), ("seconds", 4.0)])
def test_what_the_target_costs_is_the_median_over_the_seeds(record, axis, each):
    # It is reached after 10, 10 and 20 steps.
    assert record.to_target("t", "kfac", axis) == 10 * each


def test_the_cost_is_compared_with_all_of_adamws_training(record):
    assert record.relative("t", "kfac", "steps") == pytest.approx(1 / 3)
    assert record.relative("t", "kfac", "FLOPs") == pytest.approx(4 / 3)
    assert record.relative("t", "kfac", "seconds") == pytest.approx(2 / 3)
    assert record.relative("t", "adamw", "steps") == 1.0
    assert math.isinf(record.relative("t", "sgd", "steps"))


def test_a_run_that_broke_ends_at_an_infinite_loss(record):
    assert record.final("t", "kfac") == [0.2, 0.1, math.inf]


def test_a_best_number_at_the_end_of_the_grid_is_a_warning(record):
    assert record.warnings() == ["t: the best rate of kfac is at the edge of its grid"]


def test_the_shorter_training_is_not_ranked(record):
    methods = record.tasks["t"]["methods"]
    methods[SHORT] = methods["adamw"]
    assert SHORT not in record.costs("steps")["t"]
    assert "adamw" in record.costs("steps")["t"]


def test_profiles_are_of_methods_that_ran_on_more_than_half_of_the_tasks(record):
    only_adamw = {**record.tasks["t"], "methods": {"adamw": _method([[1.0, 1.0, 1.0]], 1.0, 1.0)}}
    tasks = {"t": record.tasks["t"], "u": only_adamw}
    assert set(Record(tasks).factors("steps")) == {"adamw"}
    assert Record(tasks).factors("steps")["adamw"] == {"t": 3.0, "u": 1.0}  # kfac is the best of t


def test_text_and_files_keep_all(record, tmp_path):
    assert json.loads(record.text()) == record.tasks
    (tmp_path / "t.json").write_text(json.dumps(record.tasks["t"]))
    assert merged(tmp_path, ["t", "missing"]) == record


def test_tables_have_a_row_for_each_method(record):
    for table in (task_table(record, "t"), tuning_table(record, "t"), share_table(record)):
        rows = table.splitlines()
        assert len(rows) == 2 + 3
        assert len({row.count("|") for row in rows}) == 1
    assert "never" in task_table(record, "t")
    assert "a task" in printed(record)


def test_every_method_has_a_color():
    assert set(COLORS) == set(METHODS)


def test_the_committed_record_is_whole_and_small():
    found = read()
    assert RECORD.stat().st_size < 300_000
    assert set(found.tasks) == set(TASKS)
    for task in found.tasks:
        for name in found.methods(task):
            assert len(found.runs(task, name)) >= 4, (task, name)
            assert found.per_step(task, name, "FLOPs") > 0
            assert found.per_step(task, name, "seconds") > 0
