"""MARS against its update written out."""

import numpy as np

import fnopt
from tests.optimizers.written_out import assert_same, by_hand, ema, path


def test_agrees_with_the_paper():
    b1, b2, gamma = 0.9, 0.99, 0.3

    def step(name, t, p, g, s):
        c = g + gamma * b1 / (1 - b1) * (g - s.get("last", g))
        s["last"] = g
        c = c / max(1.0, np.linalg.norm(c))
        m, v = ema(s, "m", c, b1), ema(s, "v", c**2, b2)
        direction = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
        return -0.1 * (direction + 0.05 * p)

    assert_same(path(fnopt.mars(0.1, b1, b2, weight_decay=0.05, gamma=gamma)), by_hand(step))
