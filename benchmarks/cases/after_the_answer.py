"""Evaluations after the answer is found: how soon a fit knows that it is done.

Problems whose last steps tempt a solver to go on: products of params that the data don't tell
apart, data far beyond the start, singular roots, minima at which the Jacobian vanishes, and fits
whose cost is level to rounding. The answer is found where the cost is within 1e-8 of that at the
end, or where params came within 1e-8 of their way to a root; what is evaluated after that is
counted. SciPy computes in float64 beside each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import fnopt
from benchmarks.metric import Metric
from benchmarks.problems.mgh_fixed import powell_singular
from benchmarks.timing import Settings
from fnopt.solvers import LeastSquaresMethod, dogleg, gauss_newton

FOUND = 1e-8  # of the cost at the end, or of the way to a root
SOLVERS: dict[str, Callable[[], LeastSquaresMethod]] = {
    "fnopt": fnopt.levenberg_marquardt,
    "fnopt straight": lambda: fnopt.levenberg_marquardt(geodesic=False),
    "fnopt dogleg": dogleg,
    "fnopt gauss_newton": gauss_newton,
}
T = np.linspace(0.0, 4.0, 40)
DECAY = 2 * np.exp(-0.7 * T) + 0.3 + 0.02 * np.sin(9 * T)


class Problem(NamedTuple):
    """Residuals, their start, and the order of their root."""

    residuals: Callable[[Any], Any]
    start: tuple[float, ...]
    order: int = 1


def _line(size: float) -> Callable[[Any], Any]:
    return lambda p: p[0] + p[1] * T - size * (2 - 0.5 * T + 0.02 * np.sin(9 * T))


PROBLEMS = {
    "(a + b) x = 3 x": Problem(lambda p: (p[0] + p[1] - 3) * T, (1.0, 1.0)),
    "line, data of 1": Problem(_line(1.0), (0.0, 0.0)),
    "line, data of 1e12, from zeros": Problem(_line(1e12), (0.0, 0.0)),
    "line, data of 1e9, from ones": Problem(_line(1e9), (1.0, 1.0)),
    "x^2 = 0": Problem(lambda p: p**2, (3.0,), 2),
    "x^3 = 0": Problem(lambda p: p**3, (3.0,), 3),
    "(x - 1)^4 = 0": Problem(lambda p: (p - 1) ** 4, (3.0,), 4),
    "Powell's singular function": Problem(powell_singular, (3.0, -1.0, 0.0, 1.0), 2),
    "x^2 + 5": Problem(lambda p: p**2 + 5, (2.0,)),
    "cos x - 1.2": Problem(lambda p: jnp.cos(p) - 1.2, (1.0,)),
    "x^2 + (1, 3)": Problem(lambda p: p[0] ** 2 + jnp.asarray([1.0, 3.0]), (2.0,)),
    "decay": Problem(lambda p: p[0] * jnp.exp(-p[1] * T) + p[2] - DECAY, (1.0, 1.0, 0.0)),
    "decay, data of 1e-12": Problem(
        lambda p: p[0] * jnp.exp(-p[1] * T) + p[2] - 1e-12 * DECAY, (1e-12, 1.0, 0.0)
    ),
    "decay beside a level of 1e6": Problem(
        lambda p: p[0] * jnp.exp(-p[1] * T) + p[2] - DECAY - 1e6, (1.0, 1.0, 1e6)
    ),
}


def run(settings: Settings) -> Iterator[Metric]:
    """All problems by all solvers in both dtypes."""
    names = ["decay"] if settings.smoke else list(PROBLEMS)
    solvers = settings.chosen(list(SOLVERS)[: 1 if settings.smoke else None])
    for dtype in ("float64", "float32"):
        for name in solvers:
            found = {k: _ours(k, SOLVERS[name](), dtype) for k in names}
            yield _figure(f"{dtype}, {name}", found)
    yield _figure("float64, scipy trf", {k: _scipys(k, "trf") for k in names})
    yield _figure("float64, scipy lm", {k: _scipys(k, "lm") for k in names})


def _figure(name: str, found: dict[str, tuple[int, int]]) -> Metric:
    detail = {"evaluations": float(sum(total for total, _ in found.values()))}
    detail |= {problem: float(after) for problem, (_, after) in found.items()}
    return Metric(
        name,
        float(sum(after for _, after in found.values())),
        "evaluations after the answer",
        tolerance=0.1,
        detail=detail,
    )


def _ours(name: str, solver: LeastSquaresMethod, dtype: str) -> tuple[int, int]:
    """How many evaluations there were, and how many of them after the answer."""
    problem = PROBLEMS[name]
    with jax.enable_x64(dtype == "float64"):
        start = jnp.asarray(problem.start, dtype)
        end = fnopt.least_squares(
            lambda p: jnp.asarray(problem.residuals(p), p.dtype),
            start,
            solver=solver,
            history=True,
        )
        first = 0.5 * np.sum(np.square(np.asarray(problem.residuals(start), np.float64)))
        assert end.history is not None
        steps = np.asarray(end.history.cost[: int(end.steps)], np.float64)
    jax.clear_caches()
    return _counted(np.concatenate([[first], steps]), problem.order)


def _scipys(name: str, method: Literal["trf", "lm"]) -> tuple[int, int]:
    problem, costs = PROBLEMS[name], []
    with jax.enable_x64(True):
        fun = jax.jit(problem.residuals)
        jac = jax.jit(jax.jacfwd(problem.residuals))

        def counted(p: Any) -> np.ndarray:
            r = np.atleast_1d(np.asarray(fun(jnp.asarray(p))))
            costs.append(0.5 * r @ r)
            return r

        def slopes(p: Any) -> np.ndarray:
            return np.asarray(jac(jnp.asarray(p))).reshape(-1, len(problem.start))

        enough = counted(problem.start).size >= len(problem.start)
        scipy.optimize.least_squares(
            counted,
            problem.start,
            cast(Any, slopes),  # its stubs know the names of schemes alone
            method=method if enough else "trf",
        )
    return _counted(np.asarray(costs[1:]), problem.order)


def _counted(costs: np.ndarray, order: int) -> tuple[int, int]:
    best = np.minimum.accumulate(costs)
    enough = max(best[-1] * (1 + FOUND), FOUND ** (2 * order) * costs[0])
    return len(costs), len(costs) - 1 - int(np.argmax(best <= enough))
