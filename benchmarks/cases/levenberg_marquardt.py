"""Nonlinear least squares in float64, against optimistix, jaxopt and SciPy."""

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
CALLED = ("rosenbrock", "decay")  # also measured as a user would call them without jax.jit


@dataclasses.dataclass(frozen=True)
class Problem:
    """Residuals of params and data, where to start, and the data."""

    residuals: Callable[[Any, Any], Any]
    start: Any
    data: Any
    batched: bool = False


def decay(p: Any, data: Any) -> Any:
    """One exponential over a background: three params."""
    t, y = data
    return p[0] * jnp.exp(-p[1] * t) + p[2] - y


def two_decays(p: Any, data: Any) -> Any:
    """Two exponentials over a background: five params that are hard to tell apart."""
    t, y = data
    return p[0] * jnp.exp(-p[1] * t) + p[2] * jnp.exp(-p[3] * t) + p[4] - y


def network(p: Any, data: Any) -> Any:
    """A network with one hidden layer, as a vector of params."""
    x, y = data
    k = p.size // 3
    return jnp.tanh(x[:, None] * p[:k] + p[k : 2 * k]) @ p[2 * k :] - y


def problems(smoke: bool) -> dict[str, Problem]:
    """Small, ill-conditioned, a network, and many small ones at once."""
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
    """The best params by fnopt, at its defaults or at the tolerances that the peers have here."""

    def solve(start: Any, data: Any) -> Any:
        solver = fnopt.levenberg_marquardt(ftol=tolerance, xtol=tolerance, gtol=tolerance)
        solution = fnopt.least_squares(
            problem.residuals, start, args=(data,), solver=solver, max_steps=MAX_STEPS
        )
        return solution.params

    return solve


def by_optimistix(problem: Problem) -> Callable[..., Any]:
    """The best params by optimistix."""
    optimistix = peer("optimistix")
    solver = optimistix.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE)

    def solve(start: Any, data: Any) -> Any:
        return optimistix.least_squares(
            problem.residuals, solver, start, data, max_steps=MAX_STEPS, throw=False
        ).value

    return solve


def by_jaxopt(problem: Problem) -> Callable[..., Any]:
    """The best params by jaxopt."""
    jaxopt = peer("jaxopt")

    solver = jaxopt.LevenbergMarquardt(
        problem.residuals, tol=TOLERANCE, xtol=TOLERANCE, gtol=TOLERANCE, maxiter=MAX_STEPS
    )

    def solve(start: Any, data: Any) -> Any:
        return solver.run(start, data).params

    return solve


def by_scipy(problem: Problem) -> Callable[[], Any]:
    """The best params by SciPy (MINPACK), with our compiled residuals and Jacobian."""
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
    """The solver itself, or over the rows of the data."""
    return jax.vmap(solve, (None, (None, 0))) if problem.batched else solve


def cost(problem: Problem, params: Any) -> float:
    """Half the sum of squares; over a batch, the sum of them."""
    residuals = problem.residuals
    if problem.batched:
        residuals = jax.vmap(residuals, (0, (None, 0)))
    return 0.5 * float(jnp.sum(residuals(jnp.asarray(params), problem.data) ** 2))


def run(settings: Settings) -> Iterator[Metric]:
    """Every problem, every peer that is installed; all in float64."""
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
    alike = ours(problem, TOLERANCE)
    solvers = {"fnopt": ours(problem), "fnopt, their tolerance": alike, **_installed(problem)}
    args = (problem.start, problem.data)
    functions = {name: (mapped(problem, solve), args) for name, solve in solvers.items()}
    seconds, compiled = compile_seconds(functions, settings)
    variants = {name: blocking(compiled[name], *args) for name in functions}
    variants["scipy"] = by_scipy(problem)
    costs = {name: cost(problem, solve()) for name, solve in variants.items()}
    times = interleave(variants, settings)
    for name in list(variants)[2:]:
        # A quick answer that is wrong is no answer: the peer's cost stands beside its time.
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
    """A fit that is called as it is, not under `jax.jit`: the work in Python counts too."""
    known = {"fnopt": ours(problem), **_installed(problem)}
    calls = {name: blocking(solve, problem.start, problem.data) for name, solve in known.items()}
    times = interleave({**calls, "scipy": by_scipy(problem)}, settings)
    for name in list(times)[1:]:
        yield ratio(f"{label}: call", f"x {name}", times["fnopt"], times[name])

    def anew(make: Callable[[Problem], Callable[..., Any]]) -> Callable[[], Any]:
        """The same with a function that has not been seen before, as closures are."""

        def call() -> Any:
            closure = dataclasses.replace(problem, residuals=lambda *args: problem.residuals(*args))
            return jax.block_until_ready(make(closure)(problem.start, problem.data))

        return call

    makers = {"fnopt": ours, "optimistix": by_optimistix, "jaxopt": by_jaxopt}
    times = interleave({name: anew(makers[name]) for name in known}, settings)
    for name in list(times)[1:]:
        yield ratio(f"{label}: call, new function", f"x {name}", times["fnopt"], times[name])


def _excess(costs: dict[str, float], name: str) -> float:
    """By how much a cost is above the best one, of that; costs of rounding only count as none."""
    best = min(costs.values())
    return (costs[name] - best) / max(best, 1e-12)
