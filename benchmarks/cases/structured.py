"""Compare bundle adjustment with conjugate gradients and GTSAM; measure the growth of a step.

Times are CPU seconds of the compiled program, the minimum of two runs. The solvers alternate and
stop at the same relative decrease of the cost.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings, peer

SIZES = {True: (8, 120), False: (20, 2000)}  # (cameras, points); the key is `settings.smoke`
TOLERANCE = 1e-10  # relative decrease of the cost
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


class Scene(NamedTuple):
    """Cameras and points, and the pixels at which cameras see points."""

    camera_index: np.ndarray  # [observations]
    point_index: np.ndarray  # [observations]
    pixels: np.ndarray  # [observations, 2]
    start: dict[str, jax.Array]

    def residuals(self, p: Any) -> Any:
        """Errors of the projections in pixels."""
        return (
            jax.vmap(project)(p["camera"][self.camera_index], p["point"][self.point_index])
            - self.pixels
        )


def scene(cameras: int, points: int) -> Scene:
    """Make a scene: two to six neighboring cameras on a circle see each point.

    The angle between neighbors is the same for any number of cameras. If it is smaller than the
    errors of the initial guess, the depth of the points is undetermined.
    """
    rng = np.random.default_rng(0)
    camera = np.zeros((cameras, 9))
    angle = _BETWEEN * (np.arange(cameras) - (cameras - 1) / 2)
    camera[:, 1] = np.remainder(angle + np.pi, 2 * np.pi) - np.pi  # dexp is singular at 2 pi
    camera[:, 5] = -6
    camera[:, 6], camera[:, 7:] = 800 + 20 * rng.normal(size=cameras), (-0.1, 0.01)
    point = rng.normal(size=(points, 3))
    first, count = rng.integers(0, cameras - 5, points), rng.integers(2, 7, points)
    point_index = np.repeat(np.arange(points), count)
    camera_index = np.concatenate(
        [a + rng.permutation(6)[:k] for a, k in zip(first, count, strict=True)]
    )
    pixels = jax.vmap(project)(camera[camera_index], point[point_index]) + 0.5 * rng.normal(
        size=(point_index.size, 2)
    )
    noise = np.asarray([0.02] * 3 + [0.1] * 3 + [20, 0.02, 0.005])
    start = {
        "camera": jnp.asarray(camera + noise * rng.normal(size=camera.shape)),
        "point": jnp.asarray(point + 0.1 * rng.normal(size=point.shape)),
    }
    return Scene(camera_index, point_index, np.asarray(pixels), start)


def gtsam_of(gtsam: Any, scene: Scene) -> Callable[[Any], Any]:
    """GTSAM's optimizer, ready to run, of the same problem; its cameras look along their z-axis."""
    axes = np.asarray([1.0, -1.0, -1.0])  # BAL's cameras look along -z
    factors, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    camera, point = (np.asarray(scene.start[name]) for name in ("camera", "point"))
    for k, c in enumerate(camera):
        R = axes[:, None] * gtsam.Rot3.Expmap(c[:3]).matrix()
        pose = gtsam.Pose3(gtsam.Rot3(R.T), -R.T @ (axes * c[3:6]))
        lens = gtsam.Cal3Bundler(*c[6:], 0, 0)
        values.insert(k, gtsam.PinholeCameraCal3Bundler(pose, lens))
    for k, x in enumerate(point):
        values.insert(len(camera) + k, x)
    noise, first = gtsam.noiseModel.Unit.Create(2), len(camera)
    for k, j, pixel in zip(
        scene.camera_index.tolist(), scene.point_index.tolist(), scene.pixels, strict=True
    ):
        factor = gtsam.GeneralSFMFactorCal3Bundler(pixel * axes[:2], noise, k, first + j)
        factors.add(factor)
    options = gtsam.LevenbergMarquardtParams.CeresDefaults()
    options.setRelativeErrorTol(TOLERANCE)
    return gtsam_run(gtsam, factors, values, options)


def gtsam_run(gtsam: Any, factors: Any, values: Any, options: Any) -> Callable[[Any], Any]:
    """Return a function that runs GTSAM's optimizer; it returns the final cost and the steps."""

    def solve(_: Any) -> Any:
        optimizer = gtsam.LevenbergMarquardtOptimizer(factors, values, options)
        optimizer.optimize()
        return np.asarray([optimizer.error(), optimizer.iterations()])

    return solve


