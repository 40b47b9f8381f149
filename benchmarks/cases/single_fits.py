"""Compare the time of a step on large problems in float64 with optimistix, jaxopt and SciPy."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
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

STEPS = 10  # so that the initial evaluation takes a small part of the time
FEW = 3  # for problems whose steps take up to ten seconds


@dataclasses.dataclass(frozen=True)
class Problem:
    """Residual function of params and data, initial guess, and data.

    If the Jacobian has a structure (one row per example, a band), `jac` uses this structure.
    """

    residuals: Callable[[Any, Any], Any]
    start: Any
    data: Any
    jac: Callable[[Any, Any], Any] | None = None
    steps: int = STEPS


def network(examples: int, *widths: int) -> Problem:
    """Create a multi-layer perceptron with one output, whose params are a vector."""
    rng = np.random.default_rng(0)
    shapes = list(itertools.pairwise((*widths, 1)))
    inputs = jnp.asarray(rng.standard_normal((examples, widths[0])))
    targets = jnp.sin(inputs @ jnp.asarray(rng.standard_normal(widths[0])))

    def residuals(p: Any, data: Any) -> Any:  # of a batch, or of one example
        x, y = data
        offset = 0
        for k, (a, b) in enumerate(shapes):
            W, c = (
                p[offset : offset + a * b].reshape(a, b),
                p[offset + a * b : offset + (a + 1) * b],
            )
            x = (jnp.tanh(x) if k else x) @ W + c
            offset += (a + 1) * b
        return x[..., 0] - y

    parts = [rng.standard_normal((a + 1) * b) / np.sqrt(a) for a, b in shapes]
    start = jnp.asarray(np.concatenate(parts))
    jac = fnopt.per_example_jacobian(residuals)
    return Problem(residuals, start, (inputs, targets), jac, steps=FEW)


def dense(m: int, n: int) -> Problem:
    """Create a generalized linear model, whose residuals depend on all params."""
    rng = np.random.default_rng(1)
    A = jnp.asarray(rng.standard_normal((m, n)) / np.sqrt(n))
    truth = jnp.asarray(rng.standard_normal(n))
    y = jnp.tanh(A @ truth) + 0.1 * jnp.asarray(rng.standard_normal(m))

    def residuals(p: Any, data: Any) -> Any:
        A, y = data
        return jnp.tanh(A @ p) - y

    return Problem(residuals, jnp.zeros(n), (A, y))


def banded(n: int) -> Problem:
    """Create Broyden's tridiagonal function, whose residuals depend on three params each."""

    def residuals(p: Any, data: Any) -> Any:
        left = jnp.concatenate([jnp.zeros(1), p[:-1]])
        right = jnp.concatenate([p[1:], jnp.zeros(1)])
        return (3 - 2 * p) * p - left - 2 * right + data

    return Problem(residuals, -jnp.ones(n), jnp.asarray(1.0), fnopt.sparse_jacobian(residuals))


def rosenbrock() -> Problem:
    """Create Rosenbrock's function of two params, which measures the overhead of a step."""

    def residuals(p: Any, data: Any) -> Any:
        return jnp.stack([data * (p[1] - p[0] ** 2), 1 - p[0]])

    return Problem(residuals, jnp.asarray([-1.2, 1.0]), jnp.asarray(10.0))


def problems(smoke: bool) -> dict[str, Problem]:
    """Return problems with few, many and equally many residuals and params, and a band."""
    if smoke:
        return {
            "network 20 x 61": network(20, 3, 12),
            "banded 300 x 300": banded(300),
            "rosenbrock": rosenbrock(),
        }
    return {
        "network 400 x 3013": network(400, 5, 52, 50),
        "dense 20000 x 200": dense(20_000, 200),
        "network 5120 x 1549": network(5120, 4, 36, 36),
        "banded 1000 x 1000": banded(1000),
        "rosenbrock": rosenbrock(),
    }


def ours(problem: Problem, jac: Any = None) -> Callable[..., Any]:
    """Return a solver by fnopt with tolerances of zero, which returns params and steps."""
    solver = fnopt.levenberg_marquardt(ftol=0.0, xtol=0.0, gtol=0.0)

    def solve(start: Any, data: Any) -> Any:
        solution = fnopt.least_squares(
            problem.residuals, start, args=(data,), jac=jac, solver=solver, max_steps=problem.steps
        )
        return solution.params, solution.steps

    return solve


