"""Count true and false reports of convergence by `minimize` and by SciPy.

The functions of `problems.claims` start from the published initial guess, from random guesses
around it and around ten times it, and with values multiplied by a factor. A run ends at a minimum
if SciPy, started from its solution in float64, lowers the value by at most a thousandth (a
hundredth in float32). The values of known minima are reused for the other runs.

The counts are stored in `benchmarks/results/minimize_claims.jsonl`, so an interrupted benchmark
continues. Delete this file to repeat the benchmark.
"""

from __future__ import annotations

import collections
import functools
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize as scipy_minimize

import fnopt
from benchmarks.metric import Metric
from benchmarks.problems.claims import FUNCTIONS, SIZE
from benchmarks.problems.smooth import Smooth
from benchmarks.timing import Settings

RECORD = Path(__file__).parents[1] / "results" / "minimize_claims.jsonl"
METHODS = ("bfgs", "lbfgsb", "cg", "newton_cg")
PEERS = ("BFGS", "L-BFGS-B", "CG", "Newton-CG")  # SciPy's methods, in float64
VALUES = {"values of 1e-24": 1e-24, "values of 1e20": 1e20}
RANDOM = 3  # random guesses around the published guess, and around ten times the guess
# Tolerances for the value of a minimum, relative to the value and to the decrease from the start.
NEAR = {"float64": (1e-3, 1e-6), "float32": (1e-2, 1e-4)}
TRIES: tuple[tuple[str, dict[str, float]], ...] = (
    ("L-BFGS-B", {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 150}),
    ("BFGS", {"gtol": 1e-10, "maxiter": 150}),
)


class Run(NamedTuple):
    """An initial guess for a function."""

    which: int
    kind: str
    start: np.ndarray
    factor: float  # multiplies the value


class Judge:
    """Known minimum values of functions, and the test whether a point is a minimum."""

    def __init__(self, functions: list[Smooth]) -> None:
        branches = [lambda x, p=p: p.f(x[: p.n]) for p in functions]
        self.family: Callable[..., Any] = lambda x, which: jax.lax.switch(which, branches, x)
        self._value_and_grad = jax.jit(jax.value_and_grad(self.family))
        self._functions = functions
        self._known: list[list[float]] = [[] for _ in functions]

    def is_minimum(self, which: int, x: np.ndarray, dtype: str) -> bool:
        """Whether SciPy can't lower the value significantly from `x`."""
        relative, absolute = NEAR[dtype]
        start = self.value_and_grad(which, self._functions[which].start)[0]
        value = self.value_and_grad(which, x)[0]

        def is_near(minimum: float) -> bool:
            tolerance = relative * abs(minimum) + absolute * min(1, max(start - minimum, 0))
            return -1e-9 * abs(minimum) - 1e-12 <= value - minimum <= tolerance

        if not np.isfinite(value) or any(map(is_near, self._known[which])):
            return bool(np.isfinite(value))
        lowest = value
        fun = functools.partial(self.value_and_grad, which)
        for method, options in TRIES:
            end = scipy_minimize(fun, x, jac=True, method=method, options=options)
            lowest = min(lowest, end.fun) if np.isfinite(end.fun) else lowest
        if is_near(lowest):
            self._known[which].append(lowest)
        return is_near(lowest)

    def value_and_grad(self, which: int, x: Any) -> tuple[float, np.ndarray]:
        """Return value and gradient; 1e300 and zeros if the value isn't finite."""
        n = self._functions[which].n
        value, g = self._value_and_grad(jnp.asarray(_pad(x)), jnp.int32(which))
        finite = bool(np.isfinite(value))
        return (float(value), np.asarray(g)[:n]) if finite else (1e300, np.zeros(n))


