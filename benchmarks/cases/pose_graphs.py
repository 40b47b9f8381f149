"""Compare pose graphs on a sphere and on a torus with GTSAM.

Times are CPU seconds of the compiled fit and of GTSAM's optimizer, the minimum of two runs. The two
libraries alternate, and stop at the same relative decrease of the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.cases.structured import gtsam_run, seconds
from benchmarks.metric import Metric
from benchmarks.timing import Settings, peer
from fnopt.manifolds import SE3, SO3, on

TURN = {True: 10, False: 50}  # poses per turn; the key is `settings.smoke`
SHIFT, ANGLE = 0.05, 0.01  # errors of the measurements, m and rad
TOLERANCE = 1e-10  # relative decrease of the cost


def positions(name: str, turn: int) -> np.ndarray:
    """Return points on a spiral with `turn` turns around a sphere, or `2 * turn` around a torus."""
    n = turn * turn * (1 if name == "sphere" else 2)
    a, t = 2 * np.pi * np.arange(n) / turn, np.arange(n) / n
    if name == "sphere":
        b = np.pi * (0.02 + 0.96 * t)
        return 50 * np.stack([np.sin(b) * np.cos(a), np.sin(b) * np.sin(a), np.cos(b)], 1)
    b, r = 2 * np.pi * t, 30 + 10 * np.cos(a)
    return np.stack([r * np.cos(b), r * np.sin(b), 10 * np.sin(a)], 1)


def graph(name: str, turn: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return edges `[m, 2]`, measured relative poses `[m, 4, 4]`, and poses from odometry."""
    rng, points = np.random.default_rng(0), positions(name, turn)
    n, k = len(points), np.arange(len(points))
    # The x axis of a pose is tangent to the spiral, the z axis points away from the center.
    tangents = np.gradient(points, axis=0)
    x = tangents / np.linalg.norm(tangents, axis=1)[:, None]
    normals = points - points.mean(0)
    normals -= np.sum(normals * x, 1)[:, None] * x
    z = normals / np.linalg.norm(normals, axis=1)[:, None]
    truth = SE3.of(jnp.asarray(np.stack([x, np.cross(z, x), z], 2)), jnp.asarray(points))
    edges = np.r_[np.c_[k[:-1], k[1:]], np.c_[k[:-turn], k[turn:]]]
    if name == "torus":
        edges = np.r_[edges, np.c_[k[:turn], k[:turn] + n - turn]]
    noise = rng.normal(size=(len(edges), 6)) * np.repeat([SHIFT, ANGLE], 3)
    exact = SE3.inverse(truth[edges[:, 0]]) @ truth[edges[:, 1]]
    measured = SE3.retract(exact, jnp.asarray(noise))
    step = lambda T, D: (T @ D, T @ D)  # noqa: E731
    rest = jax.lax.scan(step, truth[0], measured[: n - 1])[1]
    return edges, np.asarray(measured), np.concatenate([truth[:1], rest])


def logarithm(T: Any) -> Any:
    """Return the logarithm of poses in SE(3): translation and rotation vectors `[..., 6]`."""
    w, p = SO3.local(jnp.eye(3), T[..., :3, :3]), T[..., :3, 3]
    square = jnp.sum(w * w, -1, keepdims=True)
    small = square < 1e-6
    angle = jnp.sqrt(jnp.where(small, 1, square))
    k = (1 - angle / 2 / jnp.tan(angle / 2)) / angle**2
    cross = jnp.cross(w, p)
    # Taylor series, because the difference in `k` cancels for small angles.
    k = jnp.where(small, 1 / 12 + square / 720, k)
    return jnp.concatenate([p - cross / 2 + k * jnp.cross(w, cross), w], -1)


def fnopt_solver(edges: np.ndarray, measured: np.ndarray, poses: np.ndarray) -> tuple[Any, Any]:
    """Return the compiled fit with a fixed first pose, and its initial guess."""
    (i, j), inverses = edges.T, SE3.inverse(jnp.asarray(measured))

    def residuals(p: Any) -> Any:
        T = jnp.concatenate([p["first"].value[None], p["rest"].value])
        error = logarithm(inverses @ (SE3.inverse(T[i]) @ T[j]))
        return error / jnp.repeat(jnp.asarray([SHIFT, ANGLE]), 3)

    start = {"first": on(SE3, jnp.asarray(poses[0])), "rest": on(SE3, jnp.asarray(poses[1:]))}
    jac, gauge = fnopt.sparse_jacobian(residuals), {"first": fnopt.fixed()}
    solver = fnopt.levenberg_marquardt(ftol=TOLERANCE)
    solve = jax.jit(
        lambda p: fnopt.least_squares(residuals, p, jac=jac, constraints=gauge, solver=solver)
    )
    return solve, start


def gtsam_solver(gtsam: Any, edges: np.ndarray, measured: np.ndarray, poses: np.ndarray) -> Any:
    """Return a function that runs GTSAM's optimizer on the same problem."""
    noise = gtsam.noiseModel.Diagonal.Sigmas(np.repeat([ANGLE, SHIFT], 3))
    factors, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    for k, pose in enumerate(poses):
        values.insert(k, gtsam.Pose3(pose))
    for (i, j), pose in zip(edges.tolist(), measured, strict=True):
        factors.add(gtsam.BetweenFactorPose3(i, j, gtsam.Pose3(pose), noise))
    factors.add(gtsam.NonlinearEqualityPose3(0, gtsam.Pose3(poses[0])))
    options = gtsam.LevenbergMarquardtParams()
    options.setRelativeErrorTol(TOLERANCE)
    return gtsam_run(gtsam, factors, values, options)


def run(settings: Settings) -> Iterator[Metric]:
    """Compare time, steps and cost."""
    gtsam = peer("gtsam")
    with jax.enable_x64(True):
        for name in ("sphere", "torus"):
            problem = graph(name, TURN[settings.smoke])
            solve, start = fnopt_solver(*problem)
            solve_gtsam = gtsam_solver(gtsam, *problem)
            fit, (cost, steps) = jax.block_until_ready(solve(start)), solve_gtsam(None)
            times = [[seconds(solve, start), seconds(solve_gtsam, None)] for _ in range(2)]
            mine, peers = map(min, zip(*times, strict=True))
            detail = {
                "seconds": mine,
                "seconds_of_gtsam": peers,
                "steps": float(fit.steps),
                "steps_of_gtsam": float(steps),
            }
            title = f"pose graph on a {name}, {len(problem[2])} poses"
            yield Metric(f"{title}: time", mine / peers, "x GTSAM", detail=detail)
            yield Metric(f"{title}: cost", float(fit.cost / cost), "x GTSAM", tolerance=1e-6)