def by_optimistix(problem: Problem) -> Callable[..., Any]:
    """Return a solver by optimistix, which returns params and steps."""
    optimistix = peer("optimistix")
    solver = optimistix.LevenbergMarquardt(rtol=1e-30, atol=1e-30)

    def solve(start: Any, data: Any) -> Any:
        solution = optimistix.least_squares(
            problem.residuals, solver, start, data, max_steps=problem.steps, throw=False
        )
        return solution.value, solution.stats["num_steps"]

    return solve


def by_jaxopt(problem: Problem, method: str) -> Callable[..., Any]:
    """Return a solver by jaxopt with Cholesky or QR, which returns params and steps."""
    jaxopt = peer("jaxopt")

    def solve(start: Any, data: Any) -> Any:
        solver = jaxopt.LevenbergMarquardt(
            problem.residuals,
            solver=method,
            materialize_jac=True,
            tol=0.0,
            xtol=0.0,
            gtol=0.0,
            maxiter=problem.steps,
        )
        solution = solver.run(start, data)
        return solution.params, solution.state.iter_num

    return solve


def by_scipy(problem: Problem) -> Callable[[], Any]:
    """Return a solver by SciPy's `trf`, with residuals and Jacobian compiled by JAX."""
    optimize = peer("scipy.optimize")
    fun = jax.jit(problem.residuals)
    m, n = jax.eval_shape(fun, problem.start, problem.data).size, problem.start.size
    jac = jax.jit((jax.jacfwd if n <= m else jax.jacrev)(problem.residuals))

    def solve() -> Any:
        solution = optimize.least_squares(
            lambda p: np.asarray(fun(p, problem.data)),
            np.asarray(problem.start),
            lambda p: np.asarray(jac(p, problem.data)),
            ftol=1e-15,
            xtol=1e-15,
            gtol=1e-15,
            max_nfev=problem.steps,
        )
        return solution.x, solution.nfev

    return solve


def run(settings: Settings) -> Iterator[Metric]:
    """Compare with all installed libraries on every problem."""
    with jax.enable_x64(True):
        for label, problem in problems(settings.smoke).items():
            yield from _compare(label, problem, settings)


def _installed(problem: Problem) -> dict[str, Callable[..., Any]]:
    makers = {
        "optimistix": lambda: by_optimistix(problem),
        "jaxopt Cholesky": lambda: by_jaxopt(problem, "cholesky"),
        "jaxopt QR": lambda: by_jaxopt(problem, "qr"),
    }
    solvers = {}
    for name, make in makers.items():
        try:
            solvers[name] = make()
        except Skipped as reason:
            print(f"  without {name}: {reason}")
    return solvers


def _cost(problem: Problem, params: Any) -> float:
    return 0.5 * float(jnp.sum(problem.residuals(jnp.asarray(params), problem.data) ** 2))


def _compare(label: str, problem: Problem, settings: Settings) -> Iterator[Metric]:
    """Measure the time per step of a few steps, and their final cost."""
    solvers = {"fnopt": ours(problem), **_installed(problem)}
    if problem.jac is not None:
        solvers["fnopt with jac"] = ours(problem, problem.jac)
    args = (problem.start, problem.data)
    functions = {name: (solve, args) for name, solve in solvers.items()}
    seconds, compiled = compile_seconds(functions, settings)
    variants = {name: blocking(compiled[name], *args) for name in functions}
    variants["scipy"] = by_scipy(problem)
    ends = {name: solve() for name, solve in variants.items()}
    costs = {name: _cost(problem, params) for name, (params, _) in ends.items()}
    steps = {name: max(int(count), 1) for name, (_, count) in ends.items()}
    times = interleave(variants, settings)
    each = {name: [t / steps[name] for t in times[name]] for name in variants}
    for name in list(variants)[1:]:
        metric = ratio(f"{label}: step", f"x {name}", each["fnopt"], each[name])
        detail = {"ours_cost": costs["fnopt"], "peer_cost": costs[name]}
        yield dataclasses.replace(metric, detail=metric.detail | detail)
    for name in list(functions)[1:]:
        yield compile_ratio(f"{label}: compile", f"x {name}", seconds["fnopt"], seconds[name])
