"""Four differential equations with known solutions."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.pinns.points import spread
from benchmarks.pinns.problem import Field, Problem, second_derivatives

VISCOSITY = 0.1 / math.pi  # of Burgers' equation; ten times the usual value, for a small network
# Factor of the residuals at the boundary. Without the factor, Adam's error is 25 times as large for
# Poisson 2-D, and 6 times for 5-D. For Burgers' equation, a factor of 3 doubles Adam's error.
WEIGHT = 10.0
_NODES = 200  # number of nodes of the quadrature for Burgers' solution


def _weighted_zero(u: Field, x: jax.Array) -> jax.Array:
    return WEIGHT * u(x)


def _cube(d: int) -> Callable[..., tuple[jax.Array, ...]]:
    """Return a sampler of points in the unit cube and points on its faces, evenly per face."""

    def draw(key: jax.Array, counts: tuple[int, ...]) -> tuple[jax.Array, ...]:
        k1, k2 = jax.random.split(key)
        edge = spread(k2, counts[1], d)
        face = jnp.arange(counts[1])[:, None] % (2 * d)
        end = (face // d).astype(edge.dtype)
        return spread(k1, counts[0], d), jnp.where(jnp.arange(d) == face % d, end, edge)

    return draw


def _grid(low: tuple[float, ...], high: tuple[float, ...], side: int) -> np.ndarray:
    axes = [np.linspace(a, b, side) for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def _values(solution: Field, points: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(solution)(jnp.asarray(points)))


def poisson_2d() -> Problem:
    """Create Poisson's equation in the unit square."""

    def solution(x: jax.Array) -> jax.Array:
        return jnp.prod(jnp.sin(jnp.pi * x))

    def inside(u: Field, x: jax.Array) -> jax.Array:
        _, curvature = second_derivatives(u, x)
        return jnp.sum(curvature) + 2 * jnp.pi**2 * solution(x)

    points = _grid((0, 0), (1, 1), 51)
    return Problem(
        name="poisson_2d",
        title="Poisson 2-D",
        text="-u_xx - u_yy = 2 pi^2 sin(pi x) sin(pi y) in the unit square, u = 0 on its sides",
        widths=(2, 64, 1),
        conditions=(inside, _weighted_zero),
        draw=_cube(2),
        counts=(480, 120),
        points=points,
        exact=_values(solution, points),
    )


def poisson_5d() -> Problem:
    """Create Poisson's equation in the unit cube of five dimensions."""

    def solution(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cos(jnp.pi * x))

    def inside(u: Field, x: jax.Array) -> jax.Array:
        _, curvature = second_derivatives(u, x)
        return jnp.sum(curvature) + jnp.pi**2 * solution(x)

    def boundary(u: Field, x: jax.Array) -> jax.Array:
        return WEIGHT * (u(x) - solution(x))

    points = np.random.default_rng(0).random((4000, 5))
    return Problem(
        name="poisson_5d",
        title="Poisson 5-D",
        text="-laplacian u = pi^2 sum cos(pi x_k) in the unit cube, u given on its faces",
        widths=(5, 64, 1),
        conditions=(inside, boundary),
        draw=_cube(5),
        counts=(500, 200),
        points=points,
        exact=_values(solution, points),
    )


def helmholtz_2d() -> Problem:
    """Create Helmholtz' equation with an oscillating solution."""

    def solution(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.pi * x[0]) * jnp.sin(4 * jnp.pi * x[1])

    def inside(u: Field, x: jax.Array) -> jax.Array:
        _, curvature = second_derivatives(u, x)
        source = (1 - 17 * jnp.pi**2) * solution(x)
        return jnp.sum(curvature) + u(x) - source

    points = _grid((0, 0), (1, 1), 51)
    return Problem(
        name="helmholtz_2d",
        title="Helmholtz 2-D",
        text="u_xx + u_yy + u = q in the unit square, u = 0 on its sides, "
        "u = sin(pi x) sin(4 pi y)",
        widths=(2, 20, 20, 1),
        conditions=(inside, _weighted_zero),
        draw=_cube(2),
        counts=(500, 120),
        points=points,
        exact=_values(solution, points),
    )


def burgers_solution(points: np.ndarray) -> np.ndarray:
    r"""Solve Burgers' equation with initial values `-sin(pi x)` by the Cole-Hopf transform.

    .. math:: u = -\frac{\int \sin(\pi y)\, F(y)\, e^{-(x-y)^2 / 4 \nu t} dy}
                        {\int F(y)\, e^{-(x-y)^2 / 4 \nu t} dy}, \quad
              F(y) = e^{-\cos(\pi y) / 2 \pi \nu}
    """
    nodes, weights = np.polynomial.hermite.hermgauss(_NODES)
    x, t = points[:, :1], points[:, 1:]
    y = x - np.sqrt(4 * VISCOSITY * t) * nodes
    factor = weights * np.exp((-np.cos(np.pi * y) - 1) / (2 * np.pi * VISCOSITY))
    return -np.sum(factor * np.sin(np.pi * y), 1) / np.sum(factor, 1)


def burgers() -> Problem:
    """Create Burgers' equation in one space dimension and time."""

    def inside(u: Field, x: jax.Array) -> jax.Array:
        first, second = second_derivatives(u, x)
        return first[1] + u(x) * first[0] - VISCOSITY * second[0]

    def side(u: Field, x: jax.Array) -> jax.Array:
        return u(x)

    def start(u: Field, x: jax.Array) -> jax.Array:
        return u(x) + jnp.sin(jnp.pi * x[0])

    def draw(key: jax.Array, counts: tuple[int, ...]) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, 3)
        inside = spread(keys[0], counts[0], 2) * jnp.asarray([2.0, 1.0]) - jnp.asarray([1.0, 0.0])
        when = spread(keys[1], counts[1], 1)
        end = jnp.where(jnp.arange(counts[1]) % 2, 1.0, -1.0).astype(when.dtype)[:, None]
        where = 2 * spread(keys[2], counts[2], 1) - 1
        return inside, jnp.hstack([end, when]), jnp.hstack([where, 0 * where])

    points = _grid((-1, 0), (1, 1), 51)
    return Problem(
        name="burgers",
        title="Burgers",
        text="u_t + u u_x = (0.1 / pi) u_xx for |x| < 1, 0 < t < 1, u = 0 at |x| = 1, "
        "u = -sin(pi x) at t = 0",
        widths=(2, 20, 20, 1),
        conditions=(inside, side, start),
        draw=draw,
        counts=(880, 160, 160),
        points=points,
        exact=burgers_solution(points),
    )


EQUATIONS = {
    "poisson_2d": poisson_2d,
    "poisson_5d": poisson_5d,
    "burgers": burgers,
    "helmholtz_2d": helmholtz_2d,
}
