"""Compare `minimize` with SciPy's L-BFGS-B: evaluations, minima and false reports of convergence.

Both libraries count value and gradient as one evaluation, and use their default tolerances. A
report of convergence is false if the gradient with respect to the params that aren't at active
bounds, computed in float64, is above 1e-3 and above 1e-3 times the initial gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize as scipy_minimize

import fnopt
from benchmarks.metric import Metric
from benchmarks.problems.smooth import BOUNDED, SIZE, UNBOUNDED, Smooth
from benchmarks.timing import Settings


class Outcome(NamedTuple):
    """Result of one run."""

    value: float
    nfev: int
    converged: bool  # reported convergence
    gradient: float  # largest entry; above 1e-3, relative to the initial gradient


def family(problems: list[Smooth]) -> Callable[[Any, Any], Any]:
    """Combine functions into one function `f(x, which)`, which compiles once."""
    branches = [lambda x, p=p: p.f(x[: p.n]) for p in problems]
    return lambda x, which: jax.lax.switch(which, branches, x)


def pad(values: Any, n: int, fill: float) -> np.ndarray:
    """Broadcast to `n` values, and pad with `fill` to the size of the largest problem."""
    return np.concatenate(
        [np.broadcast_to(np.asarray(values, float), (n,)), np.full(SIZE - n, fill)]
    )


def sides(problem: Smooth) -> tuple[np.ndarray, np.ndarray]:
    """Return padded lower and upper bounds, infinite for parameters without a bound."""
    lower, upper = problem.bounds or (-np.inf, np.inf)
    return pad(lower, problem.n, -np.inf), pad(upper, problem.n, np.inf)


def start_of(problem: Smooth) -> np.ndarray:
    """Return the padded initial guess, clipped to the bounds."""
    return np.clip(pad(problem.start, problem.n, 0), *sides(problem))


def judge(
    problem: Smooth, x: Any, nfev: int, converged: bool, value_and_grad: Any, dtype: Any = float
) -> Outcome:
    """Evaluate a solution in float64, with the bounds rounded to the dtype of the run."""
    lower, upper = (side.astype(dtype).astype(float) for side in sides(problem))
    x = np.clip(np.asarray(x, float), lower, upper)

    def evaluate(x: np.ndarray) -> tuple[float, float]:
        value, g = value_and_grad(x)
        active = ((x <= lower) & (g >= 0)) | ((x >= upper) & (g <= 0))
        return float(value), float(np.max(np.abs(np.where(active, 0, g))))

    (_, first), (value, last) = evaluate(start_of(problem)), evaluate(x)
    gradient = last if last <= 1e-3 else last / max(first, 1e-300)
    return Outcome(value, nfev, converged, gradient)


def ours(fun: Any, problem: Smooth, which: int, dtype: Any, method: Any) -> Any:
    """Minimize by fnopt."""
    start = jnp.asarray(start_of(problem), dtype)
    bounds = (
        None if problem.bounds is None else tuple(jnp.asarray(s, dtype) for s in sides(problem))
    )
    return fnopt.minimize(fun, start, args=(jnp.int32(which),), method=method, bounds=bounds)


def runs(problems: list[Smooth], dtype: Any, methods: dict[str, Any]) -> dict[str, list[Outcome]]:
    """Minimize all problems by all methods and by SciPy."""
    fun = family(problems)
    compiled = jax.jit(jax.value_and_grad(fun))
    outcomes: dict[str, list[Outcome]] = {name: [] for name in (*methods, "SciPy")}
    for which, problem in enumerate(problems):

        def value_and_grad(x: Any, which: int = which) -> Any:
            value, g = compiled(jnp.asarray(x, jnp.float64), jnp.int32(which))
            return float(value), np.asarray(g)

        for name, method in methods.items():
            end = ours(fun, problem, which, dtype, method)
            args = end.params, int(end.nfev), bool(end.converged), value_and_grad, dtype
            outcomes[name].append(judge(problem, *args))
        end = scipy_minimize(
            value_and_grad,
            start_of(problem),
            jac=True,
            method="L-BFGS-B",
            bounds=None if problem.bounds is None else list(zip(*sides(problem), strict=True)),
        )
        outcomes["SciPy"].append(judge(problem, end.x, end.nfev, bool(end.success), value_and_grad))
    return outcomes


def print_table(problems: list[Smooth], outcomes: dict[str, list[Outcome]]) -> None:
    """Print a line for every problem."""
    print(f"  {'':<22}" + "".join(f"{name:>24}" for name in outcomes))
    for i, problem in enumerate(problems):
        ends = [runs[i] for runs in outcomes.values()]
        cells = [f"{end.nfev:>6} {end.value:>12.5g} {end.gradient:>4.0e}" for end in ends]
        print(f"  {problem.name:<22}" + "".join(f"{cell:>24}" for cell in cells))


def is_false(outcome: Outcome) -> bool:
    """Whether a run reports convergence although the gradient is large."""
    return outcome.converged and outcome.gradient > 1e-3


def run(settings: Settings) -> Iterator[Metric]:
    """Minimize both families in float64 and float32; SciPy always computes in float64."""
    methods = {"auto": "auto"} if settings.smoke else {"lbfgsb": "lbfgsb", "auto": "auto"}
    with jax.enable_x64(True):
        for label, problems in (("free", UNBOUNDED), ("bounded", BOUNDED)):
            problems = problems[:2] if settings.smoke else problems
            for dtype in (jnp.float64, jnp.float32):
                outcomes = runs(problems, dtype, methods)
                print_table(problems, outcomes)
                yield from figures(label, jnp.dtype(dtype).name, outcomes)


def figures(label: str, dtype: str, outcomes: dict[str, list[Outcome]]) -> Iterator[Metric]:
    """Yield sums over all problems for each method."""
    peer = outcomes["SciPy"]
    for name in outcomes.keys() - {"SciPy"}:
        mine = outcomes[name]
        pairs = list(zip(mine, peer, strict=True))
        detail = {
            "no_more_evaluations": float(sum(a.nfev <= b.nfev for a, b in pairs)),
            "false_claims": float(sum(map(is_false, mine))),
            "not_converged": float(sum(not a.converged for a in mine)),
            "false_claims_of_scipy": float(sum(map(is_false, peer))),
            "problems": float(len(pairs)),
        }
        ratio = sum(a.nfev for a in mine) / sum(b.nfev for b in peer)
        yield Metric(f"{name}, {label}, {dtype}: evaluations", ratio, "x SciPy", detail=detail)
