"""Problems with saddles, valleys, poles and limits at infinity, with difficult initial guesses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Case(NamedTuple):
    """Residuals, bound on the cost of a minimum, a good initial guess, and distant guesses."""

    residuals: Callable[[jax.Array], jax.Array]
    cost: float
    start: list[float]
    far: list[list[float]]
    solvers: tuple[str, ...] = ("lm",)


def beale(p):
    x, y = p
    return jnp.stack([1.5 - x * (1 - y), 2.25 - x * (1 - y**2), 2.625 - x * (1 - y**3)])


def powell_badly_scaled(p):
    x, y = p
    return jnp.stack([1e4 * x * y - 1, jnp.exp(-x) + jnp.exp(-y) - 1.0001])


def powell_singular(p):
    a, b, c, d = p
    return jnp.stack([a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2])


def jennrich_sampson(p):
    i = jnp.arange(1, 11, dtype=p.dtype)
    return 2 + 2 * i - (jnp.exp(i * p[0]) + jnp.exp(i * p[1]))


def freudenstein_roth(p):
    x, y = p
    return jnp.stack([x - 13 + ((5 - y) * y - 2) * y, x - 29 + ((y + 1) * y - 14) * y])


BARD = [0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58, 0.73, 0.96, 1.34, 2.1, 4.39]


def bard(p):
    u = jnp.arange(1, 16, dtype=p.dtype)
    v = 16 - u
    return p[0] + u / (p[1] * v + p[2] * jnp.minimum(u, v)) - jnp.asarray(BARD, p.dtype)


MEYER = "34780 28610 23650 19630 16370 13720 11540 9744 8261 7030 6005 5147 4427 3820 3307 2872"


def meyer(p):
    t = 45 + 5 * jnp.arange(1, 17, dtype=p.dtype)
    return p[0] * jnp.exp(p[1] / (t + p[2])) - jnp.asarray(MEYER.split(), p.dtype)


def watson(x):
    t = jnp.arange(1, 30, dtype=x.dtype) / 29
    value = jnp.polyval(x[::-1], t)
    slope = jnp.polyval((x[1:] * jnp.arange(1, x.size, dtype=x.dtype))[::-1], t)
    return jnp.concatenate([slope - value**2 - 1, x[:1], x[1:2] - x[0] ** 2 - 1])


FAR_T = np.linspace(0.0, 10.0, 40)


def of_data(model, *truth, noise=0.02):
    """Return the residuals of a model for noisy data of the same model."""
    y = np.asarray(model(jnp.asarray(FAR_T, jnp.float32), *truth)) + noise * np.sin(9 * FAR_T)
    return lambda p: model(jnp.asarray(FAR_T, p.dtype), *p) - jnp.asarray(y, p.dtype)


def exponential(t, a, k, c):
    return a * jnp.exp(k * t) + c


def peak(t, a, b, w):
    return a * jnp.exp(-0.5 * ((t - b) / w) ** 2)


def lorentzian(t, a, b, w):
    return a / (1 + ((t - b) / w) ** 2)


def wave(t, a, k, w, b):
    return a * jnp.exp(-k * t) * jnp.cos(w * t + b)


def two_decays(t, a, k, b, q):
    return a * jnp.exp(-k * t) + b * jnp.exp(-q * t)


# Distant guesses, from most of which an earlier solver ended at infinity or at a rounding error.
WAVES = [[27.2, 0.0182, 0.0354, 1.24], [156.2, 0.127, 19.3, 0.145], [5.74, 0.0288, 0.0365, 5.41]]
CASES = {
    "beale": Case(beale, 1e-10, [1, 1], [[9.99, 9.99], [10, 10], [99.9, 99.9]], ("lm", "dogleg")),
    "powell badly scaled": Case(
        powell_badly_scaled, 1e-8, [0, 1], [[0, 9.99], [0, 10], [0, 100]], ("lm", "dogleg")
    ),
    "powell singular": Case(
        powell_singular,
        1e-10,
        [3, -1, 0.1, 1],
        [[30, -10, 1, 10]],
        ("lm", "dogleg", "gauss_newton", "cholesky", "cg"),
    ),
    "jennrich sampson": Case(jennrich_sampson, 62.19, [0.3, 0.4], [[3, 4]], ("lm", "dogleg")),
    "freudenstein roth": Case(freudenstein_roth, 24.5, [0.5, -2], [[5, -20], [50, -200]]),
    "bard": Case(bard, 4.2e-3, [1, 1, 1], [[100] * 3, [67, 168, 186], [182, 73, 85]], ("lm", "cg")),
    "meyer": Case(
        meyer, 50, [0.02, 4e3, 250], [[0.2, 54190, 1011], [0.0043, 12819, 127]], ("lm", "dogleg")
    ),
    "watson": Case(watson, 7.1e-7, [0.0] * 9, [[1.0] * 9], ("lm", "cholesky")),
    "growth": Case(
        of_data(exponential, 2.0, 0.15, 1.0),
        0.01,
        [1, 0.1, 0],
        [[a, k, b] for k in (2.5, 5.0, 6.0) for a, b in ((1, 1), (5, -3))],
        ("lm", "gauss_newton"),
    ),
    "a decay that underflows": Case(
        of_data(exponential, 2.0, -0.7, 0.3), 0.01, [1, -1, 0], [[1, -k, 0] for k in (200, 3000)]
    ),
    "a peak": Case(
        of_data(peak, 2.0, 5.0, 0.8),
        0.01,
        [1, 4, 1],
        [[1, 50, 1], [1, 4, 1e-3], [0, 50, 1], [1e8, 5, 1], [1e16, 5, 1]],
        ("lm", "dogleg"),
    ),
    "lorentzian": Case(
        of_data(lorentzian, 5.0, 4.0, 1.0), 0.01, [4, 4, 2], [[12, 15, 0.25], [20, 34, 0.2]]
    ),
    "a wave": Case(
        of_data(wave, 3.0, 0.3, 2.0, 0.5), 0.06, [2, 0.2, 2, 0], WAVES, ("lm", "dogleg")
    ),
    "two decays": Case(
        of_data(two_decays, 2.0, 0.5, 1.5, 3.0),
        0.01,
        [1, 0.3, 1, 4],
        [[1, 1, 1, 1], [1, 1, 1, 1.1]],
    ),
}
