"""Robust fits of data with outliers: how many end in the best minimum, ours and SciPy's.

Nine models of two to four params by three losses, with one datum of seven off by up to half of the
largest. Starts are wrong by a factor of two, of ten, or all ones, as `curve_fit` begins. The best
minimum is the lowest cost that anyone finds, by all digits of float64, from these starts or from
the truth. A claim is false where the cost falls on from beside its end.
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
SCALE = 0.05  # of the losses; of outliers, one of seven: up to half of the largest datum
FACTORS = (2.0, 10.0, None)  # None: from ones
BESIDE = 1e-3  # of every param: so far from a claim the search goes on
AT_ONCE = 32


class Ends(NamedTuple):
    """Where fits ended, and how they came there."""

    params: np.ndarray
    claimed: np.ndarray
    evaluations: np.ndarray


def run(settings: Settings) -> Iterator[Metric]:
    """All models by all losses in both dtypes; SciPy computes in float64 beside each."""
    names = ["decay"] if settings.smoke else list(MODELS)
    losses = LOSSES[:1] if settings.smoke else LOSSES
    for dtype in ("float32", "float64"):
        found = [
            _fits(name, loss, dtype, 2 if settings.smoke else 20)
            for name in names
            for loss in losses
        ]
        for i, factor in enumerate(FACTORS):
            start = "from ones" if factor is None else f"wrong by up to {factor:g}"
            yield _figure(f"{dtype}, {start}", [one[i] for one in found])


def _fits(name: str, loss: str, dtype: str, count: int) -> list[dict[str, np.ndarray]]:
    """What became of fits of a model by a loss, of each kind of start."""
    f, true = MODELS[name]
    rng = np.random.default_rng(sum(map(ord, name + loss)))
    ys, p0s = [], []
    with jax.enable_x64(True):
        clean = np.asarray(f(X, *true))
    for factor in FACTORS:
        spread = rng.uniform(-1, 1, (count, len(true)))
        p0s.append(np.ones_like(spread) if factor is None else true * factor**spread)
        off = rng.uniform(-0.5, 0.5, (count, X.size)) * np.abs(clean).max()
        hit = rng.uniform(size=off.shape) < 1 / 7
        ys.append(clean + NOISE * rng.standard_normal(off.shape) + np.where(hit, off, 0.0))
    y, p0 = np.concatenate(ys), np.concatenate(p0s)
    with jax.enable_x64(dtype == "float64"):
        ours = _ours(f, loss, *(jnp.asarray(a, dtype) for a in (y, p0)))
    with jax.enable_x64(True):
        scipys = _scipys(f, loss, y, p0)
        truth = _ours(f, loss, *map(jnp.asarray, (y, np.tile(true, (len(p0), 1)))))
        beside = ours.params * (1 + BESIDE * rng.choice([-1, 1], ours.params.shape))
        on = _ours(f, loss, *map(jnp.asarray, (y, beside)))
        ours_cost, scipys_cost, true_cost, on_cost = (
            np.asarray(_costs(f, loss, y, end.params)) for end in (ours, scipys, truth, on)
        )
    jax.clear_caches()  # so many programs don't fit side by side
    lowest = np.minimum.reduce([ours_cost, scipys_cost, true_cost, on_cost])
    best = lowest * (1 + BEST[dtype])
    outcomes = {
        "fnopt": ours.claimed & (ours_cost <= best),
        "scipy": scipys.claimed & (scipys_cost <= lowest * (1 + BEST["float32"])),
        "false_claims": ours.claimed & (on_cost < (1 - FALLS) * ours_cost),
        "evaluations": ours.evaluations,
        "evaluations_of_scipy": scipys.evaluations,
    }
    return [{k: a[i : i + count] for k, a in outcomes.items()} for i in range(0, len(p0), count)]


def _residuals(f: Callable[..., Any], p: Any, y: Any) -> Any:
    return f(jnp.asarray(X, p.dtype), *p) - y


@functools.partial(jax.jit, static_argnums=(0, 1))
def _each(f: Callable[..., Any], loss: str, y: Any, p0: Any) -> tuple[Any, ...]:
    def one(at: tuple[Any, Any]) -> tuple[Any, ...]:
        y, p0 = at
        end = fnopt.least_squares(lambda p: _residuals(f, p, y), p0, loss=loss, f_scale=SCALE)
        return end.params, is_converged(end.status), end.nfev

    return lax.map(one, (y, p0), batch_size=AT_ONCE)


def _ours(f: Callable[..., Any], loss: str, y: Any, p0: Any) -> Ends:
    params, claimed, nfev = _each(f, loss, y, p0)
    return Ends(np.asarray(params, float), np.asarray(claimed), np.asarray(nfev))


def _scipys(f: Callable[..., Any], loss: str, y: np.ndarray, p0: np.ndarray) -> Ends:
    r = jax.jit(functools.partial(_residuals, f))
    J = jax.jit(jax.jacfwd(functools.partial(_residuals, f)))
    found = []
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
            found.append((end.x, end.success, end.nfev))
        except ValueError:  # residuals or a Jacobian that aren't finite
            found.append((start, False, 1))
    return Ends(*map(np.asarray, zip(*found, strict=True)))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _costs(f: Callable[..., Any], loss: str, y: Any, params: Any) -> Any:
    """The robust cost at the params of each fit, infinite where that isn't a number."""
    cost = fnopt.residuals.RobustCost((fnopt.residuals.named_loss(loss, SCALE),), (X.size,)).cost
    return jax.vmap(lambda p, y: cost(_residuals(f, p, y)))(params, y)


def _figure(name: str, found: list[dict[str, np.ndarray]]) -> Metric:
    of = {key: np.concatenate([one[key] for one in found]) for key in found[0]}
    detail = {key: int(a.sum()) for key, a in of.items() if key != "fnopt"}
    return Metric(
        name,
        int(of["fnopt"].sum()),
        f"of {of['fnopt'].size} in the best minimum",
        direction="higher",
        tolerance=0.02,
        detail=detail,
    )
