"""First-order methods against their papers' updates, written out in NumPy.

Beside each are the published form and, where the library has another one, what differs.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.optimizers.written_out import assert_same, by_hand, ema, path

RATE, DECAY = 0.1, 0.05


def adan(b1=0.9, b2=0.8, b3=0.95, eps=1e-8):
    """Xie et al. 2022, algorithm 1; averages start at zero and are corrected, as the authors'."""

    def step(name, t, p, g, s):
        change = g - s.get("g", g)
        s["g"] = g
        m = ema(s, "m", g, b1) / (1 - b1**t)
        v = ema(s, "v", change, b2) / (1 - b2**t)
        n = ema(s, "n", (g + b2 * change) ** 2, b3) / (1 - b3**t)
        return -RATE * ((m + b2 * v) / (np.sqrt(n) + eps) + DECAY * p)

    return fnopt.adan(RATE, b1, b2, b3, eps, 0.0, weight_decay=DECAY), step


def adabelief(b1=0.9, b2=0.99, eps=1e-3):
    """Zhuang et al. 2020, algorithm 2."""

    def step(name, t, p, g, s):
        m = ema(s, "m", g, b1)
        s["s"] = b2 * s.get("s", 0.0) + (1 - b2) * (g - m) ** 2 + eps
        return -RATE * m / (1 - b1**t) / (np.sqrt(s["s"] / (1 - b2**t)) + eps)

    return fnopt.adabelief(RATE, b1, b2, eps, eps), step


def yogi(b1=0.9, b2=0.99, eps=1e-3):
    """Zaheer et al. 2018, algorithm 2; both averages begin at 1e-6 and are corrected."""

    def step(name, t, p, g, s):
        v = s.setdefault("v", 1e-6)
        s["v"] = v - (1 - b2) * np.sign(v - g**2) * g**2
        s.setdefault("m", 1e-6)
        m = ema(s, "m", g, b1)
        return -RATE * m / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + eps)

    return fnopt.yogi(RATE, b1, b2, eps), step


def ademamix(b1=0.9, b2=0.99, b3=0.95, alpha=2.0, eps=1e-8):
    """Pagliardini et al. 2024, algorithm 1."""

    def step(name, t, p, g, s):
        fast, slow, v = ema(s, "f", g, b1), ema(s, "s", g, b3), ema(s, "v", g**2, b2)
        direction = (fast / (1 - b1**t) + alpha * slow) / (np.sqrt(v / (1 - b2**t)) + eps)
        return -RATE * (direction + DECAY * p)

    return fnopt.ademamix(RATE, b1, b2, b3, alpha, eps, weight_decay=DECAY), step


def lion(b1=0.9, b2=0.99):
    """Chen et al. 2023, algorithm 2."""

    def step(name, t, p, g, s):
        m = s.get("m", np.zeros_like(p))
        s["m"] = b2 * m + (1 - b2) * g
        return -RATE * (np.sign(b1 * m + (1 - b1) * g) + DECAY * p)

    return fnopt.lion(RATE, b1, b2, weight_decay=DECAY), step


def radam(b1=0.9, b2=0.9, eps=1e-8):
    """Liu et al. 2020, algorithm 2, with the threshold of 5 that the authors' program has."""

    def step(name, t, p, g, s):
        m, v = ema(s, "m", g, b1) / (1 - b1**t), ema(s, "v", g**2, b2) / (1 - b2**t)
        most = 2 / (1 - b2) - 1
        rho = most - 2 * t * b2**t / (1 - b2**t)
        if rho < 5:
            return -RATE * m
        r = np.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
        return -RATE * r * m / (np.sqrt(v) + eps)

    return fnopt.radam(RATE, b1, b2, eps), step


def novograd(b1=0.9, b2=0.4, eps=1e-6):
    """Ginsburg et al. 2019, algorithm 1."""

    def step(name, t, p, g, s):
        norm = np.sum(g**2)
        s["v"] = norm if t == 1 else b2 * s["v"] + (1 - b2) * norm
        s["m"] = b1 * s.get("m", 0.0) + g / (np.sqrt(s["v"]) + eps) + DECAY * p
        return -RATE * s["m"]

    return fnopt.novograd(RATE, b1, b2, eps, weight_decay=DECAY), step


def lars(momentum=0.9, trust=0.02):
    """You et al. 2017, algorithm 1, with the norm of the decayed gradient in the ratio."""

    def step(name, t, p, g, s):
        d = g + DECAY * p
        ratio = trust * np.linalg.norm(p) / np.linalg.norm(d)
        s["m"] = momentum * s.get("m", 0.0) + 10 * ratio * d
        return -s["m"]

    return fnopt.lars(10.0, DECAY, trust_coefficient=trust, momentum=momentum), step


def lamb(b1=0.9, b2=0.99, eps=1e-6):
    """You et al. 2020, algorithm 2."""

    def step(name, t, p, g, s):
        m, v = ema(s, "m", g, b1) / (1 - b1**t), ema(s, "v", g**2, b2) / (1 - b2**t)
        d = m / (np.sqrt(v) + eps) + DECAY * p
        return -RATE * np.linalg.norm(p) / np.linalg.norm(d) * d

    return fnopt.lamb(RATE, b1, b2, eps, weight_decay=DECAY), step


