"""Minimizing smooth functions: evaluations, minima and false claims, against SciPy's L-BFGS-B.

Both count an evaluation of value and gradient as one, and stop by their own default tolerances. A
claim is false if the run says that it converged, and the gradient (of the params that no bound
holds), computed in float64, is above 1e-3 and above 1e-4 of that at the start.
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
    """How one run ended."""

    value: float
    nfev: int
    claimed: bool
    pull: float  # of the gradient, relative to the start's


def family(problems: list[Smooth]) -> Callable[[Any, Any], Any]:
    """One function for all: which of them is an argument, so that they share a program."""
    branches = [lambda x, p=p: p.f(x[: p.n]) for p in problems]
    return lambda x, which: jax.lax.switch(which, branches, x)


def padded(values: Any, n: int, fill: float) -> np.ndarray:
    """A vector of the common size."""
    return np.concatenate(
        [np.broadcast_to(np.asarray(values, float), (n,)), np.full(SIZE - n, fill)]
    )


def sides(problem: Smooth) -> tuple[np.ndarray, np.ndarray]:
    """The bounds, infinite where there are none."""
    lower, upper = problem.bounds or (-np.inf, np.inf)
    return padded(lower, problem.n, -np.inf), padded(upper, problem.n, np.inf)


def start_of(problem: Smooth) -> np.ndarray:
    """The start, inside of the bounds."""
    return np.clip(padded(problem.start, problem.n, 0), *sides(problem))


def judge(
    problem: Smooth, x: Any, nfev: int, claimed: bool, at: Any, dtype: Any = float
) -> Outcome:
    """An outcome, with value and gradient in float64 and the bounds that the run had."""
    lower, upper = (side.astype(dtype).astype(float) for side in sides(problem))
    x = np.clip(np.asarray(x, float), lower, upper)

    def pull(x: np.ndarray) -> tuple[float, float]:
        value, g = at(x)
        held = ((x <= lower) & (g >= 0)) | ((x >= upper) & (g <= 0))
        return float(value), float(np.max(np.abs(np.where(held, 0, g))))

    (_, first), (value, last) = pull(start_of(problem)), pull(x)
    return Outcome(value, nfev, claimed, last if last <= 1e-3 else last / max(first, 1e-300))


def ours(fun: Any, problem: Smooth, which: int, dtype: Any, method: Any) -> Any:
    """Our run."""
    start = jnp.asarray(start_of(problem), dtype)
    bounds = (
        None if problem.bounds is None else tuple(jnp.asarray(s, dtype) for s in sides(problem))
    )
    return fnopt.minimize(fun, start, args=(jnp.int32(which),), method=method, bounds=bounds)


def runs(problems: list[Smooth], dtype: Any, methods: dict[str, Any]) -> dict[str, list[Outcome]]:
    """All problems, by all methods and SciPy."""
    fun = family(problems)
    slope = jax.jit(jax.value_and_grad(fun))
    found: dict[str, list[Outcome]] = {name: [] for name in (*methods, "SciPy")}
    for which, problem in enumerate(problems):

        def at(x: Any, which: int = which) -> Any:
            value, g = slope(jnp.asarray(x, jnp.float64), jnp.int32(which))
            return float(value), np.asarray(g)

        for name, method in methods.items():
            end = ours(fun, problem, which, dtype, method)
            claimed = bool(end.converged)
            found[name].append(judge(problem, end.params, int(end.nfev), claimed, at, dtype))
        end = scipy_minimize(
            at,
            start_of(problem),
            jac=True,
            method="L-BFGS-B",
            bounds=None if problem.bounds is None else list(zip(*sides(problem), strict=True)),
        )
        found["SciPy"].append(judge(problem, end.x, end.nfev, bool(end.success), at))
    return found


def print_table(problems: list[Smooth], found: dict[str, list[Outcome]]) -> None:
    """A line for every problem."""
    print(f"  {'':<22}" + "".join(f"{name:>24}" for name in found))
    for i, problem in enumerate(problems):
        cells = [f"{o[i].nfev:>6} {o[i].value:>12.5g} {o[i].pull:>4.0e}" for o in found.values()]
        print(f"  {problem.name:<22}" + "".join(f"{cell:>24}" for cell in cells))


def is_false(outcome: Outcome) -> bool:
    """Whether convergence was claimed where the gradient isn't small."""
    return outcome.claimed and outcome.pull > 1e-3


def run(settings: Settings) -> Iterator[Metric]:
    """Both families in float64, ours in float32 too."""
    methods = {"auto": "auto"} if settings.smoke else {"lbfgsb": "lbfgsb", "auto": "auto"}
    with jax.enable_x64(True):
        for label, problems in (("free", UNBOUNDED), ("bounded", BOUNDED)):
            problems = problems[:2] if settings.smoke else problems
            for dtype in (jnp.float64, jnp.float32):
                found = runs(problems, dtype, methods)
                print_table(problems, found)
                yield from figures(label, jnp.dtype(dtype).name, found)


def figures(label: str, dtype: str, found: dict[str, list[Outcome]]) -> Iterator[Metric]:
    """The sums over all problems."""
    peer = found["SciPy"]
    for name in found.keys() - {"SciPy"}:
        mine = found[name]
        pairs = list(zip(mine, peer, strict=True))
        detail = {
            "no_more_evaluations": float(sum(a.nfev <= b.nfev for a, b in pairs)),
            "false_claims": float(sum(map(is_false, mine))),
            "not_converged": float(sum(not a.claimed for a in mine)),
            "false_claims_of_scipy": float(sum(map(is_false, peer))),
            "problems": float(len(pairs)),
        }
        ratio = sum(a.nfev for a in mine) / sum(b.nfev for b in peer)
        yield Metric(f"{name}, {label}, {dtype}: evaluations", ratio, "x SciPy", detail=detail)
