"""Compare `least_squares` in float64 with optimistix, jaxopt and SciPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.cases.single_fits import rosenbrock
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

TOLERANCE, MAX_STEPS = 1e-8, 200
CALLED = ("rosenbrock", "decay")  # problems that are also measured without jax.jit


@dataclasses.dataclass(frozen=True)
class Problem:
    """Residual function of params and data, initial guess, and data."""

    residuals: Callable[[Any, Any], Any]
    start: Any
    data: Any
    batched: bool = False


def decay(p: Any, data: Any) -> Any:
    """Residuals of an exponential plus a constant: three params."""
    t, y = data
    return p[0] * jnp.exp(-p[1] * t) + p[2] - y


def two_decays(p: Any, data: Any) -> Any:
    """Residuals of two exponentials plus a constant: five strongly correlated params."""
    t, y = data
    return p[0] * jnp.exp(-p[1] * t) + p[2] * jnp.exp(-p[3] * t) + p[4] - y


def network(p: Any, data: Any) -> Any:
    """Residuals of a network with one hidden layer, whose params are a vector."""
    x, y = data
    k = p.size // 3
    return jnp.tanh(x[:, None] * p[:k] + p[k : 2 * k]) @ p[2 * k :] - y


def problems(smoke: bool) -> dict[str, Problem]:
    """Return small and ill-conditioned problems, a network, and a batch of small problems."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 4, 40 if smoke else 200)

    def noisy(p: Any, model: Any) -> Any:
        return np.asarray(model(np.asarray(p), (t, 0.0))) + 0.02 * rng.standard_normal(len(t))

    truths = rng.uniform([1, 0.5, 0], [3, 2, 1], (4 if smoke else 500, 3))
    many = jnp.stack([noisy(p, decay) for p in truths])
    times, width = jnp.asarray(t), 2 if smoke else 6
    wave = jnp.sin(3 * times) + 0.02 * jnp.asarray(rng.standard_normal(len(t)))
    start = jnp.asarray(rng.standard_normal(3 * width))
    valley = rosenbrock()
    return {
        "rosenbrock": Problem(valley.residuals, valley.start, valley.data),
        "decay": Problem(decay, jnp.ones(3), (times, many[0])),
        "two decays": Problem(
            two_decays,
            jnp.asarray([1.0, 2.0, 0.5, 0.3, 0.1]),
            (times, jnp.asarray(noisy([2.0, 3.0, 1.0, 0.4, 0.5], two_decays))),
        ),
        f"network of {3 * width} params": Problem(network, start, (times, wave)),
        f"{len(many)} decays, vmapped": Problem(decay, jnp.ones(3), (times, many), batched=True),
    }


def ours(problem: Problem, tolerance: float | None = None) -> Callable[..., Any]:
    """Return a solver by fnopt, with the default tolerances or with `tolerance`."""

    def solve(start: Any, data: Any) -> Any:
        solver = fnopt.levenberg_marquardt(ftol=tolerance, xtol=tolerance, gtol=tolerance)
        solution = fnopt.least_squares(
            problem.residuals, start, args=(data,), solver=solver, max_steps=MAX_STEPS
        )
        return solution.params

    return solve


def by_optimistix(problem: Problem) -> Callable[..., Any]:
    """Return a solver by optimistix."""
    optimistix = peer("optimistix")
    solver = optimistix.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE)

    def solve(start: Any, data: Any) -> Any:
        return optimistix.least_squares(
            problem.residuals, solver, start, data, max_steps=MAX_STEPS, throw=False
        ).value

    return solve


def by_jaxopt(problem: Problem) -> Callable[..., Any]:
    """Return a solver by jaxopt."""
    jaxopt = peer("jaxopt")

    solver = jaxopt.LevenbergMarquardt(
        problem.residuals, tol=TOLERANCE, xtol=TOLERANCE, gtol=TOLERANCE, maxiter=MAX_STEPS
    )

    def solve(start: Any, data: Any) -> Any:
        return solver.run(start, data).params

    return solve


def by_scipy(problem: Problem) -> Callable[[], Any]:
    """Return a solver by SciPy (MINPACK), with residuals and Jacobian compiled by JAX."""
    optimize = peer("scipy.optimize")
    fun = jax.jit(problem.residuals)
    jac = jax.jit(jax.jacfwd(problem.residuals))
    start = np.asarray(problem.start)

    def one(data: Any) -> Any:
        return optimize.least_squares(
            lambda p: np.asarray(fun(p, data)),
            start,
            lambda p: np.asarray(jac(p, data)),
            method="lm",
        ).x

    if not problem.batched:
        return lambda: one(problem.data)
    times, y = problem.data
    return lambda: np.stack([one((times, row)) for row in y])


