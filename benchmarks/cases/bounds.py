"""Count bounded fits by `least_squares` and SciPy's trf that miss the best minimum.

The problems are sines with a phase in [0, 2 pi] (31 phases, four initial phases), decays, peaks
whose bounds contain or exclude the true center, saturation, growth, a quadratic with solutions on
bounds, initial guesses on bounds, and problems of Moré, Garbow and Hillstrom within boxes. The best
minimum is the lowest cost of all fits to the same data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.core import is_converged

T = np.linspace(0.0, 4.0, 24)
INF = np.inf
NOISE = 0.02
NEAR = 1e-4  # relative cost difference within which a fit has the lowest cost
ROUNDING = 1e-12  # costs below this multiple of the squared data are treated as zero


class Fit(NamedTuple):
    """A fit of three params; the bounds of unused params are equal, which fixes them."""

    model: Callable[..., Any]  # arguments: the module numpy or jax.numpy, and three params
    y: np.ndarray
    x0: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def sine(np, a, f, phase):
    return a * np.sin(2 * np.pi * f * T + phase)


def decay(np, a, k, c):
    return a * np.exp(-k * T) + c


def peak(np, a, c, w):
    return a * np.exp(-0.5 * ((T - c) / w) ** 2)


def saturation(np, a, k, unused):
    return a * T / (k + T) + 0 * unused


def growth(np, a, k, c):
    return a / (1 + np.exp(-k * (T - c)))


def quadratic(np, a, b, c):
    return a + b * T + c * T**2 / 4


def _stack(np, *residuals):
    r = np.stack(residuals)
    return np.concatenate([r, np.zeros(T.size - len(r), r.dtype)])


def rosenbrock(np, x, y, unused):
    return _stack(np, 10 * (y - x**2), 1 - x + 0 * unused)


def beale(np, x, y, unused):
    data = enumerate((1.5, 2.25, 2.625))
    return _stack(np, *(b - x * (1 - y ** (i + 1)) + 0 * unused for i, b in data))


def box3d(np, x, y, z):
    t = 0.1 * np.arange(1, 11)
    return _stack(np, *(np.exp(-t * x) - np.exp(-t * y) - z * (np.exp(-t) - np.exp(-10 * t))))


def helical(np, x, y, z):
    turn = np.arctan2(y, x) / (2 * np.pi)
    return _stack(np, 10 * (z - 10 * turn), 10 * (np.sqrt(x**2 + y**2) - 1), z)


MGH = [  # boxes of Gay (1984), and boxes around the minimum
    (rosenbrock, [-50, 0, 0], [0.5, 100, 0]),
    (rosenbrock, [-INF, -1.5, 0], [INF, INF, 0]),
    (rosenbrock, [-2, 1.5, 0], [2, 3, 0]),
    (beale, [0.6, 0.5, 0], [10, 100, 0]),
    (beale, [0, 0, 0], [4.5, 4.5, 0]),
    (box3d, [0, 5, 0], [2, 9.5, 20]),
    (box3d, [0, 0, 0], [5, 20, 5]),
    (helical, [-100, -1, -1], [0.8, 1, 1]),
    (helical, [0, 0, 0], [5, 5, 5]),
]


def sines() -> dict[str, list[Fit]]:
    """Return the fits of a sine, grouped by the initial guess of the phase."""
    box = np.zeros(3), np.array([INF, INF, 2 * np.pi])
    phases = np.linspace(0, 2 * np.pi, 31)
    return {
        f"sines, phase {start}": [
            Fit(sine, sine(np, 1.0, f, phase), np.array([1.0, f, start]), *box)
            for f in (0.5, 1.0)
            for phase in phases
        ]
        for start in (0.5, 1.0, 3.0, 6.0)
    }


def other_models() -> dict[str, list[Fit]]:
    """Return the fits of the other models, each with 40 initial guesses."""
    rng = np.random.default_rng(0)

    def family(model, true, draw, lower, upper):
        lower, upper = np.array(lower, float), np.array(upper, float)
        y = model(np, *true) + NOISE * rng.standard_normal(T.size)
        starts = (np.clip(draw(), lower, upper) for _ in range(40))
        return [Fit(model, y, x0, lower, upper) for x0 in starts]

    def wrong_by(factor, *x):
        return np.array(x) * factor ** rng.uniform(-1, 1, 3)

    def on_a_bound(x, ends):
        index = rng.integers(3)
        return np.where(np.arange(3) == index, rng.choice(ends), x)

    def mgh(model, lower, upper):
        box = np.array(lower, float), np.array(upper, float)
        starts = rng.uniform(np.maximum(box[0], -10), np.minimum(box[1], 10), (10, 3))
        return [Fit(model, np.zeros(T.size), x0, *box) for x0 in starts]

    positive = [0, 0, 0], [INF] * 3
    return {
        "decay": family(decay, [3, 1.2, 0.5], lambda: wrong_by(10, 3, 1.2, 0.5), *positive),
        "decay of a rise": family(
            lambda np, a, k, c: decay(np, a, k, c) + 0 * a,
            [-1, 0.3, 2],
            lambda: wrong_by(10, 3, 1.2, 0.5),
            [0, 0, -INF],
            [INF] * 3,
        ),
        "peak": family(
            peak,
            [2, 1.7, 0.4],
            lambda: np.array([0, rng.uniform(0.5, 3), 0]) + wrong_by(5, 2, 0, 0.4),
            [0, 0.5, 0.01],
            [INF, 3, INF],
        ),
        "peak outside its window": family(
            peak,
            [2, 1.7, 0.4],
            lambda: np.array([0, rng.uniform(2, 3.5), 0]) + wrong_by(3, 2, 0, 0.4),
            [0, 2, 0.01],
            [INF, 3.5, 2],
        ),
        "saturation": family(
            saturation, [2, 0.7, 0], lambda: wrong_by(10, 2, 0.7, 0), [0] * 3, [INF, INF, 0]
        ),
        "growth": family(
            growth,
            [2, 2, 1.7],
            lambda: np.array([0, 0, rng.uniform(0.5, 3.5)]) + wrong_by(5, 2, 2, 0),
            [0] * 3,
            [INF, 20, 4],
        ),
        "quadratic on bounds": family(
            quadratic, [1, -1, 0.5], lambda: rng.uniform(0, 2, 3), [0] * 3, [2] * 3
        ),
        "decay from a bound": family(
            decay,
            [3, 1.2, 0.5],
            lambda: on_a_bound(wrong_by(5, 3, 1.2, 0.5), (0, INF)),
            [0] * 3,
            [6, 4, 2],
        ),
        "Moré, Garbow, Hillstrom": [fit for case in MGH for fit in mgh(*case)],
    }


def run(settings: Settings) -> Iterator[Metric]:
    """Count for each group, in float64."""
    groups = (
        {"sines": sines()["sines, phase 3.0"][:4]} if settings.smoke else sines() | other_models()
    )
    fits = [fit for group in groups.values() for fit in group]
    peers = [_scipy(fit) for fit in fits]
    with jax.enable_x64(True):
        ours = _ours(fits)
    best: dict[Any, float] = {}
    for fit, *ends in zip(fits, ours, peers, strict=True):
        best[_data(fit)] = min(best.get(_data(fit), INF), *(end[0] for end in ends))
    first = 0
    for name, group in groups.items():
        part = slice(first, first + len(group))
        first = part.stop
        yield _figure(name, group, ours[part], peers[part], best)


def _data(fit: Fit) -> Any:
    return fit.model, fit.y.tobytes(), fit.lower.tobytes(), fit.upper.tobytes()


def _scipy(fit: Fit) -> tuple[float, int, bool]:
    """Return cost, evaluations and success of SciPy's trf with tight tolerances."""
    from scipy.optimize import least_squares

    free = fit.lower < fit.upper

    def residuals(x: np.ndarray) -> np.ndarray:
        params = fit.lower.copy()
        params[free] = x
        return fit.model(np, *params) - fit.y

    tight = dict.fromkeys(("ftol", "xtol", "gtol"), 1e-12)
    bounds = fit.lower[free], fit.upper[free]
    with np.errstate(all="ignore"):
        end = least_squares(
            residuals, fit.x0[free], bounds=bounds, x_scale="jac", max_nfev=1000, **tight
        )
    return float(end.cost), end.nfev, end.success


