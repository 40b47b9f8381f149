"""AdaBound and AMSBound against the authors' update written out."""

import numpy as np
import pytest

import fnopt
from tests.optimizers.written_out import assert_same, by_hand, ema, path


@pytest.mark.parametrize("largest", [False, True])
def test_agrees_with_the_paper(largest):
    rate, final, gamma = 0.05, 0.02, 0.5  # the bounds cut in from the first steps on

    def step(name, t, p, g, s):
        m, v = ema(s, "m", g, 0.9), ema(s, "v", g**2, 0.9)
        if largest:
            v = s["max"] = np.maximum(s.get("max", 0.0), v)
        factor = rate * np.sqrt(1 - 0.9**t) / (1 - 0.9**t) / (np.sqrt(v) + 1e-8)
        return -m * np.clip(
            factor, final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t))
        )

    make = fnopt.amsbound if largest else fnopt.adabound
    assert_same(path(make(rate, b2=0.9, final_ratio=final / rate, gamma=gamma)), by_hand(step))
