"""StableAdamW against its update written out."""

import numpy as np

import fnopt
from tests.optimizers.written_out import assert_same, by_hand, path


def test_agrees_with_the_paper():
    b1, b2, eps, growths = 0.9, 0.99, 1e-6, []

    def step(name, t, p, g, s):
        # The paper averages with decays that are corrected, in place of corrected averages.
        s["m"] = g if t == 1 else s["m"] + (1 - b1) / (1 - b1**t) * (g - s["m"])
        s["v"] = g**2 if t == 1 else s["v"] + (1 - b2) / (1 - b2**t) * (g**2 - s["v"])
        growth = np.sqrt(np.mean(g**2 / np.maximum(s["v"], eps**2)))
        growths.append(growth)
        return -0.1 / max(1.0, growth) * (s["m"] / (np.sqrt(s["v"]) + eps) + 0.05 * p)

    expected = by_hand(step)
    assert_same(path(fnopt.stable_adamw(0.1, b1, b2, eps, weight_decay=0.05)), expected)
    assert max(growths) > 1.3 > 0.9 > min(growths)
