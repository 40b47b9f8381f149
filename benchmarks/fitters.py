"""Least-squares solvers of fnopt and other libraries as functions with one interface.

fnopt and SciPy report the number of residual evaluations, `nfev`. optimistix evaluates the
residuals once per step, and jaxopt once per step and once before the first step.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.metric import Skipped
from benchmarks.timing import Settings, peer
from fnopt.solvers import dogleg, gauss_newton

# Maximum numbers of steps at tight tolerances; fnopt's solvers use the default of 1,000. jaxopt's
# absolute tolerance of the gradient is rarely met here, so jaxopt usually takes all steps.
MAX_STEPS = 5000
JAXOPT_STEPS = 1000
TIGHT = 1e-10


class Fit(NamedTuple):
    """Result of a fit."""

    params: np.ndarray
    evaluations: int  # of the residuals
    converged: bool  # whether the solver reports convergence
    seconds: int = 0  # number of second derivatives r'' along a step; fnopt only
    flagged: bool = False  # whether the certificate marks an undetermined parameter; fnopt only


Fits = Callable[[Any, Any], Fit]
"""`fit(start, data)`, which compiles in the first call."""

Residuals = Callable[[Any, Any], Any]
"""`residuals(params, data)`."""


@dataclasses.dataclass(frozen=True)
class Fitter:
    """A solver, possibly with several settings that share one compilation.

    Args:
        name: Name of the solver.
        make: `make(residuals)` returns the fits keyed by their names.
        float32: Whether the benchmarks also run the solver in float32.
    """

    name: str
    make: Callable[[Residuals], dict[str, Fits]]
    float32: bool = False


OURS = {
    "fnopt": fnopt.levenberg_marquardt,
    "fnopt geodesic=False": lambda: fnopt.levenberg_marquardt(geodesic=False),
    "fnopt cholesky": lambda: fnopt.levenberg_marquardt(linear_solver="cholesky"),
    "fnopt cg": lambda: fnopt.levenberg_marquardt(linear_solver="cg"),
    "fnopt marquardt": lambda: fnopt.levenberg_marquardt(damping="marquardt"),
    "fnopt nielsen": lambda: fnopt.levenberg_marquardt(damping="nielsen"),
    "fnopt dogleg": dogleg,
    "fnopt gauss_newton": gauss_newton,
}
A_FEW = ("fnopt", "optimistix LM", "SciPy lm", "jaxopt LM, QR, tight")
IN_FLOAT32 = (
    "fnopt",
    "fnopt geodesic=False",
    "fnopt cholesky",
    "fnopt dogleg",
    "fnopt gauss_newton",
)


def fitters(settings: Settings) -> list[Fitter]:
    """Return the selected solvers that are installed; a smoke run has one solver per library."""
    installed = [
        Fitter(name, lambda r, n=name: {n: _by_fnopt(r, OURS[n]())}, float32=name in IN_FLOAT32)
        for name in OURS
    ]
    for package, fits in _PEERS.items():
        try:
            peer(package)
        except Skipped as reason:
            print(f"  without {package}: {reason}")
        else:
            installed += fits
    candidates = [f for f in installed if f.name in A_FEW] if settings.smoke else installed
    names = settings.select(f.name for f in candidates)
    return [f for f in candidates if f.name in names]


def _by_fnopt(residuals: Residuals, solver: Any) -> Fits:
    @jax.jit
    def solve(start: Any, data: Any) -> Any:
        end = fnopt.least_squares(residuals, start, args=(data,), solver=solver)
        flagged = jnp.any(end.certificate.undetermined)
        return end.params, end.nfev, end.converged, end.nhev, flagged

    return lambda start, data: _fit(*solve(start, data))


def _fit(
    params: Any, evaluations: Any, converged: Any, seconds: Any = 0, flagged: Any = False
) -> Fit:
    end = np.asarray(params, np.float64)
    return Fit(end, int(evaluations), bool(converged), int(seconds), bool(flagged))


def _by_optimistix(residuals: Residuals, method: str, name: str, *tolerances: float) -> Any:
    """Return fits by optimistix; the tolerance is an argument, so all fits share one program."""
    optimistix = peer("optimistix")

    @jax.jit
    def solve(start: Any, data: Any, tolerance: Any) -> Any:
        solver = getattr(optimistix, method)(rtol=tolerance, atol=tolerance)
        end = optimistix.least_squares(
            residuals, solver, start, data, max_steps=MAX_STEPS, throw=False
        )
        return end.value, end.stats["num_steps"], end.result == optimistix.RESULTS.successful

    def fit(tolerance: float) -> Fits:
        return lambda start, data: _fit(*solve(start, data, jnp.asarray(tolerance, start.dtype)))

    return {f"{name}, {tolerance:.0e}": fit(tolerance) for tolerance in tolerances}


def _by_jaxopt(residuals: Residuals, name: str, **options: Any) -> Any:
    jaxopt = peer("jaxopt")

    @jax.jit
    def solve(start: Any, data: Any) -> Any:
        tight = {"tol": TIGHT, "maxiter": JAXOPT_STEPS, "materialize_jac": True} if options else {}
        solver = jaxopt.LevenbergMarquardt(residuals, **tight, **options)
        params, state = solver.run(start, data)
        return params, state.iter_num + 1, state.error <= solver.tol

    return {name: lambda start, data: _fit(*solve(start, data))}


def _by_scipy(residuals: Residuals, method: str) -> dict[str, Fits]:
    """Return fits by SciPy, with residuals and Jacobian compiled by JAX."""
    optimize = peer("scipy.optimize")
    fun = jax.jit(residuals)
    jac = jax.jit(jax.jacfwd(residuals))
    tight = {
        "ftol": 1e-15,
        "xtol": 1e-15,
        "gtol": 1e-15,
        "x_scale": "jac",
        "max_nfev": MAX_STEPS,
    }

    def fit(options: dict[str, Any]) -> Fits:
        def run(start: Any, data: Any) -> Fit:
            try:
                with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
                    end = optimize.least_squares(
                        lambda p: np.asarray(fun(p, data)),
                        np.asarray(start),
                        lambda p: np.asarray(jac(p, data)),
                        method=method,
                        **options,
                    )
            except (ValueError, np.linalg.LinAlgError):  # residuals or Jacobian aren't finite
                return Fit(np.full(start.shape, np.nan), 1, False)
            return _fit(end.x, end.nfev, end.success)

        return run

    return {f"SciPy {method}, tight": fit(tight), f"SciPy {method}, defaults": fit({})}


def _optimistix(method: str, name: str, *tolerances: float, float32: bool = False) -> Fitter:
    return Fitter(name, lambda r: _by_optimistix(r, method, name, *tolerances), float32)


def _jaxopt(name: str, float32: bool = False, **options: Any) -> Fitter:
    return Fitter(name, lambda r: _by_jaxopt(r, name, **options), float32)


_PEERS = {
    "optimistix": [
        _optimistix("LevenbergMarquardt", "optimistix LM", TIGHT, 1e-8, float32=True),
        _optimistix("Dogleg", "optimistix Dogleg", TIGHT),
        _optimistix("GaussNewton", "optimistix GaussNewton", TIGHT),
    ],
    "scipy.optimize": [
        Fitter("SciPy lm", lambda r: _by_scipy(r, "lm")),
        Fitter("SciPy trf", lambda r: _by_scipy(r, "trf")),
    ],
    "jaxopt": [
        _jaxopt("jaxopt LM, QR, tight", float32=True, solver="qr"),
        _jaxopt("jaxopt LM, Cholesky, tight", float32=True, solver="cholesky"),
        _jaxopt("jaxopt LM, defaults"),
    ],
}
