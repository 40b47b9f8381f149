"""Count robust fits by `least_squares` and SciPy that end in the best minimum.

Nine models of two to four parameters are fitted with three losses. One datum in seven is an
outlier, with an error of up to half of the largest datum. Initial guesses have errors of up to a
factor of two or ten, or are all ones, the default of `curve_fit`. The best minimum is the lowest
cost of all fits in float64, from these guesses and from the true parameters. A report of
convergence is false if a fit from a nearby point lowers the cost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax import lax

import fnopt
from benchmarks.cases.far_starts import BEST, FALLS, MODELS, NOISE, X
from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.core import is_converged

LOSSES = ("soft_l1", "huber", "cauchy")
SCALE = 0.05  # scale of the losses
FACTORS = (2.0, 10.0, None)  # largest factor of the error of an initial guess; None: all ones
BESIDE = 1e-3  # relative distance of the nearby point
AT_ONCE = 32  # fits in one vectorized step of `lax.map`


class Ends(NamedTuple):
    """Results of fits."""

    params: np.ndarray
    converged: np.ndarray
    evaluations: np.ndarray


def run(settings: Settings) -> Iterator[Metric]:
    """Fit all models with all losses in both dtypes; SciPy always computes in float64."""
    names = ["decay"] if settings.smoke else list(MODELS)
    losses = LOSSES[:1] if settings.smoke else LOSSES
    for dtype in ("float32", "float64"):
        outcomes = [
            _fits(name, loss, dtype, 2 if settings.smoke else 20)
            for name in names
            for loss in losses
        ]
        for i, factor in enumerate(FACTORS):
            start = "from ones" if factor is None else f"wrong by up to {factor:g}"
            yield _metric(f"{dtype}, {start}", [fits[i] for fits in outcomes])


def _fits(name: str, loss: str, dtype: str, count: int) -> list[dict[str, np.ndarray]]:
    """Return the outcomes of the fits of a model with a loss, for each kind of initial guess."""
    f, true = MODELS[name]
    rng = np.random.default_rng(sum(map(ord, name + loss)))
    ys, p0s = [], []
    with jax.enable_x64(True):
        clean = np.asarray(f(X, *true))
    for factor in FACTORS:
        spread = rng.uniform(-1, 1, (count, len(true)))
        p0s.append(np.ones_like(spread) if factor is None else true * factor**spread)
        errors = rng.uniform(-0.5, 0.5, (count, X.size)) * np.abs(clean).max()
        outlier = rng.uniform(size=errors.shape) < 1 / 7
        noise = NOISE * rng.standard_normal(errors.shape)
        ys.append(clean + noise + np.where(outlier, errors, 0.0))
    y, p0 = np.concatenate(ys), np.concatenate(p0s)
    with jax.enable_x64(dtype == "float64"):
        ours = _ours(f, loss, *(jnp.asarray(a, dtype) for a in (y, p0)))
    with jax.enable_x64(True):
        peer = _scipy(f, loss, y, p0)
        truth = _ours(f, loss, *map(jnp.asarray, (y, np.tile(true, (len(p0), 1)))))
        nearby = ours.params * (1 + BESIDE * rng.choice([-1, 1], ours.params.shape))
        continued = _ours(f, loss, *map(jnp.asarray, (y, nearby)))
        our_cost, peer_cost, true_cost, continued_cost = (
            np.asarray(_costs(f, loss, y, end.params)) for end in (ours, peer, truth, continued)
        )
    jax.clear_caches()  # a process can't hold the programs of all fits: see docs/sharp_edges.md
    lowest = np.minimum.reduce([our_cost, peer_cost, true_cost, continued_cost])
    best = lowest * (1 + BEST[dtype])
    outcomes = {
        "fnopt": ours.converged & (our_cost <= best),
        "scipy": peer.converged & (peer_cost <= lowest * (1 + BEST["float32"])),
        "false_claims": ours.converged & (continued_cost < (1 - FALLS) * our_cost),
        "evaluations": ours.evaluations,
        "evaluations_of_scipy": peer.evaluations,
    }
    return [{k: a[i : i + count] for k, a in outcomes.items()} for i in range(0, len(p0), count)]


def _residuals(f: Callable[..., Any], p: Any, y: Any) -> Any:
    return f(jnp.asarray(X, p.dtype), *p) - y


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit_all(f: Callable[..., Any], loss: str, y: Any, p0: Any) -> tuple[Any, ...]:
    def one(args: tuple[Any, Any]) -> tuple[Any, ...]:
        y, p0 = args
        end = fnopt.least_squares(lambda p: _residuals(f, p, y), p0, loss=loss, f_scale=SCALE)
        return end.params, is_converged(end.status), end.nfev

    return lax.map(one, (y, p0), batch_size=AT_ONCE)


def _ours(f: Callable[..., Any], loss: str, y: Any, p0: Any) -> Ends:
    params, converged, nfev = _fit_all(f, loss, y, p0)
    return Ends(np.asarray(params, float), np.asarray(converged), np.asarray(nfev))


def _scipy(f: Callable[..., Any], loss: str, y: np.ndarray, p0: np.ndarray) -> Ends:
    r = jax.jit(functools.partial(_residuals, f))
    J = jax.jit(jax.jacfwd(functools.partial(_residuals, f)))
    ends = []
    for data, start in zip(y, p0, strict=True):
        try:
            end = scipy.optimize.least_squares(
                lambda p, data=data: np.asarray(r(p, data)),
                start,
                lambda p, data=data: np.asarray(J(p, data)),
                loss=loss,
                f_scale=SCALE,
                xtol=1e-12,
                ftol=1e-12,
                gtol=1e-12,
                max_nfev=1000,
            )
            ends.append((end.x, end.success, end.nfev))
        except ValueError:  # residuals or Jacobian aren't finite
            ends.append((start, False, 1))
    return Ends(*map(np.asarray, zip(*ends, strict=True)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _costs(f: Callable[..., Any], loss: str, y: Any, params: Any) -> Any:
    """Return the robust cost at the params of each fit, infinite instead of NaN."""
    cost = fnopt.residuals.RobustCost((fnopt.residuals.named_loss(loss, SCALE),), (X.size,)).cost
    return jax.vmap(lambda p, y: cost(_residuals(f, p, y)))(params, y)


def _metric(name: str, outcomes: list[dict[str, np.ndarray]]) -> Metric:
    masks = {key: np.concatenate([fits[key] for fits in outcomes]) for key in outcomes[0]}
    detail = {key: int(a.sum()) for key, a in masks.items() if key != "fnopt"}
    return Metric(
        name,
        int(masks["fnopt"].sum()),
        f"of {masks['fnopt'].size} in the best minimum",
        direction="higher",
        tolerance=0.02,
        detail=detail,
    )