def _ours(fits: list[Fit]) -> list[tuple[float, int, bool]]:
    """Return cost, evaluations and certified convergence of `least_squares`, in one program."""
    models = list(dict.fromkeys(fit.model for fit in fits))

    @jax.jit
    @jax.vmap
    def solve(kind, y, x0, lower, upper):
        branches = [lambda p, model=model: model(jnp, *p) for model in models]
        end = fnopt.least_squares(
            lambda p: jax.lax.switch(kind, branches, p) - y, x0, bounds=(lower, upper)
        )
        certified = end.certificate.certified & ~jnp.any(end.certificate.undetermined)
        return end.params, end.nfev, is_converged(end.status) & certified

    kinds = jnp.asarray([models.index(fit.model) for fit in fits])
    arrays = [jnp.asarray(np.stack(a)) for a in zip(*(fit[1:] for fit in fits), strict=True)]
    params, nfev, certified = map(np.asarray, solve(kinds, *arrays))
    residuals = (f.model(np, *p) - f.y for f, p in zip(fits, params.astype(float), strict=True))
    cost = [float(0.5 * np.sum(r**2)) for r in residuals]
    return list(zip(cost, nfev.tolist(), certified.tolist(), strict=True))


def _figure(name: str, fits: list[Fit], ours: list, peers: list, best: dict[Any, float]) -> Metric:
    lowest = np.array([best[_data(fit)] for fit in fits])
    zero = [ROUNDING * max(0.5 * np.sum(fit.y**2), 1) for fit in fits]
    limit = lowest * (1 + NEAR) + zero

    def wrong(ends: list) -> np.ndarray:
        return np.array([end[0] for end in ends]) > limit

    converged = np.array([end[2] for end in ours])
    return Metric(
        name,
        int(wrong(ours).sum()),
        f"of {len(fits)} in another minimum",
        direction="lower",
        tolerance=0.1,
        detail={
            "unflagged": int((wrong(ours) & converged).sum()),
            "evaluations": int(sum(end[1] for end in ours)),
            "wrong_of_scipy": int(wrong(peers).sum()),
            "evaluations_of_scipy": int(sum(end[1] for end in peers)),
        },
    )
