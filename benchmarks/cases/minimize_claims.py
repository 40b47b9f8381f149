"""Claims of convergence of `minimize` from several starts: right, false, refused, beside SciPy.

The functions are those of `problems.claims`, from the published start, from random ones around it
and around ten times it, and in other units of the value. A run is at a minimum if SciPy, from where
it ended and in float64, gains no more than a thousandth of the value there (a hundredth in
float32). A value that was found to be one of a minimum is remembered for the other runs.

Runs are kept in `benchmarks/results/minimize_claims.jsonl`, so a run that was stopped goes on where
it was; without that file everything is measured anew.
"""

from __future__ import annotations

import collections
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

KEPT = Path(__file__).parents[1] / "results" / "minimize_claims.jsonl"
METHODS = ("bfgs", "lbfgsb", "cg", "newton_cg")
PEERS = ("BFGS", "L-BFGS-B", "CG", "Newton-CG")  # of SciPy, in float64
VALUES = {"values of 1e-24": 1e-24, "values of 1e20": 1e20}
RANDOM = 3  # starts around the published one, and around ten times it
NEAR = {"float64": (1e-3, 1e-6), "float32": (1e-2, 1e-4)}  # of the value, and of what was gained
TRIES: tuple[tuple[str, dict[str, float]], ...] = (
    ("L-BFGS-B", {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 150}),
    ("BFGS", {"gtol": 1e-10, "maxiter": 150}),
)


class Run(NamedTuple):
    """A start of a function."""

    which: int
    kind: str
    start: np.ndarray
    factor: float  # of the value


class Judge:
    """What is known of the least values of some functions."""

    def __init__(self, functions: list[Smooth]) -> None:
        branches = [lambda x, p=p: p.f(x[: p.n]) for p in functions]
        self.family: Callable[..., Any] = lambda x, which: jax.lax.switch(which, branches, x)
        self._slope = jax.jit(jax.value_and_grad(self.family))
        self._functions = functions
        self._known: list[list[float]] = [[] for _ in functions]

    def is_least(self, which: int, x: np.ndarray, dtype: str) -> bool:
        """Whether SciPy gains next to nothing from there."""
        relative, absolute = NEAR[dtype]
        start, value = self.at(which, self._functions[which].start)[0], self.at(which, x)[0]

        def near(least: float) -> bool:
            room = relative * abs(least) + absolute * min(1, max(start - least, 0))
            return -1e-9 * abs(least) - 1e-12 <= value - least <= room

        if not np.isfinite(value) or any(map(near, self._known[which])):
            return bool(np.isfinite(value))
        least = value
        for method, options in TRIES:
            end = scipy_minimize(
                lambda x: self.at(which, x), x, jac=True, method=method, options=options
            )
            least = min(least, end.fun) if np.isfinite(end.fun) else least
        if near(least):
            self._known[which].append(least)
        return near(least)

    def at(self, which: int, x: Any) -> tuple[float, np.ndarray]:
        """Value and gradient; a large number where there is none."""
        n = self._functions[which].n
        value, g = self._slope(jnp.asarray(_padded(x)), jnp.int32(which))
        known = bool(np.isfinite(value))
        return (float(value), np.asarray(g)[:n]) if known else (1e300, np.zeros(n))


def run(settings: Settings) -> Iterator[Metric]:
    """All methods and kinds of starts in both precisions, and SciPy's methods."""
    functions = FUNCTIONS[:2] if settings.smoke else FUNCTIONS
    starts = list(_starts(functions))
    kept = {} if settings.smoke or not KEPT.exists() else _kept()
    dtypes = ("float64",) if settings.smoke else ("float64", "float32")
    cases = [(m, d) for m in METHODS[: 1 if settings.smoke else None] for d in dtypes]
    cases += [(f"SciPy's {peer}", "float64") for peer in PEERS[: 1 if settings.smoke else None]]
    with jax.enable_x64(True):
        judge = Judge(functions)
        for method, dtype in cases:
            if (method, dtype) not in kept:
                kept[method, dtype] = _counted(starts, judge, method, dtype)
                if not settings.smoke:
                    KEPT.parent.mkdir(exist_ok=True)
                    with KEPT.open("a") as file:
                        print(json.dumps([method, dtype, kept[method, dtype]]), file=file)
            for kind, count in kept[method, dtype].items():
                yield Metric(
                    f"{method}, {dtype}, {kind}: false claims",
                    count["false"],
                    f"of {count['runs']}",
                    tolerance=0.5,
                    detail={name: float(value) for name, value in count.items()},
                )


def _kept() -> dict[tuple[str, str], dict[str, dict[str, int]]]:
    lines = map(json.loads, KEPT.read_text().splitlines())
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


def _counted(starts: list[Run], judge: Judge, method: str, dtype: str) -> dict[str, dict[str, int]]:
    ended = _scipy(judge, method.split()[-1]) if "SciPy" in method else _ours(judge, method, dtype)
    counts: dict[str, dict[str, int]] = collections.defaultdict(
        lambda: dict.fromkeys(
            ("runs", "right", "false", "refused", "lost", "nfev", "solved_nfev"), 0
        )
    )
    for one in starts:
        x, nfev, claims = ended(one)
        least = bool(np.all(np.isfinite(x))) and judge.is_least(one.which, x, dtype)
        count = counts[one.kind]
        names = {(True, True): "right", (True, False): "false", (False, True): "refused"}
        count[names.get((claims, least), "lost")] += 1
        count["runs"] += 1
        count["nfev"] += nfev
        count["solved_nfev"] += nfev * least
    return dict(counts)


def _ours(judge: Judge, method: str, dtype: str) -> Callable[[Run], tuple[np.ndarray, int, bool]]:
    @jax.jit
    def solve(x: Any, which: Any, factor: Any) -> Any:
        return fnopt.minimize(lambda x: judge.family(x, which) * factor, x, method=method)

    def ended(one: Run) -> tuple[np.ndarray, int, bool]:
        start, factor = jnp.asarray(_padded(one.start), dtype), jnp.asarray(one.factor, dtype)
        end = solve(start, jnp.int32(one.which), factor)
        x = np.asarray(end.params, float)[: one.start.size]
        return x, int(end.nfev), bool(end.converged)

    return ended


def _scipy(judge: Judge, method: str) -> Callable[[Run], tuple[np.ndarray, int, bool]]:
    def ended(one: Run) -> tuple[np.ndarray, int, bool]:
        def fun(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, slope = judge.at(one.which, x)
            return value * one.factor, slope * one.factor

        end = scipy_minimize(fun, one.start, jac=True, method=method)
        return np.asarray(end.x), int(end.nfev), bool(end.success)

    return ended


def _padded(values: Any) -> np.ndarray:
    """A vector of the common size."""
    values = np.asarray(values, float)
    return np.concatenate([values, np.zeros(SIZE - values.size)])
