"""Count false reports of convergence from random initial guesses for problems of NIST and MGH.

The initial guesses of NIST's 27 fits have errors of up to a factor of two and of ten in every
parameter. The problems of Moré, Garbow and Hillstrom (MGH) start near 1, 10 and 100 times the
standard initial guess.

MINPACK continues each fit in float64, from the solution and from nearby points. A report is false
if MINPACK lowers the cost by more than a thousandth, and by more than the rounding error of the
fit's dtype. The solution is a local minimum if MINPACK leaves it only from nearby points and all
eigenvalues of the Hessian are clearly positive. Known infima at infinity, other known minima (as in
`mgh`), and false reports with parameters flagged as undetermined are counted separately.
"""

from __future__ import annotations

import collections
import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fnopt
from benchmarks.cases import mgh as mgh_case
from benchmarks.cases import nist as nist_case
from benchmarks.metric import Metric
from benchmarks.problems import mgh, nist
from benchmarks.reliability import Residuals
from benchmarks.timing import Settings, peer
from fnopt.solvers import dogleg, gauss_newton

FALLS = 1e-3  # relative decrease of the cost that makes a report false
BESIDE = 1e-3  # relative distance of the nearby points
ROUNDED = 10  # decreases below this multiple of the rounding error don't count
DIFFERENCE = 6e-6  # relative step of central differences: cube root of float64's epsilon
CLEARLY = 1e-8  # smallest relative eigenvalue of a Hessian that is clearly positive
A_FEW = ("rosenbrock", "beale")
SOLVERS: dict[str, Callable[[], Any]] = {
    "levenberg_marquardt": fnopt.levenberg_marquardt,
    "dogleg": dogleg,
    "gauss_newton": gauss_newton,
    "cholesky": functools.partial(fnopt.levenberg_marquardt, linear_solver="cholesky"),
    "cg": functools.partial(fnopt.levenberg_marquardt, linear_solver="cg"),
}


class Around(NamedTuple):
    """A problem and its random initial guesses."""

    residuals: Residuals
    data: Any  # a tree of float64 arrays
    starts: list[np.ndarray]
    known: tuple[float, ...]  # costs of known minima and infima


class End(NamedTuple):
    """Result of a fit."""

    problem: int
    params: np.ndarray
    converged: np.ndarray
    undetermined: np.ndarray  # whether the certificate marks a parameter
    evaluations: np.ndarray


Functions = Callable[[Any, Any], Any]
"""`f(params, k)` returns the residuals of problem k."""


def run(settings: Settings) -> Iterator[Metric]:
    """Count for each solver in both precisions."""
    groups = collections.defaultdict(list)
    for problem in _problems(settings.smoke):
        groups[len(problem.starts[0])].append(problem)
    for dtype in ("float32",) if settings.smoke else ("float32", "float64"):
        for name in settings.select(list(SOLVERS)[: 1 if settings.smoke else None]):
            total = collections.Counter()
            for group in groups.values():
                total.update(_counted(group, SOLVERS[name](), dtype))
            yield Metric(
                f"{dtype}, {name}",
                total.pop("false"),
                "false reports, unflagged",
                direction="lower",
                tolerance=0.0,
                detail=dict(total),
            )


def _problems(smoke: bool) -> Iterator[Around]:
    if not smoke and nist.folder() is not None:
        for name in nist.MODELS:
            task, certified = nist_case.task(name), nist.load(name).certified
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            factors = [f ** rng.uniform(-1, 1, (10, certified.size)) for f in (2, 10)]
            yield Around(task.residuals, task.data, list(certified * np.concatenate(factors)), ())
    for problem in mgh.PROBLEMS:
        if not smoke or problem.name in A_FEW:
            task = mgh_case.task(problem)
            rng = np.random.default_rng(zlib.crc32(problem.name.encode()))
            starts = [
                np.where(start == 0, away, start * (1 + away))
                for start in task.starts.values()
                for away in rng.standard_normal((5, start.size)) / 2
            ]
            yield Around(task.residuals, (), starts, tuple(k / 2 for k in problem.others))


