"""Count the evaluations of a fit after the cost is within 1e-8 of its final value.

In these problems a solver may iterate longer than necessary: undetermined parameters, data far
above the initial values, roots of higher order, minima where the Jacobian is zero, and costs that
change only by rounding errors. For a root, the count begins when the distance to the root is 1e-8
of the initial distance. SciPy solves the same problems in float64.
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

CLOSE = 1e-8  # relative to the final cost, or to the initial distance from the root
SOLVERS: dict[str, Callable[[], LeastSquaresMethod]] = {
    "fnopt": fnopt.levenberg_marquardt,
    "fnopt straight": lambda: fnopt.levenberg_marquardt(geodesic=False),
    "fnopt dogleg": dogleg,
    "fnopt gauss_newton": gauss_newton,
}
T = np.linspace(0.0, 4.0, 40)
DECAY = 2 * np.exp(-0.7 * T) + 0.3 + 0.02 * np.sin(9 * T)


class Problem(NamedTuple):
    """A residual function, its initial guess, and the order of its root."""

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
    """Count for all problems, solvers and dtypes."""
    names = ["decay"] if settings.smoke else list(PROBLEMS)
    solvers = settings.select(list(SOLVERS)[: 1 if settings.smoke else None])
    for dtype in ("float64", "float32"):
        for name in solvers:
            counts = {k: _count_fnopt(k, SOLVERS[name](), dtype) for k in names}
            yield _metric(f"{dtype}, {name}", counts)
    yield _metric("float64, scipy trf", {k: _count_scipy(k, "trf") for k in names})
    yield _metric("float64, scipy lm", {k: _count_scipy(k, "lm") for k in names})


def _metric(name: str, counts: dict[str, tuple[int, int]]) -> Metric:
    detail = {"evaluations": float(sum(total for total, _ in counts.values()))}
    detail |= {problem: float(after) for problem, (_, after) in counts.items()}
    return Metric(
        name,
        float(sum(after for _, after in counts.values())),
        "evaluations after the answer",
        tolerance=0.1,
        detail=detail,
    )


def _count_fnopt(name: str, solver: LeastSquaresMethod, dtype: str) -> tuple[int, int]:
    """Return the number of evaluations, and the number of evaluations after the answer."""
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
    return _count(np.concatenate([[first], steps]), problem.order)


def _count_scipy(name: str, method: Literal["trf", "lm"]) -> tuple[int, int]:
    problem, costs = PROBLEMS[name], []
    with jax.enable_x64(True):
        fun = jax.jit(problem.residuals)
        jac = jax.jit(jax.jacfwd(problem.residuals))

        def recorded(p: Any) -> np.ndarray:
            r = np.atleast_1d(np.asarray(fun(jnp.asarray(p))))
            costs.append(0.5 * r @ r)
            return r

        def jacobian(p: Any) -> np.ndarray:
            return np.asarray(jac(jnp.asarray(p))).reshape(-1, len(problem.start))

        # MINPACK raises an error for fewer residuals than parameters.
        overdetermined = recorded(problem.start).size >= len(problem.start)
        scipy.optimize.least_squares(
            recorded,
            problem.start,
            cast(Any, jacobian),  # SciPy's stubs accept only the names of schemes
            method=method if overdetermined else "trf",
        )
    return _count(np.asarray(costs[1:]), problem.order)


def _count(costs: np.ndarray, order: int) -> tuple[int, int]:
    best = np.minimum.accumulate(costs)
    # Near a root of order k, the residuals are proportional to distance**k, the cost to its square.
    bound = max(best[-1] * (1 + CLOSE), CLOSE ** (2 * order) * costs[0])
    return len(costs), len(costs) - 1 - int(np.argmax(best <= bound))
