"""The choice of rates of the training comparison: grids, their ends, how they are widened."""

from __future__ import annotations

import math

import pytest

from benchmarks.training.methods import METHODS, Method
from benchmarks.training.tuning import Trial, best_of, edge, further, tuned


def _method(second: tuple[float, ...] = (1.0, 2.0, 3.0)) -> Method:
    return Method("m", lambda *a: None, ("rate", 1.0, 2), ("other", second), lambda *a: None)


class Losses:
    """A bowl in the logarithm of the rate; remembers how many trials a call had."""

    def __init__(self, best: float, worst: float = math.inf) -> None:
        self.best, self.worst, self.calls = best, worst, []

    def __call__(self, firsts: list[float], seconds: list[float]) -> list[float]:
        self.calls.append(len(firsts))
        return [
            math.nan if a >= self.worst else abs(math.log2(a / self.best)) + abs(b - 2.0)
            for a, b in zip(firsts, seconds, strict=True)
        ]


def test_a_best_rate_inside_of_the_grid_needs_no_more_trials():
    losses = Losses(8.0)
    found = tuned(_method(), losses)
    assert found.best == Trial(8.0, 2.0, 0.0)
    assert losses.calls == [9, 9]  # all calls have one size: one compiled program
    assert {trial.first for trial in found.trials} == {1.0, 2.0, 4.0, 8.0, 16.0, 32.0}
    assert (found.widened, found.at_edge) == (0, False)


@pytest.mark.parametrize("best", [0.25, 32.0, 128.0])
def test_a_grid_is_widened_until_the_best_is_inside(best):
    losses = Losses(best)
    found = tuned(_method(), losses)
    assert found.best.first == best
    assert found.widened == 9
    assert not found.at_edge
    assert set(losses.calls) == {9}


def test_a_best_rate_that_stays_at_the_end_is_said():
    found = tuned(_method(), Losses(1e9))
    assert found.at_edge
    assert found.widened == 27
    assert found.best.first == max(trial.first for trial in found.trials)


def test_losses_that_are_no_numbers_are_never_the_best_and_are_kept_as_infinite():
    found = tuned(_method(), Losses(8.0, worst=8.0))
    assert found.best.first == 4.0
    assert not found.at_edge  # the larger rates were tried, and broke
    assert any(math.isinf(trial.loss) for trial in found.trials)


def test_nothing_finite_is_an_error():
    with pytest.raises(ValueError, match="all 2 trials"):
        best_of([Trial(1.0, 1.0, math.inf), Trial(2.0, 1.0, math.inf)])


def test_which_end_a_best_trial_is_at():
    trials = [Trial(1.0, 0.0, 3.0), Trial(2.0, 0.0, 2.0), Trial(4.0, 0.0, 1.0)]
    assert edge(trials) == 1
    assert edge(trials[::-1]) == 1
    assert edge([*trials, Trial(8.0, 0.0, math.inf)]) == 0
    assert edge([t._replace(loss=-t.loss) for t in trials]) == -1
    assert edge(trials[:1]) == 0


def test_numbers_further_out():
    assert further([1.0, 2.0], 2, 1) == [4.0, 8.0, 16.0]
    assert further([1.0, 2.0], 2, -1) == [0.125, 0.25, 0.5]
    assert further([1e-3], 10, 1) == pytest.approx([1e-2, 1e-1, 1.0])


def test_peers_get_the_trials_of_their_counterparts():
    for name in ("adamw", "muon"):
        ours, theirs = METHODS[name], METHODS[f"optax.{name}"]
        assert (ours.first, ours.second) == (theirs.first, theirs.second)