def _counted(group: list[Around], solver: Any, dtype: str) -> dict[str, int]:
    """Count the outcomes of problems with equally many params, in one program."""
    ends = []
    with jax.enable_x64(dtype == "float64"):
        residuals = _together(group, dtype)

        @jax.jit
        def fit(p: Any, k: Any) -> Any:
            end = fnopt.least_squares(lambda q: residuals(q, k), p, solver=solver)
            return end.params, end.converged, jnp.any(end.certificate.undetermined), end.nfev

        for k, problem in enumerate(group):
            for start in problem.starts:
                params, *rest = fit(jnp.asarray(start, dtype), k)
                ends.append(End(k, np.asarray(params, float), *map(np.asarray, rest)))
    converged = [end for end in ends if end.converged]
    counts = collections.Counter(
        starts=len(ends), converged=len(converged), false=0, flagged=0, local=0, known=0
    )
    counts["evaluations"] = sum(int(end.evaluations) for end in ends)
    with jax.enable_x64(True):
        residuals = jax.jit(_together(group, "float64"))
        jacobian = jax.jit(jax.jacfwd(residuals))
        for k, params, _, undetermined, _ in converged:
            fun, jac = functools.partial(residuals, k=k), functools.partial(jacobian, k=k)
            zero = ROUNDED * float(np.finfo(dtype).eps) ** 2 * _cost(fun, group[k].starts[0])
            outcome = _outcome(fun, jac, params, float(np.finfo(dtype).eps), zero)
            cost = _cost(fun, params)
            is_known = any(abs(cost - other) <= 1e-3 * other for other in group[k].known)
            if outcome == "false" and undetermined:
                outcome = "flagged"
            counts["known" if is_known and outcome != "true" else outcome] += 1
    return counts


def _cost(fun: Any, x: np.ndarray) -> float:
    r = np.asarray(fun(x))
    return 0.5 * float(r @ r)


def _together(group: list[Around], dtype: str) -> Functions:
    data = [jax.tree.map(lambda a: np.asarray(a, dtype), one.data) for one in group]
    plain = [
        functools.partial(
            lambda one, data, p: one.residuals(p, jax.tree.map(jnp.asarray, data)), *both
        )
        for both in zip(group, data, strict=True)
    ]
    shape = jax.ShapeDtypeStruct(group[0].starts[0].shape, dtype)
    counts = [jax.eval_shape(fn, shape).size for fn in plain]

    def pad(fn: Any, missing: int, p: Any) -> Any:
        return jnp.pad(fn(p), (0, missing))

    branches = [
        functools.partial(pad, fn, max(counts) - count)
        for fn, count in zip(plain, counts, strict=True)
    ]
    return lambda p, k: lax.switch(k, branches, p)


def _outcome(fun: Any, jac: Any, x: np.ndarray, eps: float, zero: float) -> str:
    """Return "true", "local" or "false" for a reported convergence; costs up to `zero` are zero."""
    scipy = peer("scipy.optimize")
    cost, columns = _cost(fun, x), np.linalg.norm(jac(x), axis=0)
    if not cost > zero:
        return "true"
    rho = eps * np.linalg.norm(columns * x)
    falls = max(FALLS * cost, ROUNDED * (rho * np.sqrt(2 * cost) + rho**2))

    def continued_cost(start: np.ndarray) -> float:
        options = {"ftol": 1e-14, "xtol": 1e-14, "gtol": 0, "maxfev": 300, "full_output": True}
        return _cost(fun, scipy.leastsq(fun, start, Dfun=jac, **options)[0])

    rng = np.random.default_rng(0)
    offsets = BESIDE * rng.standard_normal((2, x.size)) * np.where(x == 0, 1, x)
    if continued_cost(x) < cost - falls:
        return "false"
    if not any(continued_cost(start) < cost - falls for start in x + offsets):
        return "true"
    return "local" if _is_minimum(fun, jac, x, columns) else "false"


def _is_minimum(fun: Any, jac: Any, x: np.ndarray, columns: np.ndarray) -> bool:
    """Whether all eigenvalues of the Hessian, scaled by the column norms, are clearly positive."""
    steps = np.diag(DIFFERENCE * np.where(x == 0, 1, np.abs(x)))

    def gradient(at: np.ndarray) -> np.ndarray:
        return np.asarray(fun(at)) @ np.asarray(jac(at)) / columns

    rows = [
        (gradient(x + h) - gradient(x - h)) / (2 * h.sum() * column)
        for h, column in zip(steps, columns, strict=True)
    ]
    eigenvalues = np.linalg.eigvalsh((np.stack(rows) + np.stack(rows).T) / 2)
    return bool(eigenvalues[0] > CLEARLY * eigenvalues[-1])
