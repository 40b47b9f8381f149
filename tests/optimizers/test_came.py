"""CAME against its update written out."""

import numpy as np

import fnopt
from tests.optimizers.written_out import assert_same, by_hand, ema, path


def factored(s, key, x, decay):
    """The product of running means of rows and columns."""
    rows, columns = ema(s, key + "r", x.mean(1), decay), ema(s, key + "c", x.mean(0), decay)
    return np.outer(rows, columns) / rows.mean()


def test_agrees_with_the_paper():
    def step(name, t, p, g, s):
        v = (factored if g.ndim > 1 else ema)(s, "v", g**2 + 1e-30, 0.9)
        d = g / np.sqrt(v)
        d = d / max(1.0, np.sqrt(np.mean(d**2)) / 0.7)
        m = ema(s, "m", d, 0.8)
        if g.ndim > 1:
            return -0.1 * (m / np.sqrt(factored(s, "s", (d - m) ** 2 + 1e-16, 0.95)) + 0.05 * p)
        return -0.1 * (m + 0.05 * p)

    ours = fnopt.came(0.1, 0.8, 0.9, 0.95, clipping_threshold=0.7, weight_decay=0.05)
    assert_same(path(ours), by_hand(step))
