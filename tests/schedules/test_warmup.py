from __future__ import annotations

import math

import numpy as np
import pytest

import fnopt


def values(schedule, counts):
    return np.asarray([schedule(c) for c in counts])


def stable(t, kind):
    """Warm-up of 4 from 0.1 to 0.8, constant for 10, decay of 8 to 0.2."""
    if t < 4:
        return 0.1 + 0.7 * t / 4
    x = min(max(t - 14, 0) / 8, 1)
    weight = {"linear": 1 - x, "cosine": (1 + math.cos(math.pi * x)) / 2, "sqrt": 1 - x**0.5}
    return 0.2 + 0.6 * weight[kind]


@pytest.mark.parametrize("kind", ["linear", "cosine", "sqrt"])
def test_warmup_stable_decay_by_the_formula(kind):
    schedule = fnopt.warmup_stable_decay_schedule(0.1, 0.8, 4, 10, 8, 0.2, kind)
    counts = range(0, 30, 2)
    expected = [stable(t, kind) for t in counts]
    np.testing.assert_allclose(values(schedule, counts), expected, rtol=1e-6)


def test_a_decay_of_no_steps_is_over_at_once():
    schedule = fnopt.warmup_stable_decay_schedule(0.0, 1.0, 2, 3, 0, 0.5)
    np.testing.assert_array_equal(values(schedule, [1, 2, 4, 5, 9]), [0.5, 1.0, 1.0, 0.5, 0.5])


def test_inverse_sqrt_is_that_of_the_transformer():
    """Vaswani et al.: d^-0.5 min(t^-0.5, t W^-1.5), here with its peak at 1."""
    schedule = fnopt.inverse_sqrt_schedule(0.0, 1.0, 16)
    counts = np.asarray([0, 1, 8, 15, 16, 17, 64, 10_000])
    expected = 4 * np.minimum(np.maximum(counts, 1) ** -0.5, counts * 16**-1.5)
    np.testing.assert_allclose(values(schedule, counts), expected, rtol=1e-6)


def test_inverse_sqrt_without_a_warmup_starts_at_its_peak():
    schedule = fnopt.inverse_sqrt_schedule(0.0, 1.0, 0)
    np.testing.assert_allclose(values(schedule, [0, 3]), [1.0, 0.5], rtol=1e-6)


def test_unknown_decays_are_refused():
    with pytest.raises(ValueError, match="decay_type is 'cubic', expected one of 'linear'"):
        fnopt.warmup_stable_decay_schedule(0.0, 1.0, 2, 3, 4, decay_type="cubic")