def seconds(solve: Callable[[Any], Any], start: Any) -> float:
    """CPU time of one run."""
    began = time.process_time()
    jax.block_until_ready(solve(start))
    return time.process_time() - began


def fit_of(residuals: Callable[[Any], Any], name: str = "auto", steps: int = 100) -> Any:
    """Return the compiled fit, with a sparse Jacobian."""
    jac = fnopt.sparse_jacobian(residuals)
    solver = fnopt.levenberg_marquardt(linear_solver=name, ftol=TOLERANCE)
    return jax.jit(
        lambda p: fnopt.least_squares(residuals, p, jac=jac, solver=solver, max_steps=steps)
    )


def bundle_adjustment(settings: Settings) -> Iterator[Metric]:
    """Compare time and cost of a bundle adjustment with other solvers."""
    problem = scene(*SIZES[settings.smoke])
    solvers = {name: fit_of(problem.residuals, name) for name in ("auto", "cg")}
    ends = {name: jax.block_until_ready(solve(problem.start)) for name, solve in solvers.items()}
    results = {name: [float(fit.cost), float(fit.steps)] for name, fit in ends.items()}
    if importlib.util.find_spec("gtsam"):
        solvers["gtsam"] = gtsam_of(peer("gtsam"), problem)
        results["gtsam"] = solvers["gtsam"](None).tolist()
    times = [[seconds(solve, problem.start) for solve in solvers.values()] for _ in range(2)]
    fastest = dict(zip(solvers, map(min, zip(*times, strict=True)), strict=True))
    size = "bundle adjustment, {} cameras x {} points".format(*SIZES[settings.smoke])
    for name, unit in {"cg": "x conjugate gradients", "gtsam": "x GTSAM"}.items():
        if name in results:
            detail = {
                "seconds": fastest["auto"],
                f"seconds_of_{name}": fastest[name],
                "steps": results["auto"][1],
                f"steps_of_{name}": results[name][1],
            }
            yield Metric(f"{size}: time", fastest["auto"] / fastest[name], unit, detail=detail)
            cost = results["auto"][0] / results[name][0]
            yield Metric(f"{size}: cost", cost, unit, tolerance=1e-3)


def chain(n: int) -> tuple[Callable[[Any], Any], Any]:
    """Residuals of a chain with `n` unknowns, and an initial guess."""
    data = jnp.cos(jnp.arange(n) * 0.1)
    return lambda x: jnp.concatenate([x - data, 3 * (x[1:] - jnp.sin(x[:-1]))]), jnp.zeros(n)


def grid(n: int) -> tuple[Callable[[Any], Any], Any]:
    """Residuals of a square grid with about `n` unknowns, and an initial guess."""
    k = round(n**0.5)
    data = jnp.cos(jnp.arange(k * k) * 0.1).reshape(k, k)

    def residuals(x: Any) -> Any:
        parts = x - data, x[1:] - jnp.sin(x[:-1]), x[:, 1:] - jnp.sin(x[:, :-1])
        return jnp.concatenate([part.ravel() for part in parts])

    return residuals, jnp.zeros((k, k))


def adjustment(n: int) -> tuple[Callable[[Any], Any], Any]:
    """Residuals of a bundle adjustment with 20 cameras and `n / 3` points, and a guess."""
    problem = scene(20, n // 3)
    return problem.residuals, problem.start


def growth(settings: Settings) -> Iterator[Metric]:
    """Measure how the time of a step grows for ten times as many unknowns."""
    sizes = (90, 900) if settings.smoke else (3_000, 30_000)
    makers = {"chain": chain, "grid": grid, "bundle adjustment": adjustment}
    for name, make in list(makers.items())[: 1 if settings.smoke else 3]:
        steps, detail = [], {}
        for n in sizes:
            residuals, start = make(n)
            solve = fit_of(residuals)
            evaluations = float(solve(start).nfev)
            steps.append(min(seconds(solve, start) for _ in range(2)) / evaluations)
            detail[f"ms_per_step_of_{n}"] = 1e3 * steps[-1]
        title = f"{name}, {sizes[0]} to {sizes[1]} unknowns: time of a step"
        yield Metric(title, steps[1] / steps[0], "x", tolerance=float("inf"), detail=detail)


def run(settings: Settings) -> Iterator[Metric]:
    """Compare with other solvers, and measure the growth."""
    with jax.enable_x64(True):
        yield from bundle_adjustment(settings)
        yield from growth(settings)