def mapped(problem: Problem, solve: Callable[..., Any]) -> Callable[..., Any]:
    """Map the solver over the rows of the data if the problem is a batch."""
    return jax.vmap(solve, (None, (None, 0))) if problem.batched else solve


def cost(problem: Problem, params: Any) -> float:
    """Return half the sum of squares, summed over a batch."""
    residuals = problem.residuals
    if problem.batched:
        residuals = jax.vmap(residuals, (0, (None, 0)))
    return 0.5 * float(jnp.sum(residuals(jnp.asarray(params), problem.data) ** 2))


def run(settings: Settings) -> Iterator[Metric]:
    """Compare with all installed libraries on every problem, in float64."""
    with jax.enable_x64(True):
        for label, problem in problems(settings.smoke).items():
            yield from _compare(label, problem, settings)


def _installed(problem: Problem) -> dict[str, Callable[..., Any]]:
    solvers = {}
    for name, make in {"optimistix": by_optimistix, "jaxopt": by_jaxopt}.items():
        try:
            solvers[name] = make(problem)
        except Skipped as reason:
            print(f"  without {name}: {reason}")
    return solvers


def _compare(label: str, problem: Problem, settings: Settings) -> Iterator[Metric]:
    same_tolerance = ours(problem, TOLERANCE)
    solvers = {
        "fnopt": ours(problem),
        "fnopt, their tolerance": same_tolerance,
        **_installed(problem),
    }
    args = (problem.start, problem.data)
    functions = {name: (mapped(problem, solve), args) for name, solve in solvers.items()}
    seconds, compiled = compile_seconds(functions, settings)
    variants = {name: blocking(compiled[name], *args) for name in functions}
    variants["scipy"] = by_scipy(problem)
    costs = {name: cost(problem, solve()) for name, solve in variants.items()}
    times = interleave(variants, settings)
    for name in list(variants)[2:]:
        # A solver may be fast because it stops early, so the excess cost is recorded with the time.
        excess = {"peer_excess_cost": _excess(costs, name)}
        metric = ratio(f"{label}: run", f"x {name}", times["fnopt"], times[name])
        yield dataclasses.replace(metric, detail=metric.detail | excess)
        if name != "scipy":
            as_theirs = times["fnopt, their tolerance"]
            yield ratio(f"{label}: run, their tolerance", f"x {name}", as_theirs, times[name])
    for name in list(functions)[2:]:
        yield compile_ratio(f"{label}: compile", f"x {name}", seconds["fnopt"], seconds[name])
    yield Metric(f"{label}: cost", 1 + _excess(costs, "fnopt"), "x best solver's", tolerance=1e-6)
    if label in CALLED[: 1 if settings.smoke else None]:
        yield from _calls(label, problem, settings)


def _calls(label: str, problem: Problem, settings: Settings) -> Iterator[Metric]:
    """Time fits outside `jax.jit`, including the time in Python."""
    solvers = {"fnopt": ours(problem), **_installed(problem)}
    calls = {name: blocking(solve, problem.start, problem.data) for name, solve in solvers.items()}
    times = interleave({**calls, "scipy": by_scipy(problem)}, settings)
    for name in list(times)[1:]:
        yield ratio(f"{label}: call", f"x {name}", times["fnopt"], times[name])

    def with_new_function(make: Callable[[Problem], Callable[..., Any]]) -> Callable[[], Any]:
        """Fit with a new function object in each call, as a closure in a loop does."""

        def call() -> Any:
            closure = dataclasses.replace(problem, residuals=lambda *args: problem.residuals(*args))
            return jax.block_until_ready(make(closure)(problem.start, problem.data))

        return call

    makers = {"fnopt": ours, "optimistix": by_optimistix, "jaxopt": by_jaxopt}
    times = interleave({name: with_new_function(makers[name]) for name in solvers}, settings)
    for name in list(times)[1:]:
        yield ratio(f"{label}: call, new function", f"x {name}", times["fnopt"], times[name])


def _excess(costs: dict[str, float], name: str) -> float:
    """Return the excess of a cost over the lowest cost, relative to the lowest cost.

    Costs below 1e-12 consist of rounding errors, so the excess is divided by at least 1e-12.
    """
    best = min(costs.values())
    return (costs[name] - best) / max(best, 1e-12)
