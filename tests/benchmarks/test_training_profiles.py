"""What a loss costs and the profiles of the training comparison, against counting by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.training.profiles import cost_to, factors, middle, profile, share_within

INF = math.inf


def test_the_cost_of_a_target_is_that_of_the_first_reading_below_it():
    steps, losses = [10, 20, 30, 40], [3.0, 1.0, 2.0, 0.5]
    assert cost_to(1.0, steps, losses) == 20  # at the target counts, later rises don't matter
    assert cost_to(0.9, steps, losses) == 40
    assert cost_to(0.1, steps, losses) == INF


def test_a_loss_that_is_no_number_reaches_nothing():
    assert cost_to(1.0, [1, 2, 3], [math.nan, INF, 0.5]) == 3
    assert cost_to(INF, [1, 2], [math.nan, 9.0]) == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, 1.0, 2.0], 2.0),
        ([4.0, 1.0, 2.0, 3.0], 2.5),
        ([1.0, INF, INF], INF),
        ([1.0, 2.0, INF], 2.0),
        ([1.0, INF], INF),
        ([INF, INF], INF),
        ([1.0, math.nan, 2.0], 2.0),  # a run that broke is worse than all others
    ],
)
def test_the_median_counts_what_is_never_reached_as_the_largest(values, expected):
    assert middle(values) == expected


COSTS = {
    "a": {"first": 10.0, "second": 20.0, "third": INF},
    "b": {"first": 30.0, "second": 10.0},
    "c": {"first": INF, "second": 5.0, "third": 5.0},
}


def test_factors_are_relative_to_the_best_of_each_task():
    found = factors(COSTS)
    assert found["first"] == {"a": 1.0, "b": 3.0, "c": INF}
    assert found["second"] == {"a": 2.0, "b": 1.0, "c": 1.0}
    assert found["third"] == {"a": INF, "c": 1.0}  # b isn't one of its tasks


def test_a_task_that_nobody_solves_is_in_nobodys_favour():
    assert factors({"a": {"first": INF, "second": INF}}) == {
        "first": {"a": INF},
        "second": {"a": INF},
    }


def test_shares_count_the_tasks_of_a_method():
    found = factors(COSTS)
    assert share_within(1.0, found["first"]) == pytest.approx(1 / 3)
    assert share_within(3.0, found["first"]) == pytest.approx(2 / 3)
    assert share_within(1.0, found["third"]) == 0.5
    assert share_within(1e9, found["third"]) == 0.5
    assert share_within(2.0, {}) == 0.0


def test_the_line_of_a_profile_never_falls_and_ends_at_the_share():
    for of_tasks in factors(COSTS).values():
        x, y = profile(of_tasks, 10.0)
        assert x[0] == 1.0
        assert x[-1] == 10.0
        assert x == sorted(x)
        assert y == sorted(y)
        assert y == [share_within(at, of_tasks) for at in x]
