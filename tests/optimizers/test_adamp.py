"""AdamP against its update written out."""

import numpy as np
import pytest

import fnopt
from tests.optimizers.written_out import assert_same, by_hand, ema, path


def projected(p, g, u, delta):
    """The update, and whether the weights count as scale-invariant (the paper's listing)."""
    if p.ndim < 2:
        return u, False
    for view in (lambda x: x.T.reshape(p.shape[1], -1), lambda x: x.reshape(1, -1)):
        a, b = view(p), view(g)
        cosines = np.sum(a * b, 1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        if np.abs(cosines).max() < delta / np.sqrt(a.shape[1]):
            axes = 0 if len(a) > 1 else None
            unit = p / np.sqrt(np.sum(p**2, axis=axes, keepdims=True))
            return u - unit * np.sum(unit * u, axis=axes, keepdims=True), True
    return u, False


@pytest.mark.parametrize("nesterov", [False, True])
def test_agrees_with_the_paper(nesterov):
    delta, seen = 0.5, set()

    def step(name, t, p, g, s):
        m, v = ema(s, "m", g, 0.9), ema(s, "v", g**2, 0.99)
        m = 0.9 * m + 0.1 * g if nesterov else m
        u = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)
        u, invariant = projected(p, g, u, delta)
        seen.add((name, invariant))
        return -0.1 * (u + 0.05 * (0.1 if invariant else 1.0) * p)

    expected = by_hand(step)
    ours = fnopt.adamp(0.1, b2=0.99, weight_decay=0.05, delta=delta, nesterov=nesterov)
    assert_same(path(ours), expected)
    assert {("kernel", True), ("kernel", False)} <= seen
