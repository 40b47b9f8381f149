"""Batches of small fits to noisy data, with initial guesses."""

import jax.numpy as jnp
import numpy as np

X = np.linspace(-5.0, 5.0, 40)
T = np.linspace(0.0, 4.0, 30)


def gaussian(x, a, c, w, b):
    return a * jnp.exp(-0.5 * ((x - c) / w) ** 2) + b


def lorentzian(x, a, c, w, b):
    return a / (1 + ((x - c) / w) ** 2) + b


def decay(t, a, k, b):
    return a * jnp.exp(-k * t) + b


PROBLEMS = {
    "gaussian": (gaussian, X, [(2, 9), (-1.5, 1.5), (0.6, 1.6), (0, 2)]),
    "lorentzian": (lorentzian, X, [(2, 9), (-1.5, 1.5), (0.5, 1.2), (0, 2)]),
    "decay": (decay, T, [(1, 5), (0.5, 2.0), (0, 1)]),
}


def make(name, fits, dtype=np.float32, noise=0.05, seed=0):
    """Return the model, x, y of shape [fits, points], and initial guesses of shape [fits, n]."""
    f, x, ranges = PROBLEMS[name]
    rng = np.random.default_rng(seed)
    true = np.stack([rng.uniform(*r, fits) for r in ranges], axis=1)
    y = np.stack([np.asarray(f(x, *p)) for p in true]) + noise * rng.standard_normal((fits, x.size))
    p0 = true * rng.uniform(0.8, 1.25, true.shape) + 0.1
    return f, x.astype(dtype), y.astype(dtype), p0.astype(dtype)
