"""False reports of convergence from random starts around the problems of NIST and of MGH.

Every param of NIST's 27 fits is wrong by up to a factor of two, and of ten; the problems of Moré,
Garbow and Hillstrom begin beside 1, 10 and 100 times their starts. A report is false where the cost
falls by more than a thousandth when MINPACK goes on in float64, from the end or from points beside
it (a saddle), and by more than rounding explains in the dtype of the fit. It is a local minimum
where MINPACK only leaves it from points beside it, and all eigenvalues of the Hessian in float64
are clearly positive. Known infima at infinity and other known minima are counted apart, as in
`mgh`. So are false reports whose certificate marks a parameter as undetermined: `flagged`.
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

FALLS = 1e-3  # of the cost
BESIDE = 1e-3  # of the params
ROUNDED = 10  # times the rounding of the cost
DIFFERENCE = 6e-6  # of a param
CLEARLY = 1e-8  # of the largest eigenvalue
A_FEW = ("rosenbrock", "beale")
SOLVERS: dict[str, Callable[[], Any]] = {
    "levenberg_marquardt": fnopt.levenberg_marquardt,
    "dogleg": dogleg,
    "gauss_newton": gauss_newton,
    "cholesky": functools.partial(fnopt.levenberg_marquardt, linear_solver="cholesky"),
    "cg": functools.partial(fnopt.levenberg_marquardt, linear_solver="cg"),
}


class Around(NamedTuple):
    """A problem, and starts around it."""

    residuals: Residuals
    data: Any  # a tree of float64 arrays
    starts: list[np.ndarray]
    known: tuple[float, ...]  # costs of known minima and infima


class End(NamedTuple):
    """The end of a fit."""

    problem: int
    params: np.ndarray
    converged: np.ndarray
    undetermined: np.ndarray  # whether the certificate marks a parameter
    evaluations: np.ndarray


Functions = Callable[[Any, Any], Any]
"""`f(params, k)`: of the k-th problem."""


def run(settings: Settings) -> Iterator[Metric]:
    """Every solver in both precisions."""
    groups = collections.defaultdict(list)
    for problem in _problems(settings.smoke):
        groups[len(problem.starts[0])].append(problem)
    for dtype in ("float32",) if settings.smoke else ("float32", "float64"):
        for name in settings.chosen(list(SOLVERS)[: 1 if settings.smoke else None]):
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
    """Counts the outcomes of all starts of problems with as many params each: one program."""
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
    found = collections.Counter(
        starts=len(ends), converged=len(converged), false=0, flagged=0, local=0, known=0
    )
    found["evaluations"] = sum(int(end.evaluations) for end in ends)
    with jax.enable_x64(True):
        residuals = jax.jit(_together(group, "float64"))
        slopes = jax.jit(jax.jacfwd(residuals))
        for k, params, _, undetermined, _ in converged:
            fun, jac = functools.partial(residuals, k=k), functools.partial(slopes, k=k)
            least = ROUNDED * float(np.finfo(dtype).eps) ** 2 * _cost(fun, group[k].starts[0])
            fate = _fate(fun, jac, params, float(np.finfo(dtype).eps), least)
            cost = _cost(fun, params)
            known = any(abs(cost - other) <= 1e-3 * other for other in group[k].known)
            if fate == "false" and undetermined:
                fate = "flagged"
            found["known" if known and fate != "true" else fate] += 1
    return found


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

    def padded(fn: Any, missing: int, p: Any) -> Any:
        return jnp.pad(fn(p), (0, missing))

    branches = [
        functools.partial(padded, fn, max(counts) - count)
        for fn, count in zip(plain, counts, strict=True)
    ]
    return lambda p, k: lax.switch(k, branches, p)


def _fate(fun: Any, jac: Any, x: np.ndarray, eps: float, least: float) -> str:
    """Whether a report is true, of a local minimum or false; a cost below `least` is zero."""
    scipy = peer("scipy.optimize")
    cost, columns = _cost(fun, x), np.linalg.norm(jac(x), axis=0)
    if not cost > least:
        return "true"
    rho = eps * np.linalg.norm(columns * x)
    falls = max(FALLS * cost, ROUNDED * (rho * np.sqrt(2 * cost) + rho**2))

    def on(start: np.ndarray) -> float:
        options = {"ftol": 1e-14, "xtol": 1e-14, "gtol": 0, "maxfev": 300, "full_output": True}
        return _cost(fun, scipy.leastsq(fun, start, Dfun=jac, **options)[0])

    rng = np.random.default_rng(0)
    aside = BESIDE * rng.standard_normal((2, x.size)) * np.where(x == 0, 1, x)
    if on(x) < cost - falls:
        return "false"
    if not any(on(start) < cost - falls for start in x + aside):
        return "true"
    return "local" if _is_minimum(fun, jac, x, columns) else "false"


def _is_minimum(fun: Any, jac: Any, x: np.ndarray, columns: np.ndarray) -> bool:
    """Whether all eigenvalues of the Hessian are clearly positive, in units of the columns."""
    steps = np.diag(DIFFERENCE * np.where(x == 0, 1, np.abs(x)))

    def gradient(at: np.ndarray) -> np.ndarray:
        return np.asarray(fun(at)) @ np.asarray(jac(at)) / columns

    rows = [
        (gradient(x + h) - gradient(x - h)) / (2 * h.sum() * column)
        for h, column in zip(steps, columns, strict=True)
    ]
    bends = np.linalg.eigvalsh((np.stack(rows) + np.stack(rows).T) / 2)
    return bool(bends[0] > CLEARLY * bends[-1])
