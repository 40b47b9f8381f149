"""Compare elimination of points and conjugate gradients on all params for bundle adjustment.

Times are CPU seconds of the compiled program, the minimum of two runs; the two solvers alternate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings

SIZES = {True: (8, 120), False: (20, 2000)}  # (cameras, points); the key is `settings.smoke`
_BETWEEN = 2.4 / 19  # angle between neighboring cameras; 20 cameras span 2.4 rad


def rotate(w: Any, x: Any) -> Any:
    """Rotate a vector by a rotation vector (Rodrigues)."""
    angle = jnp.sqrt(jnp.sum(w * w) + 1e-24)
    k = w / angle
    return (
        x * jnp.cos(angle)
        + jnp.cross(k, x) * jnp.sin(angle)
        + k * jnp.dot(k, x) * (1 - jnp.cos(angle))
    )


def project(camera: Any, point: Any) -> Any:
    """Project a point by BAL's camera: rotation, translation, focal length, two distortions."""
    p = rotate(camera[:3], point) + camera[3:6]
    q = -p[:2] / p[2]
    square = jnp.sum(q * q)
    return camera[6] * (1 + camera[7] * square + camera[8] * square**2) * q


def scene(cameras: int, points: int) -> tuple[Callable[[Any], Any], Any]:
    """Return residuals and an initial guess; two to six neighboring cameras see each point.

    The cameras are on a circle. The angle between neighbors doesn't depend on the number of
    cameras. If this angle were smaller than the errors of the initial guess, the rays to a point
    would hardly differ, and the depth of the point would be undetermined.
    """
    rng = np.random.default_rng(0)
    camera = np.zeros((cameras, 9))
    angle = _BETWEEN * (np.arange(cameras) - (cameras - 1) / 2)
    camera[:, 1] = np.remainder(angle + np.pi, 2 * np.pi) - np.pi  # dexp is singular at 2 pi
    camera[:, 5] = -6
    camera[:, 6], camera[:, 7:] = 800 + 20 * rng.normal(size=cameras), (-0.1, 0.01)
    point = rng.normal(size=(points, 3))
    first, count = rng.integers(0, cameras - 5, points), rng.integers(2, 7, points)
    i = np.concatenate([a + rng.permutation(6)[:k] for a, k in zip(first, count, strict=True)])
    j = np.repeat(np.arange(points), count)
    pixels = jax.vmap(project)(camera[i], point[j]) + 0.5 * rng.normal(size=(j.size, 2))
    noise = np.asarray([0.02] * 3 + [0.1] * 3 + [20, 0.02, 0.005])
    start = {
        "camera": jnp.asarray(camera + noise * rng.normal(size=camera.shape)),
        "point": jnp.asarray(point + 0.1 * rng.normal(size=point.shape)),
    }
    return lambda p: jax.vmap(project)(p["camera"][i], p["point"][j]) - pixels, start


def seconds(solve: Callable[[Any], Any], start: Any) -> float:
    """Return the CPU time of one run."""
    began = time.process_time()
    jax.block_until_ready(solve(start))
    return time.process_time() - began


def run(settings: Settings) -> Iterator[Metric]:
    """Compare time, steps and cost of both solvers."""
    with jax.enable_x64(True):
        residuals, start = scene(*SIZES[settings.smoke])
        jac = fnopt.sparse_jacobian(residuals)

        def solver(name: str) -> Callable[[Any], Any]:
            method = fnopt.levenberg_marquardt(linear_solver=name)
            return jax.jit(
                lambda p: fnopt.least_squares(residuals, p, jac=jac, solver=method, max_steps=100)
            )

        solvers = {name: solver(name) for name in ("auto", "cg")}
        ends = {name: jax.block_until_ready(solve(start)) for name, solve in solvers.items()}
        times = [[seconds(solve, start) for solve in solvers.values()] for _ in range(2)]
        direct, iterative = map(min, zip(*times, strict=True))
        detail = {
            "seconds": direct,
            "seconds_of_cg": iterative,
            "steps": float(ends["auto"].steps),
            "steps_of_cg": float(ends["cg"].steps),
            "params_left": float(jac.plan(start).left),
        }
        size = "bundle adjustment, {} cameras x {} points".format(*SIZES[settings.smoke])
        yield Metric(f"{size}: time", direct / iterative, "x conjugate gradients", detail=detail)
        cost = float(ends["auto"].cost / ends["cg"].cost)
        yield Metric(f"{size}: cost", cost, "x conjugate gradients", tolerance=1e-3)
