"""Bundle adjustment, with the points eliminated and by conjugate gradients on all params.

Times are CPU seconds of the compiled program, the faster of two runs; both run in turns.
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

SIZES = {True: (8, 120), False: (20, 2000)}  # cameras, points; of a smoke run or not
_BETWEEN = 2.4 / 19  # angle between neighboring cameras: 20 of them span 2.4 rad


def rotate(w: Any, x: Any) -> Any:
    """Rodrigues' rotation by a vector."""
    angle = jnp.sqrt(jnp.sum(w * w) + 1e-24)
    k = w / angle
    return (
        x * jnp.cos(angle)
        + jnp.cross(k, x) * jnp.sin(angle)
        + k * jnp.dot(k, x) * (1 - jnp.cos(angle))
    )


def project(camera: Any, point: Any) -> Any:
    """The pixel of BAL's camera: rotation, shift, focal length, two distortions."""
    p = rotate(camera[:3], point) + camera[3:6]
    q = -p[:2] / p[2]
    square = jnp.sum(q * q)
    return camera[6] * (1 + camera[7] * square + camera[8] * square**2) * q


def scene(cameras: int, points: int) -> tuple[Callable[[Any], Any], Any]:
    """Residuals and a start: two to six neighboring cameras on a circle see each point.

    The angle between neighbors is the same for any number of cameras: with a smaller angle than the
    errors of the start, the rays to a point hardly differ, and its depth is undetermined.
    """
    rng = np.random.default_rng(0)
    camera = np.zeros((cameras, 9))
    angle = _BETWEEN * (np.arange(cameras) - (cameras - 1) / 2)
    camera[:, 1] = np.remainder(angle + np.pi, 2 * np.pi) - np.pi  # dexp is singular at 2 pi
    camera[:, 5] = -6
    camera[:, 6], camera[:, 7:] = 800 + 20 * rng.normal(size=cameras), (-0.1, 0.01)
    point = rng.normal(size=(points, 3))
    first, count = rng.integers(0, cameras - 5, points), rng.integers(2, 7, points)
    of = np.repeat(np.arange(points), count)
    by = np.concatenate([a + rng.permutation(6)[:k] for a, k in zip(first, count, strict=True)])
    seen = jax.vmap(project)(camera[by], point[of]) + 0.5 * rng.normal(size=(of.size, 2))
    noise = np.asarray([0.02] * 3 + [0.1] * 3 + [20, 0.02, 0.005])
    start = {
        "camera": jnp.asarray(camera + noise * rng.normal(size=camera.shape)),
        "point": jnp.asarray(point + 0.1 * rng.normal(size=point.shape)),
    }
    return lambda p: jax.vmap(project)(p["camera"][by], p["point"][of]) - seen, start


def seconds(solve: Callable[[Any], Any], start: Any) -> float:
    """CPU time of one run."""
    began = time.process_time()
    jax.block_until_ready(solve(start))
    return time.process_time() - began


def run(settings: Settings) -> Iterator[Metric]:
    """Measure time, steps and cost of both."""
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
