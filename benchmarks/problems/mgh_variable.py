"""Residuals of Moré, Garbow and Hillstrom (1981), problems 20 to 35: for any number of params.

The number of params is that of `x`. Symbols as in the paper; its indices count from 1.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def _index(x: Any, first: int = 1) -> Any:
    """The indices of the params, by default 1 to n, in their dtype."""
    return jnp.arange(first, first + x.size, dtype=x.dtype)


def _interleaved(*residuals: Any) -> Any:
    return jnp.stack(residuals, axis=1).ravel()


def watson(x: Any) -> Any:
    """Problem 20, m = 31."""
    t = np.arange(1, 30)[:, None] / 29
    k = np.arange(x.size)
    slopes = k * t ** np.maximum(k - 1, 0)
    slope, level = jnp.asarray(slopes, x.dtype) @ x, jnp.asarray(t**k, x.dtype) @ x
    return jnp.concatenate([slope - level**2 - 1, x[:1], x[1:2] - x[:1] ** 2 - 1])


def extended_rosenbrock(x: Any) -> Any:
    """Problem 21, n even."""
    odd, even = x[0::2], x[1::2]
    return _interleaved(10 * (even - odd**2), 1 - odd)


def extended_powell_singular(x: Any) -> Any:
    """Problem 22, n a multiple of 4."""
    a, b, c, d = x.reshape(-1, 4).T
    return _interleaved(a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2)


def penalty1(x: Any) -> Any:
    """Problem 23, m = n + 1."""
    return jnp.append(1e-5**0.5 * (x - 1), jnp.sum(x**2) - 0.25)


def penalty2(x: Any) -> Any:
    """Problem 24, m = 2n."""
    n, a = x.size, 1e-5**0.5
    i = np.arange(2, n + 1)
    y = jnp.asarray(np.exp(i / 10) + np.exp((i - 1) / 10), x.dtype)
    e = jnp.exp(x / 10)
    pairs = a * (e[1:] + e[:-1] - y)
    level = a * (e[1:] - float(np.exp(-0.1)))
    last = jnp.sum(_index(x)[::-1] * x**2) - 1
    return jnp.concatenate([x[:1] - 0.2, pairs, level, last[None]])


def variably_dimensioned(x: Any) -> Any:
    """Problem 25, m = n + 2."""
    s = jnp.sum(_index(x) * (x - 1))
    return jnp.concatenate([x - 1, s[None], s[None] ** 2])


def trigonometric(x: Any) -> Any:
    """Problem 26, m = n."""
    return x.size - jnp.sum(jnp.cos(x)) + _index(x) * (1 - jnp.cos(x)) - jnp.sin(x)


def brown_almost_linear(x: Any) -> Any:
    """Problem 27, m = n."""
    return jnp.append(x[:-1] + jnp.sum(x) - (x.size + 1), jnp.prod(x) - 1)


def _grid(x: Any) -> tuple[Any, float]:
    """The points and the distance between them."""
    h = 1 / (x.size + 1)
    return _index(x) * h, h


def discrete_boundary_value(x: Any) -> Any:
    """Problem 28, m = n."""
    t, h = _grid(x)
    before, after = jnp.pad(x, (1, 0))[:-1], jnp.pad(x, (0, 1))[1:]
    return 2 * x - before - after + h**2 * (x + t + 1) ** 3 / 2


def discrete_integral(x: Any) -> Any:
    """Problem 29, m = n."""
    t, h = _grid(x)
    cubes = (x + t + 1) ** 3
    below = jnp.cumsum(t * cubes)
    above = jnp.cumsum(((1 - t) * cubes)[::-1])[::-1] - (1 - t) * cubes
    return x + h * ((1 - t) * below + t * above) / 2


def broyden_tridiagonal(x: Any) -> Any:
    """Problem 30, m = n."""
    before, after = jnp.pad(x, (1, 0))[:-1], jnp.pad(x, (0, 1))[1:]
    return (3 - 2 * x) * x - before - 2 * after + 1


def broyden_banded(x: Any) -> Any:
    """Problem 31, m = n: each residual has 5 params below and 1 above its own."""
    i, j = np.arange(x.size)[:, None], np.arange(x.size)
    band = jnp.asarray((j != i) & (i - 5 <= j) & (j <= i + 1), x.dtype)
    return x * (2 + 5 * x**2) + 1 - band @ (x * (1 + x))


def linear_full_rank(x: Any) -> Any:
    """Problem 32, m = 2n."""
    m = 2 * x.size
    return jnp.pad(x, (0, x.size)) - 2 / m * jnp.sum(x) - 1


def linear_rank_one(x: Any) -> Any:
    """Problem 33, m = 2n."""
    i = jnp.arange(1, 2 * x.size + 1, dtype=x.dtype)
    return i * jnp.sum(_index(x) * x) - 1


def linear_rank_one_with_zeros(x: Any) -> Any:
    """Problem 34, m = 2n: the first and last params, and residuals, have no part in it."""
    i = np.arange(2 * x.size)
    i[-1] = 0
    return jnp.asarray(i, x.dtype) * jnp.sum((_index(x) * x)[1:-1]) - 1


def chebyquad(x: Any) -> Any:
    """Problem 35, m = n: means of the Chebyshev polynomials, shifted to [0, 1], less integrals."""
    now, last = 2 * x - 1, jnp.ones_like(x)
    means = []
    for _ in range(x.size):
        means.append(jnp.mean(now))
        now, last = 2 * (2 * x - 1) * now - last, now
    i = np.arange(1, x.size + 1)
    integrals = np.where(i % 2 == 0, -1 / np.maximum(i**2 - 1.0, 1), 0)
    return jnp.stack(means) - jnp.asarray(integrals, x.dtype)
