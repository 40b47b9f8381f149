"""Residuals of Moré, Garbow and Hillstrom (1981), problems 1 to 19: their sizes are fixed.

Symbols as in the paper: params `x`, points `t`, `u`, `v`, `w`, data `y`; indices count from 1.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np


def _like(x: Any, values: Any) -> Any:
    """Constants in the dtype of the params."""
    return jnp.asarray(values, x.dtype)


def rosenbrock(x: Any) -> Any:
    """Problem 1."""
    x1, x2 = x
    return jnp.stack([10 * (x2 - x1**2), 1 - x1])


def freudenstein_roth(x: Any) -> Any:
    """Problem 2."""
    x1, x2 = x
    return jnp.stack([-13 + x1 + ((5 - x2) * x2 - 2) * x2, -29 + x1 + ((x2 + 1) * x2 - 14) * x2])


def powell_badly_scaled(x: Any) -> Any:
    """Problem 3."""
    x1, x2 = x
    return jnp.stack([1e4 * x1 * x2 - 1, jnp.exp(-x1) + jnp.exp(-x2) - 1.0001])


def brown_badly_scaled(x: Any) -> Any:
    """Problem 4."""
    x1, x2 = x
    return jnp.stack([x1 - 1e6, x2 - 2e-6, x1 * x2 - 2])


def beale(x: Any) -> Any:
    """Problem 5."""
    x1, x2 = x
    return jnp.stack([1.5 - x1 * (1 - x2), 2.25 - x1 * (1 - x2**2), 2.625 - x1 * (1 - x2**3)])


def jennrich_sampson(x: Any) -> Any:
    """Problem 6, m = 10."""
    i = _like(x, np.arange(1, 11))
    return 2 + 2 * i - (jnp.exp(i * x[0]) + jnp.exp(i * x[1]))


def helical_valley(x: Any) -> Any:
    """Problem 7; the angle jumps where x1 = 0."""
    x1, x2, x3 = x
    half = jnp.where(x1 < 0, _like(x, 0.5), _like(x, 0.0))
    theta = jnp.arctan(x2 / x1) / (2 * np.pi) + half
    return jnp.stack([10 * (x3 - 10 * theta), 10 * (jnp.sqrt(x1**2 + x2**2) - 1), x3])


_BARD = (
    *(0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39),
    *(0.37, 0.58, 0.73, 0.96, 1.34, 2.10, 4.39),
)


def bard(x: Any) -> Any:
    """Problem 8."""
    u = np.arange(1, 16)
    v = 16 - u
    u, v, w = (_like(x, a) for a in (u, v, np.minimum(u, v)))
    return _like(x, _BARD) - (x[0] + u / (v * x[1] + w * x[2]))


_GAUSSIAN = (0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521, 0.3989)


def gaussian(x: Any) -> Any:
    """Problem 9."""
    t = _like(x, (8 - np.arange(1, 16)) / 2)
    y = _like(x, _GAUSSIAN + _GAUSSIAN[-2::-1])
    return x[0] * jnp.exp(-x[1] * (t - x[2]) ** 2 / 2) - y


_MEYER = (
    *(34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744),
    *(8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872),
)


def meyer(x: Any) -> Any:
    """Problem 10."""
    t = _like(x, 45 + 5 * np.arange(1, 17))
    return x[0] * jnp.exp(x[1] / (t + x[2])) - _like(x, _MEYER)


def gulf(x: Any) -> Any:
    """Problem 11, m = 99; the paper's `y_i m i x_2` is a misprint of :math:`y_i - x_2`."""
    t = np.arange(1, 100) / 100
    y = 25 + (-50 * np.log(t)) ** (2 / 3)
    return jnp.exp(-(jnp.abs(_like(x, y) - x[1]) ** x[2]) / x[0]) - _like(x, t)


def box(x: Any) -> Any:
    """Problem 12, m = 10."""
    t = 0.1 * np.arange(1, 11)
    y = _like(x, np.exp(-t) - np.exp(-10 * t))
    t = _like(x, t)
    return jnp.exp(-t * x[0]) - jnp.exp(-t * x[1]) - x[2] * y


