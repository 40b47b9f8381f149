"""Count fits from distant initial guesses that end in the best minimum.

Nine models of two to four parameters have 200 initial guesses each. Every initial parameter is the
true value, multiplied or divided by a factor of up to 5 or 100. The best minimum is the lowest cost
of all fits in float64, from these initial guesses and from the true parameters. A reported
convergence is false if a continued fit lowers the cost. False reports with parameters flagged as
undetermined are counted separately. `least_squares(..., starts=8)` searches from eight points
around each initial guess. `curve_fit_batch` runs without its fallback, which is `least_squares`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.core import is_converged

X = np.linspace(0.1, 10.0, 40)
NOISE = 0.02
BEST = {"float32": 1e-3, "float64": 1e-6}  # relative cost difference from the lowest cost
FALLS = 1e-3  # relative decrease of the cost that makes a report false
AT_ONCE = 64  # single fits in one vectorized step of `lax.map`
STARTS = 8  # initial guesses of a multi-start search

MODELS: dict[str, tuple[Callable[..., Any], list[float]]] = {
    "decay": (lambda x, a, b: a * jnp.exp(-b * x), [3, 0.5]),
    "power": (lambda x, a, b: a * x**b, [2, 0.6]),
    "saturation": (lambda x, a, b: a * x / (b + x), [4, 1.5]),
    "peak": (lambda x, a, c, w: a * jnp.exp(-0.5 * ((x - c) / w) ** 2), [5, 4, 1]),
    "lorentzian": (lambda x, a, c, w: a / (1 + ((x - c) / w) ** 2), [5, 4, 1]),
    "logistic": (lambda x, a, k, c: a / (1 + jnp.exp(-k * (x - c))), [3, 1.5, 5]),
    "hill": (lambda x, a, n, k: a * x**n / (k**n + x**n), [4, 2, 3]),
    "sine": (lambda x, a, b, w: a * jnp.exp(-b * x) * jnp.cos(w * x), [3, 0.2, 2]),
    "decays": (lambda x, a, b, c, d: a * jnp.exp(-b * x) + c * jnp.exp(-d * x), [3, 0.3, 2, 2]),
}


class Ends(NamedTuple):
    """Results of fits, with the cost of the solutions in float64."""

    params: np.ndarray
    converged: np.ndarray
    flagged: np.ndarray  # whether the certificate marks a parameter as undetermined
    cost: np.ndarray


def run(settings: Settings) -> Iterator[Metric]:
    """Count for both factors, in float32 and in float64."""
    names = ["decay"] if settings.smoke else list(MODELS)
    for dtype in ("float64",) if settings.smoke else ("float32", "float64"):
        for factor in (100,) if settings.smoke else (5, 100):
            masks = [_model(name, factor, dtype, 8 if settings.smoke else 200) for name in names]
            yield _metric(f"{dtype}, wrong by up to {factor}", masks)


def _model(name: str, factor: float, dtype: str, count: int) -> dict[str, np.ndarray]:
    """Return one mask over the initial guesses for each solver and outcome."""
    f, true = MODELS[name]
    rng = np.random.default_rng(0)
    p0 = true * factor ** rng.uniform(-1, 1, (count, len(true)))
    with jax.enable_x64(True):
        y = np.asarray(f(X, *true)) + NOISE * rng.standard_normal(X.size)
    with jax.enable_x64(dtype == "float64"):
        args = [jnp.asarray(a, dtype) for a in (X, y, p0)]
        ends = {
            "batch": _batch(f, *args),
            "alone": _alone(f, *args),
            "multi": _alone(f, *args, STARTS),
        }
    with jax.enable_x64(True):
        ends = {who: end._replace(cost=_cost(f, y, end.params)) for who, end in ends.items()}
        # Fit from the true parameters, and continue all fits from their solutions.
        starts = np.concatenate([[true], *(end.params for end in ends.values())])
        continued = _cost(f, y, _alone(f, X, y, starts).params)
    lowest = min(continued[0], *(end.cost.min() for end in ends.values()))
    outcomes: dict[str, np.ndarray] = {}
    costs = continued[1:].reshape(len(ends), -1)
    for (who, end), cost in zip(ends.items(), costs, strict=True):
        right = end.converged & (end.cost <= lowest * (1 + BEST[dtype]))
        false = end.converged & ~right & (cost < (1 - FALLS) * end.cost)
        outcomes |= {
            who: right,
            f"{who}, false": false & ~end.flagged,
            f"{who}, flagged": false & end.flagged,
        }
    return outcomes


def _batch(f: Callable[..., Any], x: Any, y: Any, p0: Any) -> Ends:
    fit = fnopt.curve_fit_batch(f, x, jnp.tile(y, (len(p0), 1)), p0, fallback=False)
    flagged = np.any(np.asarray(fit.undetermined), axis=1)
    params = np.asarray(fit.params, float)
    return Ends(params, np.asarray(fit.converged), flagged, np.zeros(0))


def _alone(f: Callable[..., Any], x: Any, y: Any, p0: Any, starts: int = 1) -> Ends:
    params, converged, flagged = _each_alone(f, starts, *map(jnp.asarray, (x, y, p0)))
    params = np.asarray(params, float)
    return Ends(params, np.asarray(converged), np.asarray(flagged), np.zeros(0))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _each_alone(f: Callable[..., Any], starts: int, x: Any, y: Any, p0: Any) -> tuple[Any, ...]:
    """Fit from each initial guess separately by `least_squares`."""

    def one(p0: Any) -> tuple[Any, ...]:
        end = fnopt.least_squares(lambda p: f(x, *p) - y, p0, starts=starts)
        return end.params, is_converged(end.status), jnp.any(end.certificate.undetermined)

    return lax.map(one, p0, batch_size=AT_ONCE)


def _cost(f: Callable[..., Any], y: np.ndarray, params: np.ndarray) -> np.ndarray:
    values = jax.vmap(lambda p: f(X, *p))(jnp.asarray(params))
    cost = 0.5 * np.sum((np.asarray(values) - y) ** 2, axis=1)
    return np.where(np.isfinite(cost), cost, np.inf)


def _metric(name: str, models: list[dict[str, np.ndarray]]) -> Metric:
    masks = {key: np.concatenate([model[key] for model in models]) for key in models[0]}
    detail = {
        "least_squares": masks["alone"].sum(),
        f"least_squares_from_{STARTS}_starts": masks["multi"].sum(),
        "false_of_multi_start": masks["multi, false"].sum(),
        "only_least_squares": (masks["alone"] & ~masks["batch"]).sum(),
        "only_batch": (masks["batch"] & ~masks["alone"]).sum(),
        "false_of_batch": masks["batch, false"].sum(),
        "false_of_least_squares": masks["alone, false"].sum(),
        "flagged_of_batch": masks["batch, flagged"].sum(),
        "flagged_of_least_squares": masks["alone, flagged"].sum(),
    }
    return Metric(
        name,
        int(masks["batch"].sum()),
        f"of {masks['batch'].size} of a batch",
        direction="higher",
        tolerance=0.02,
        detail={key: int(value) for key, value in detail.items()},
    )
