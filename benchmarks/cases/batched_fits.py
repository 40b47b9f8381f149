"""Compare `curve_fit_batch` with optimistix, jaxopt, SciPy and Cpufit's algorithm on peaks.

Run the benchmark on one core, because the libraries use different numbers of threads: on Linux, run
`taskset -c 0 python -m benchmarks batched_fits`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks import cpufit
from benchmarks.metric import Metric, Skipped
from benchmarks.timing import (
    Settings,
    blocking,
    compile_ratio,
    compile_seconds,
    interleave,
    peer,
    ratio,
)

POINTS, MAX_STEPS = 50, 100
# Each solver has the loosest tolerance, as a power of ten, with which nearly all fits end within a
# hundredth of a standard error of the optimum. The benchmark reports the fraction of these fits.
# - jaxopt's tolerance is absolute and for the gradient. In float32, rounding errors of the gradient
#   exceed 1e-3, so jaxopt would take MAX_STEPS steps; 1e-2 avoids this, with fewer accurate fits.
# - fnopt and Cpufit have a tenfold tighter tolerance in float64. Their median and worst fits are
#   then nearer to the optimum than the fits of optimistix and jaxopt.
TOLERANCE = {
    "float32": {"fnopt": 1e-6, "optimistix": 1e-3, "jaxopt": 1e-2, "cpufit": 1e-6},
    "float64": {"fnopt": 1e-5, "optimistix": 1e-3, "jaxopt": 1e-3, "cpufit": 1e-5},
}
ACCURATE = 0.01  # standard errors


def peak(x: Any, a: Any, c: Any, w: Any, b: Any, s: Any) -> Any:
    """Return a Gaussian peak plus a linear background."""
    return a * jnp.exp(-0.5 * ((x - c) / w) ** 2) + b + s * x


@dataclasses.dataclass(frozen=True)
class Peaks:
    """Data, initial guesses, and the optimal parameters with standard errors in float64."""

    x: Any
    y: Any
    p0: Any
    best: np.ndarray
    errors: np.ndarray

    def accurate_fraction(self, params: Any) -> float:
        """Fraction of fits within `ACCURATE` standard errors of the optimum."""
        distance = np.abs(np.asarray(params, np.float64) - self.best) / self.errors
        return float(np.mean(np.all(distance < ACCURATE, axis=1)))


def peaks(fits: int, dtype: Any) -> Peaks:
    """Return noisy peaks, and initial guesses with errors of up to about 20 %."""
    rng = np.random.default_rng(0)
    x = np.linspace(-5, 5, POINTS)
    low, high = np.transpose([(2, 10), (-1.5, 1.5), (0.6, 1.8), (0, 3), (-0.2, 0.2)])
    p = rng.uniform(low, high, (fits, 5))
    y = np.asarray(jax.vmap(peak, (None, 0, 0, 0, 0, 0))(x, *p.T))
    y = y + 0.1 * rng.standard_normal(y.shape)
    p0 = p * rng.uniform(0.8, 1.2, p.shape) + np.asarray([0, 0.3, 0, 0.2, 0])
    best = fnopt.curve_fit_batch(peak, x, y, p0)
    arrays = [jnp.asarray(a, dtype) for a in (x, y, p0)]
    return Peaks(*arrays, np.asarray(best.params), np.asarray(best.errors))


def residuals(p: Any, x: Any, y: Any) -> Any:
    """Return the residuals of one fit, for the other libraries."""
    return peak(x, *p) - y


def by_fnopt(x: Any, y: Any, p0: Any, ftol: float | None = None) -> Any:
    """Fit all peaks by fnopt; return the whole `BatchFit`."""
    return fnopt.curve_fit_batch(peak, x, y, p0, ftol=ftol)


def by_optimistix(tolerance: float) -> Callable[..., Any]:
    """Return a function that fits all peaks by optimistix under `vmap`."""
    optimistix = peer("optimistix")
    solver = optimistix.LevenbergMarquardt(rtol=tolerance, atol=tolerance)

    def one(x: Any, y: Any, p0: Any) -> Any:
        def fn(p: Any, xy: Any) -> Any:
            return residuals(p, *xy)

        return optimistix.least_squares(
            fn, solver, p0, (x, y), max_steps=MAX_STEPS, throw=False
        ).value

    return jax.vmap(one, (None, 0, 0))


def by_jaxopt(tolerance: float) -> Callable[..., Any]:
    """Return a function that fits all peaks by jaxopt under `vmap`, with its fastest solver."""
    jaxopt = peer("jaxopt")
    solver = jaxopt.LevenbergMarquardt(
        residuals,
        solver="cholesky",
        materialize_jac=True,
        damping_parameter=1e-3,
        tol=tolerance,
        xtol=tolerance,
        gtol=tolerance,
        maxiter=MAX_STEPS,
    )
    return jax.vmap(lambda x, y, p0: solver.run(p0, x, y).params, (None, 0, 0))


def by_scipy(data: Peaks, count: int) -> Callable[[], Any]:
    """Return a function that fits `count` peaks by SciPy (MINPACK), with a NumPy model."""
    optimize = peer("scipy.optimize")
    x, y, p0 = (np.asarray(a) for a in (data.x, data.y[:count], data.p0[:count]))

    def f(x: Any, a: Any, c: Any, w: Any, b: Any, s: Any) -> Any:
        return a * np.exp(-0.5 * ((x - c) / w) ** 2) + b + s * x

    def jac(x: Any, a: Any, c: Any, w: Any, b: Any, s: Any) -> Any:
        u = (x - c) / w
        e = np.exp(-0.5 * u * u)
        return np.stack([e, a * e * u / w, a * e * u * u / w, np.ones_like(x), x], axis=1)

    return lambda: np.stack(
        [optimize.curve_fit(f, x, row, start, jac=jac)[0] for row, start in zip(y, p0, strict=True)]
    )


def run(settings: Settings) -> Iterator[Metric]:
    """Compare in both precisions, then measure a million fits."""
    for dtype in ("float32", "float64"):
        with jax.enable_x64(True):  # compute the optima in float64
            data = peaks(200 if settings.smoke else 10_000, dtype)
        with jax.enable_x64(dtype == "float64"):
            yield from _compare(dtype, data, settings)
    yield from _large(2_000 if settings.smoke else 1_000_000)


def _compare(dtype: str, data: Peaks, settings: Settings) -> Iterator[Metric]:
    args = (data.x, data.y, data.p0)
    tolerance = TOLERANCE[dtype]
    functions = {
        "fnopt": (lambda *a: by_fnopt(*a, ftol=tolerance["fnopt"]), args),
        "fnopt's defaults": (by_fnopt, args),
    }
    for name, make in {"optimistix": by_optimistix, "jaxopt": by_jaxopt}.items():
        try:
            functions[name] = (make(tolerance[name]), args)
        except Skipped as reason:
            print(f"  without {name}: {reason}")
    seconds, compiled = compile_seconds(functions, settings)
    variants: dict[str, Callable[[], Any]] = {
        name: blocking(compiled[name], *args) for name in functions
    }
    try:
        variants["Cpufit's algorithm"] = cpufit.gaussians(
            *map(np.asarray, args), tolerance=tolerance["cpufit"]
        )
    except Skipped as reason:
        print(f"  without Cpufit's algorithm: {reason}")
    label = f"{len(data.y)} peaks, {dtype}"
    accuracy = {name: data.accurate_fraction(_params(solve())) for name, solve in variants.items()}
    times = interleave(variants, settings)
    for name in list(variants)[1:]:
        yield _per_fit(label, name, times, accuracy, len(data.y))
    if dtype == "float64":
        yield _against_scipy(label, data, times["fnopt"], settings)
    for name in list(functions)[2:]:
        yield compile_ratio(f"{label}: compile", f"x {name}", seconds["fnopt"], seconds[name])


def _params(result: Any) -> Any:
    if isinstance(result, fnopt.curves.BatchFit):
        return result.params
    return result[0] if isinstance(result, tuple) else result


def _per_fit(
    label: str, name: str, times: dict[str, list[float]], accuracy: dict[str, float], fits: int
) -> Metric:
    metric = ratio(f"{label}: run", f"x {name}", times["fnopt"], times[name])
    detail = {
        "ours_us_a_fit": 1e3 * metric.detail["ours_ms"] / fits,
        "peer_us_a_fit": 1e3 * metric.detail["peer_ms"] / fits,
        "ours_right": accuracy["fnopt"],
        "peer_right": accuracy[name],
    }
    return dataclasses.replace(metric, detail=detail)


def _against_scipy(label: str, data: Peaks, our_seconds: list[float], settings: Settings) -> Metric:
    count = min(200, len(data.y))
    solve = by_scipy(data, count)
    theirs = interleave({"scipy": solve}, settings)["scipy"]
    scaled = [t * len(data.y) / count for t in theirs]
    pairs = min(len(scaled), len(our_seconds))
    subset = dataclasses.replace(data, best=data.best[:count], errors=data.errors[:count])
    accuracy = {"fnopt": 1.0, "scipy": subset.accurate_fraction(solve())}
    times = {"fnopt": our_seconds[:pairs], "scipy": scaled[:pairs]}
    return _per_fit(label, "scipy", times, accuracy, len(data.y))


def _large(fits: int) -> Iterator[Metric]:
    """Compare time and memory per fit of `fits` fits and of a hundredth of `fits`."""
    with jax.enable_x64(False):
        small = peaks(fits // 100, "float32")
        args = (small.x, jnp.tile(small.y, (100, 1)), jnp.tile(small.p0, (100, 1)))
        compiled = jax.jit(by_fnopt).lower(*args).compile()
        memory = compiled.memory_analysis()
        compiled_small = jax.jit(by_fnopt).lower(small.x, small.y, small.p0).compile()
        variants = {
            "many": blocking(compiled, *args),
            "few": blocking(compiled_small, small.x, small.y, small.p0),
        }
        times = interleave(variants, Settings(smoke=True))
        metric = ratio(f"{fits} peaks: time a fit", f"x {fits // 100}", times["many"], times["few"])
        yield dataclasses.replace(
            metric,
            value=metric.value / 100,
            spread=None,
            detail={"us_a_fit": 1e3 * metric.detail["ours_ms"] / fits * 1},
        )
        data_bytes = args[1].nbytes
        yield Metric(
            f"{fits} peaks: memory beyond data and result",
            memory.temp_size_in_bytes / data_bytes,
            "x data",
            tolerance=0.05,
            detail={"temporary_mb": memory.temp_size_in_bytes / 1e6, "data_mb": data_bytes / 1e6},
        )
