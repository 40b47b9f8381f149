"""Methods that look at all params at once against their papers' updates, written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import fnopt
from tests.optimizers.written_out import NOISE, SCALE, START, STEPS, ema, path

RATE, DECAY = 0.1, 0.05

# Each with its update of one vector of all params: (t, p, g, slots) -> u.


def dog(first=0.1, eps=1e-8):
    """Ivgi et al. 2023, equation 1."""

    def step(t, p, g, s):
        start = s.setdefault("start", p)
        s["r"] = max(s.get("r", first), np.linalg.norm(p - start))
        s["G"] = s.get("G", 0.0) + g @ g
        return -s["r"] / np.sqrt(s["G"] + eps) * g

    return fnopt.dog(init_step=("distance", first), eps=eps), step


def dowg(first=0.01, eps=1e-4):
    """Khaled et al. 2023, algorithm 1."""

    def step(t, p, g, s):
        start = s.setdefault("start", p)
        s["r"] = max(s.get("r", first), (p - start) @ (p - start))
        s["v"] = s.get("v", 0.0) + s["r"] * (g @ g)
        return -s["r"] / (np.sqrt(s["v"]) + eps) * g

    return fnopt.dowg(init_estim_sq_dist=first, eps=eps), step


def prodigy(b1=0.9, b2=0.99, first=0.01, eps=1e-8):
    """Mishchenko and Defazio 2023, algorithm 4, with the authors' bias correction."""

    def step(t, p, g, s):
        start, d, b3 = s.setdefault("start", p), s.get("d", first), np.sqrt(b2)
        rate = np.sqrt(1 - b2**t) / (1 - b1**t)
        m, v = ema(s, "m", d * g, b1), ema(s, "v", (d * g) ** 2, b2)
        reward = ema(s, "r", rate * d**2 * (g @ (start - p)), b3)
        total = ema(s, "s", rate * d**2 * g, b3)
        s["d"] = max(d, reward / np.abs(total).sum())
        return -rate * d * (m / (np.sqrt(v) + s["d"] * eps) + DECAY * p)

    return fnopt.prodigy(betas=(b1, b2), estim_lr0=first, eps=eps, weight_decay=DECAY), step


def dadapt_adamw(b1=0.9, b2=0.99, first=0.01, eps=1e-8):
    """Defazio and Mishchenko 2023, algorithm 5, corrected, with the mean square before."""

    def step(t, p, g, s):
        d, b3, scale = s.get("d", first), np.sqrt(b2), np.sqrt(s.get("v", 0.0)) + eps
        rate = d * np.sqrt(1 - b2**t) / (1 - b1**t)
        reward = ema(s, "r", rate * np.sum(g * s.get("s", 0.0) / scale), b3)
        total = ema(s, "s", rate * g, b3)
        m, v = ema(s, "m", rate * g, b1), ema(s, "v", g**2, b2)
        s["d"] = max(d, reward / ((1 - b3) * np.abs(total).sum()))
        return -m / (np.sqrt(v) + eps) - DECAY * rate * p

    return fnopt.dadapt_adamw(betas=(b1, b2), estim_lr0=first, eps=eps, weight_decay=DECAY), step


def mechanic(decay=0.01, first=0.1, eps=1e-14, n=6):
    """Cutkosky et al. 2023, algorithm 1, with products that are clipped by the largest before.

    Here rewards are cut off at 0 where they are used, and go on below it.
    """

    def step(t, p, g, s):
        start, way = s.setdefault("start", p), s.get("way", 0 * p)
        beta = 1 - 0.1 ** np.arange(1, n + 1)
        m, v, r, bets = (s.get(k, np.zeros(n)) for k in ("m", "v", "r", "bets"))
        pull = decay * bets.sum() * np.linalg.norm(g) / np.linalg.norm(p)
        h = -way @ (g + pull * p)
        s["r"] = beta * r + bets * np.clip(h, -m, m)
        s["m"], s["v"] = np.maximum(beta * m, abs(h) + eps), beta**2 * v + h**2
        s["bets"] = (first / n * s["m"] + np.maximum(s["r"], 0)) / (np.sqrt(s["v"]) + eps)
        s["way"] = way - RATE * g
        return start + s["bets"].sum() * s["way"] - p

    return fnopt.mechanize(fnopt.sgd(RATE), decay, eps, first, n), step


def momo(beta=0.8, rate=0.5, value=3.0):
    """Schaipp et al. 2024, algorithm 1, with one loss for all steps."""

    def step(t, p, g, s):
        d = s["d"] = g if t == 1 else beta * s["d"] + (1 - beta) * g
        gamma = s["c"] = g @ p if t == 1 else beta * s["c"] + (1 - beta) * (g @ p)
        return -min(rate, max(value + d @ p - gamma, 0) / (d @ d)) * d

    return fnopt.momo(rate, beta, lower_bound=0.0), step


@pytest.mark.parametrize(
    "method", [dog, dowg, prodigy, dadapt_adamw, mechanic, momo], ids=lambda f: f.__name__
)
def test_agrees_with_the_paper_as_a_whole(method):
    tx, step = method()
    start, noise = flat(START, 0), flat(NOISE, 1)
    p, slots, seen = start, {}, []
    for t in range(STEPS):
        p = p + step(t + 1, p, 0.5 * p + SCALE[t] * noise[t], slots)
        seen.append(p)
    np.testing.assert_allclose(flat(path(tx, value=3.0), 1), seen, rtol=1e-8, atol=1e-8)


def flat(tree, axis):
    """All leaves as one vector, behind the axis of steps."""
    return np.concatenate([x.reshape(*x.shape[:axis], -1) for _, x in sorted(tree.items())], axis)