def powell_singular(x: Any) -> Any:
    """Problem 13."""
    x1, x2, x3, x4 = x
    return jnp.stack(
        [x1 + 10 * x2, 5**0.5 * (x3 - x4), (x2 - 2 * x3) ** 2, 10**0.5 * (x1 - x4) ** 2]
    )


def wood(x: Any) -> Any:
    """Problem 14."""
    x1, x2, x3, x4 = x
    return jnp.stack(
        [
            10 * (x2 - x1**2),
            1 - x1,
            90**0.5 * (x4 - x3**2),
            1 - x3,
            10**0.5 * (x2 + x4 - 2),
            10**-0.5 * (x2 - x4),
        ]
    )


_KOWALIK_Y = (
    *(0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627),
    *(0.0456, 0.0342, 0.0323, 0.0235, 0.0246),
)
_KOWALIK_U = (4.0, 2.0, 1.0, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625)


def kowalik_osborne(x: Any) -> Any:
    """Problem 15."""
    u = _like(x, _KOWALIK_U)
    return _like(x, _KOWALIK_Y) - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])


def brown_dennis(x: Any) -> Any:
    """Problem 16, m = 20."""
    t = np.arange(1, 21) / 5
    sin, cos, exp = (_like(x, f(t)) for f in (np.sin, np.cos, np.exp))
    return (x[0] + _like(x, t) * x[1] - exp) ** 2 + (x[2] + x[3] * sin - cos) ** 2


_OSBORNE1 = (
    *(0.844, 0.908, 0.932, 0.936, 0.925, 0.908, 0.881, 0.850, 0.818, 0.784, 0.751),
    *(0.718, 0.685, 0.658, 0.628, 0.603, 0.580, 0.558, 0.538, 0.522, 0.506, 0.490),
    *(0.478, 0.467, 0.457, 0.448, 0.438, 0.431, 0.424, 0.420, 0.414, 0.411, 0.406),
)


def osborne1(x: Any) -> Any:
    """Problem 17."""
    t = _like(x, 10 * np.arange(33))
    return _like(x, _OSBORNE1) - (x[0] + x[1] * jnp.exp(-t * x[3]) + x[2] * jnp.exp(-t * x[4]))


def biggs(x: Any) -> Any:
    """Problem 18, m = 13."""
    t = 0.1 * np.arange(1, 14)
    y = _like(x, np.exp(-t) - 5 * np.exp(-10 * t) + 3 * np.exp(-4 * t))
    t = _like(x, t)
    e1, e2, e5 = (jnp.exp(-t * x[k]) for k in (0, 1, 4))
    return x[2] * e1 - x[3] * e2 + x[5] * e5 - y


_OSBORNE2 = (
    *(1.366, 1.191, 1.112, 1.013, 0.991, 0.885, 0.831, 0.847, 0.786, 0.725, 0.746),
    *(0.679, 0.608, 0.655, 0.616, 0.606, 0.602, 0.626, 0.651, 0.724, 0.649, 0.649),
    *(0.694, 0.644, 0.624, 0.661, 0.612, 0.558, 0.533, 0.495, 0.500, 0.423, 0.395),
    *(0.375, 0.372, 0.391, 0.396, 0.405, 0.428, 0.429, 0.523, 0.562, 0.607, 0.653),
    *(0.672, 0.708, 0.633, 0.668, 0.645, 0.632, 0.591, 0.559, 0.597, 0.625, 0.739),
    *(0.710, 0.729, 0.720, 0.636, 0.581, 0.428, 0.292, 0.162, 0.098, 0.054),
)


def osborne2(x: Any) -> Any:
    """Problem 19."""
    t = _like(x, np.arange(65) / 10)
    decay = x[0] * jnp.exp(-t * x[4])
    peaks = [x[k] * jnp.exp(-((t - x[k + 7]) ** 2) * x[k + 4]) for k in (1, 2, 3)]
    return _like(x, _OSBORNE2) - (decay + sum(peaks))