def sm3(momentum=0.8):
    """Anil et al. 2019, algorithm SM3-II with the sets rows and columns, and momentum."""

    def step(name, t, p, g, s):
        covers = s.setdefault("mu", [np.zeros(n) for n in g.shape])
        shaped = [
            c.reshape([-1 if a == i else 1 for a in range(g.ndim)]) for i, c in enumerate(covers)
        ]
        v = np.minimum.reduce(np.broadcast_arrays(*shaped)) + g**2
        s["mu"] = [v.max(axis=tuple(a for a in range(g.ndim) if a != i)) for i in range(g.ndim)]
        return -RATE * ema(s, "m", g / np.sqrt(v + 1e-8), momentum)

    return fnopt.sm3(RATE, momentum), step


def adafactor():
    """Shazeer and Stern 2018, algorithm 4 with algorithm 5's decay; the rate is a number."""

    def step(name, t, p, g, s):
        decay, square = 1 - t**-0.8, g**2 + 1e-30
        if g.ndim > 1:
            rows, columns = ema(s, "r", square.mean(1), decay), ema(s, "c", square.mean(0), decay)
            v = np.outer(rows, columns) / rows.mean()
        else:
            v = ema(s, "v", square, decay)
        u = g / np.sqrt(v)
        u = u / max(1.0, np.sqrt(np.mean(u**2)))
        return -RATE * max(1e-3, np.sqrt(np.mean(p**2))) * u

    return fnopt.adafactor(RATE, 2), step


def adopt(b1=0.9, b2=0.99, eps=1e-6):
    """Taniguchi et al. 2024, algorithm 2; the first gradient only begins the mean square."""

    def step(name, t, p, g, s):
        if t == 1:
            s["v"] = g**2
            return 0 * g
        bound = (t - 1) ** 0.25
        m = ema(s, "m", np.clip(g / np.maximum(np.sqrt(s["v"]), eps), -bound, bound), b1)
        ema(s, "v", g**2, b2)
        return -RATE * m

    return fnopt.adopt(RATE, b1, b2, eps), step


def fromage():
    """Bernstein et al. 2020, algorithm 1."""

    def step(name, t, p, g, s):
        moved = p - RATE * np.linalg.norm(p) / np.linalg.norm(g) * g
        return moved / np.sqrt(1 + RATE**2) - p

    return fnopt.fromage(RATE), step


def adamax(b1=0.9, b2=0.99):
    """Kingma and Ba 2015, algorithm 2."""

    def step(name, t, p, g, s):
        s["u"] = np.maximum(b2 * s.get("u", 0.0), np.abs(g))
        return -RATE / (1 - b1**t) * ema(s, "m", g, b1) / s["u"]

    return fnopt.adamax(RATE, b1, b2, eps=0.0), step


def amsgrad(b1=0.9, b2=0.9):
    """Reddi et al. 2018, algorithm 2, which corrects no bias."""

    def step(name, t, p, g, s):
        s["top"] = np.maximum(s.get("top", 0.0), ema(s, "v", g**2, b2))
        return -RATE * ema(s, "m", g, b1) / np.sqrt(s["top"])

    tx = fnopt.amsgrad(RATE, b1, b2, 0.0, bias_correction_mu=False, bias_correction_nu=False)
    return tx, step


def acprop(b1=0.9, b2=0.99, eps=1e-3):
    """Zhuang et al. 2021, algorithm 2, whose means are nearer by b1; the authors' first step."""

    def step(name, t, p, g, s):
        before = s.get("s", 0.0)
        distance = (g - ema(s, "m", g, b1)) / b1
        s["s"] = b2 * before + (1 - b2) * distance**2 + eps
        if t == 1:
            return -RATE * g / (1 + eps)
        return -RATE * g / (np.sqrt(before / (1 - b2 ** (t - 1))) + eps)

    return fnopt.acprop(RATE, b1, b2, eps, eps), step


def adadelta(rho=0.9, eps=1e-3):
    """Zeiler 2012, algorithm 1."""

    def step(name, t, p, g, s):
        square = ema(s, "g", g**2, rho)
        u = -np.sqrt(s.get("x", 0.0) + eps) / np.sqrt(square + eps) * g
        ema(s, "x", u**2, rho)
        return u

    return fnopt.adadelta(1.0, rho, eps), step


def madgrad(momentum=0.8, eps=1e-6):
    """Defazio and Jelassi 2021, algorithm 1, with the authors' epsilon beside the rate."""

    def step(name, t, p, g, s):
        start, weight = s.setdefault("x0", p), (RATE + eps) * np.sqrt(t)
        s["s"] = s.get("s", 0.0) + weight * g
        s["v"] = s.get("v", 0.0) + weight * g**2
        z = start - s["s"] / (np.cbrt(s["v"]) + eps)
        return (1 - momentum) * (z - p)

    return fnopt.madgrad(RATE, momentum, eps=eps), step


