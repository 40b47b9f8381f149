"""Measure curve fits: batches of fits and single fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.accelerator.measure import Call, Case, Run, compiled, seconds_per_step


def decay(x: Any, a: Any, b: Any, c: Any) -> Any:
    """Exponential decay, the model of all fits in this file."""
    return a * jnp.exp(-b * x) + c


def data(fits: int, points: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `x`, decays with noise of 0.01, and initial guesses with errors of up to a half."""
    rng = np.random.default_rng(0)
    truth = rng.uniform((1.0, 0.5, 0.0), (3.0, 2.0, 1.0), (fits, 3))
    x = np.linspace(0.0, 3.0, points)
    a, b, c = (truth[:, i, None] for i in range(3))
    y = a * np.exp(-b * x) + c + 0.01 * rng.standard_normal((fits, points))
    p0 = truth * rng.uniform(0.5, 1.5, truth.shape)
    return x.astype(dtype), y.astype(dtype), p0.astype(dtype)


def cases(run: Run) -> Iterator[Case]:
    """Measure ten thousand fits, one fit, then a million fits."""
    yield from (batch_case(run, 10_000, dtype) for dtype in ("float32", "float64"))
    yield Case("one fit of 40 points, float32", lambda: single(run, "float32", host=True))
    yield batch_case(run, 1_000_000, "float32")


def more_cases(run: Run) -> Iterator[Case]:
    """Measure variants of `cases` that take similar times."""
    yield Case("one fit of 40 points, float64", lambda: single(run, "float64", host=False))
    yield batch_case(run, 1_000_000, "float64")


def batch_case(run: Run, fits: int, dtype: str) -> Case:
    """Case for `fits` fits by `curve_fit_batch`."""
    return Case(f"{fits} fits of 20 points, {dtype}", lambda: batch(run, fits, dtype))


def batch(run: Run, fits: int, dtype: str) -> list[dict[str, Any]]:
    """Measure `curve_fit_batch` in eager calls (the first call compiles) and under `jax.jit`."""
    count = run.pick(fits, fits // 1000)
    with jax.enable_x64(dtype == "float64"):
        x, y, p0 = map(jnp.asarray, data(count, 20, dtype))
        jax.clear_caches()
        start = time.perf_counter()
        first = jax.block_until_ready(fnopt.curve_fit_batch(decay, x, y, p0))
        rows = {"eager": {"cold_s": time.perf_counter() - start}}
        loops = {"eager": Call(lambda: fnopt.curve_fit_batch(decay, x, y, p0))}
        # A second compilation isn't worth its time for the largest batch, whose eager calls spend
        # little time outside the program.
        if fits < 100_000:
            program = compiled(lambda x, y, p0: fnopt.curve_fit_batch(decay, x, y, p0), x, y, p0)
            rows["compiled"], loops["compiled"] = program.facts(), Call(program.call, x, y, p0)
        times = seconds_per_step(loops, run)
        shared = {
            "fits": count,
            "converged": float(np.mean(np.asarray(first.converged))),
            "mean_steps": float(np.mean(np.asarray(first.steps))),
        }
    return [
        {"variant": name, **shared, "per_fit_s": t["seconds"] / count, **rows[name], **t}
        for name, t in times.items()
    ]


def single(run: Run, dtype: str, host: bool) -> list[dict[str, Any]]:
    """Measure `least_squares`, eager and compiled, on JAX's default device and on the host."""
    devices = {"device": jax.devices()[0]} | ({"host": jax.devices("cpu")[0]} if host else {})
    rows = []
    with jax.enable_x64(dtype == "float64"):
        x, y, p0 = data(1, 40, dtype)
        for name, device in devices.items():
            with jax.default_device(device):
                args = [jax.device_put(v, device) for v in (p0[0], x, y[0])]
                rows += _single(run, name, args)
    return rows


def _residuals(p: Any, x: Any, y: Any) -> Any:
    return decay(x, p[0], p[1], p[2]) - y


def _single(run: Run, where: str, args: list[Any]) -> list[dict[str, Any]]:
    p, *rest = args
    jax.clear_caches()

    def fit() -> Any:
        return fnopt.least_squares(_residuals, p, args=tuple(rest))

    start = time.perf_counter()
    end = jax.block_until_ready(fit())
    cold = time.perf_counter() - start
    solve: Callable[..., Any] = lambda p, x, y: fnopt.least_squares(_residuals, p, args=(x, y))  # noqa: E731
    program = compiled(solve, *args)
    times = seconds_per_step({"eager": Call(fit), "compiled": Call(program.call, *args)}, run)
    shared = {"converged": float(end.converged), "mean_steps": float(end.steps)}
    rows = {"eager": {"cold_s": cold}, "compiled": program.facts()}
    return [
        {"variant": f"{where}, {name}", **shared, **rows[name], **t} for name, t in times.items()
    ]