def run(settings: Settings) -> Iterator[Metric]:
    """Count for all methods and kinds of guesses in both precisions, and for SciPy."""
    functions = FUNCTIONS[:2] if settings.smoke else FUNCTIONS
    starts = list(_starts(functions))
    counts = {} if settings.smoke or not RECORD.exists() else _read()
    dtypes = ("float64",) if settings.smoke else ("float64", "float32")
    cases = [(m, d) for m in METHODS[: 1 if settings.smoke else None] for d in dtypes]
    cases += [(f"SciPy's {peer}", "float64") for peer in PEERS[: 1 if settings.smoke else None]]
    with jax.enable_x64(True):
        judge = Judge(functions)
        for method, dtype in cases:
            if (method, dtype) not in counts:
                counts[method, dtype] = _count(starts, judge, method, dtype)
                if not settings.smoke:
                    RECORD.parent.mkdir(exist_ok=True)
                    with RECORD.open("a") as file:
                        print(json.dumps([method, dtype, counts[method, dtype]]), file=file)
            for kind, count in counts[method, dtype].items():
                yield Metric(
                    f"{method}, {dtype}, {kind}: false claims",
                    count["false"],
                    f"of {count['runs']}",
                    tolerance=0.5,
                    detail={name: float(value) for name, value in count.items()},
                )


def _read() -> dict[tuple[str, str], dict[str, dict[str, int]]]:
    lines = map(json.loads, RECORD.read_text().splitlines())
    return {(method, dtype): counts for method, dtype, counts in lines}


def _starts(functions: list[Smooth]) -> Iterator[Run]:
    for which, problem in enumerate(functions):
        start = np.asarray(problem.start, float)
        rng = np.random.default_rng(zlib.crc32(problem.name.encode()))
        yield Run(which, "published", start, 1.0)
        for kind, center in (("around", start), ("far", 10 * start)):
            for away in rng.standard_normal((RANDOM, start.size)) / 2:
                yield Run(which, kind, np.where(center == 0, away, center * (1 + away)), 1.0)
        for kind, factor in VALUES.items():
            yield Run(which, kind, start, factor)


def _count(starts: list[Run], judge: Judge, method: str, dtype: str) -> dict[str, dict[str, int]]:
    solve = _scipy(judge, method.split()[-1]) if "SciPy" in method else _ours(judge, method, dtype)
    counts: dict[str, dict[str, int]] = collections.defaultdict(
        lambda: dict.fromkeys(
            ("runs", "right", "false", "refused", "lost", "nfev", "solved_nfev"), 0
        )
    )
    for start in starts:
        x, nfev, converged = solve(start)
        minimum = bool(np.all(np.isfinite(x))) and judge.is_minimum(start.which, x, dtype)
        count = counts[start.kind]
        names = {(True, True): "right", (True, False): "false", (False, True): "refused"}
        count[names.get((converged, minimum), "lost")] += 1
        count["runs"] += 1
        count["nfev"] += nfev
        count["solved_nfev"] += nfev * minimum
    return dict(counts)


def _ours(judge: Judge, method: str, dtype: str) -> Callable[[Run], tuple[np.ndarray, int, bool]]:
    @jax.jit
    def compiled(x: Any, which: Any, factor: Any) -> Any:
        return fnopt.minimize(lambda x: judge.family(x, which) * factor, x, method=method)

    def solve(one: Run) -> tuple[np.ndarray, int, bool]:
        start, factor = jnp.asarray(_pad(one.start), dtype), jnp.asarray(one.factor, dtype)
        end = compiled(start, jnp.int32(one.which), factor)
        x = np.asarray(end.params, float)[: one.start.size]
        return x, int(end.nfev), bool(end.converged)

    return solve


def _scipy(judge: Judge, method: str) -> Callable[[Run], tuple[np.ndarray, int, bool]]:
    def solve(one: Run) -> tuple[np.ndarray, int, bool]:
        def fun(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = judge.value_and_grad(one.which, x)
            return value * one.factor, gradient * one.factor

        end = scipy_minimize(fun, one.start, jac=True, method=method)
        return np.asarray(end.x), int(end.nfev), bool(end.success)

    return solve


def _pad(values: Any) -> np.ndarray:
    """Pad with zeros to the size of the largest problem."""
    values = np.asarray(values, float)
    return np.concatenate([values, np.zeros(SIZE - values.size)])