def cocob(alpha=2.0, eps=1e-8):
    """Orabona and Tommasi 2017, algorithm 2."""

    def step(name, t, p, g, s):
        start, g = s.setdefault("w1", p), -g
        s["L"] = np.maximum(s.get("L", eps), np.abs(g))
        s["G"] = s.get("G", 0.0) + np.abs(g)
        s["R"] = np.maximum(s.get("R", 0.0) + (p - start) * g, 0)
        s["T"] = s.get("T", 0.0) + g
        bet = s["T"] / (s["L"] * np.maximum(s["G"] + s["L"], alpha * s["L"]))
        return start + bet * (s["L"] + s["R"]) - p

    return fnopt.cocob(alpha=alpha, eps=eps), step


def nadam(b1=0.9, b2=0.99, eps=1e-8):
    """Dozat 2016, algorithm 8 with a constant momentum."""

    def step(name, t, p, g, s):
        m, v = ema(s, "m", g, b1), ema(s, "v", g**2, b2) / (1 - b2**t)
        ahead = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
        return -RATE * ahead / (np.sqrt(v) + eps)

    return fnopt.nadam(RATE, b1, b2, eps), step


def simplified_ademamix(b1=0.9, b2=0.99, alpha=2.0, eps=1e-8):
    """Morwani et al. 2025: the sum of gradients in place of two means."""

    def step(name, t, p, g, s):
        s["m"] = b1 * s.get("m", 0.0) + g
        v = ema(s, "v", g**2, b2) / (1 - b2**t)
        return -0.01 * ((alpha * g + s["m"]) / (np.sqrt(v) + eps) + DECAY * p)

    tx = fnopt.simplified_ademamix(0.01, b1, b2, alpha, eps, weight_decay=DECAY)
    return tx, step


def ranger(period=6, share=0.5):
    """Wright 2019: Zhang et al.'s lookahead, algorithm 1, around RAdam."""
    fast, inner = radam()

    def step(name, t, p, g, s):
        slow, moved = s.setdefault("slow", p), p + inner(name, t, p, g, s)
        if t % period == 0:
            moved = s["slow"] = slow + share * (moved - slow)
        return moved - p

    return fnopt.lookahead(fast, period, share), step


def schedule_free_sgd(b1=0.9):
    """Defazio et al. 2024, equations 1 to 3: the params are y."""

    def step(name, t, p, g, s):
        z, x = s.get("z", p), s.get("x", p)
        s["z"] = z - RATE * g
        s["x"] = (1 - 1 / t) * x + s["z"] / t
        return (1 - b1) * s["z"] + b1 * s["x"] - p

    return fnopt.schedule_free_sgd(RATE, b1=b1), step


def schedule_free_adamw(b1=0.9, b2=0.99, eps=1e-8, warmup=5):
    """Defazio et al. 2024, algorithm 1 with AdamW; here a warm-up's first step is of length 0."""

    def step(name, t, p, g, s):
        z, x = s.get("z", p), s.get("x", p)
        v = ema(s, "v", g**2, b2) / (1 - b2**t)
        rate, weight = RATE * min(1.0, (t - 1) / warmup), min(1.0, t / warmup) ** 2
        s["z"] = z - rate * (g / (np.sqrt(v) + eps) + DECAY * p)
        s["sum"] = s.get("sum", 0.0) + weight
        c = weight / s["sum"]
        s["x"] = (1 - c) * x + c * s["z"]
        return (1 - b1) * s["z"] + b1 * s["x"] - p

    return fnopt.schedule_free_adamw(RATE, warmup, b1, b2, eps, DECAY), step


LEAFWISE = [
    *(adan, adabelief, yogi, ademamix, lion, radam, novograd, lars, lamb, sm3, adafactor, adopt),
    *(fromage, adamax, amsgrad, acprop, adadelta, madgrad, cocob, schedule_free_sgd),
    *(schedule_free_adamw, nadam, simplified_ademamix, ranger),
]


@pytest.mark.parametrize("method", LEAFWISE, ids=lambda f: f.__name__)
def test_agrees_with_the_paper(method):
    tx, step = method()
    assert_same(path(tx), by_hand(step))


def test_sophia_agrees_with_the_paper():
    """Liu et al. 2023, algorithm 3; here means are corrected, and curvature serves a step later.

    The Hessian is diagonal, so that any sample of signs knows it.
    """
    b1, b2, gamma, eps, every = 0.9, 0.8, 0.5, 1e-3, 3

    def step(name, t, p, g, s):
        m, h = ema(s, "m", g, b1) / (1 - b1**t), s.get("h", np.zeros_like(p))
        if t % every == 1:
            ema(s, "h", p**2, b2)
        return -RATE * (np.clip(m / np.maximum(gamma * h, eps), -1, 1) + DECAY * p)

    def quartic(p):
        return sum(jnp.sum(x**4) / 12 for x in p.values())

    tx = fnopt.sophia(RATE, b1, b2, eps, DECAY, gamma=gamma, update_interval=every)
    assert_same(path(tx, obj_fn=quartic), by_hand(step))
