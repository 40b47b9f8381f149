"""Privacy accounting, against the closed form of one Gaussian release."""

import math
import statistics

import pytest

from fnopt.interop import calibrated_noise, privacy_epsilon

pytest.importorskip("dp_accounting")

DELTA = 1e-5


def delta_of(epsilon, sigma):
    """That of the Gaussian mechanism: Balle and Wang (2018), arXiv:1805.06530, theorem 8."""
    below = statistics.NormalDist().cdf
    at = epsilon * sigma
    half = 1 / (2 * sigma)
    return below(half - at) - math.exp(epsilon) * below(-half - at)


@pytest.mark.parametrize("sigma", [0.7, 2.0])
def test_epsilon_of_one_release_is_that_of_the_closed_form(sigma):
    epsilon = privacy_epsilon(sigma, 1.0, 1, DELTA)
    assert delta_of(epsilon, sigma) == pytest.approx(DELTA, rel=1e-2)


def test_noise_is_the_least_that_keeps_to_epsilon():
    sigma = calibrated_noise(1.0, 1.0, 4, DELTA)
    # Four releases are one with half of the noise.
    assert delta_of(1.0, sigma / 2) <= DELTA
    assert delta_of(1.0, 0.995 * sigma / 2) > DELTA
    assert privacy_epsilon(sigma, 0.01, 4, DELTA) < 0.5  # sampling hides an example


def test_no_noise_keeps_nothing_private():
    assert privacy_epsilon(0.0, 0.1, 10, DELTA) == math.inf


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((-1.0, 0.1, 1, DELTA), "noise_multiplier"),
        ((1.0, 0.0, 1, DELTA), "sampling_rate"),
        ((1.0, 0.1, 0, DELTA), "steps"),
        ((1.0, 0.1, 1, 1.0), "delta"),
    ],
)
def test_wrong_arguments_are_named(args, words):
    with pytest.raises(ValueError, match=words):
        privacy_epsilon(*args)


def test_an_epsilon_that_is_no_positive_number_is_refused():
    with pytest.raises(ValueError, match="epsilon is 0"):
        calibrated_noise(0, 0.1, 1, DELTA)
