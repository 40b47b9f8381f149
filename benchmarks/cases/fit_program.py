"""Count the operations of a small fit's program, and its copies of the user's function.

The counts are the same on every machine: StableHLO operations after lowering, and copies of the
model after XLA has inlined all functions. The model is a decay with one exponential, which a copy
with derivatives computes once. The number of exponentials is therefore the number of copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.programs import jaxprs
from fnopt.solvers import dogleg, gauss_newton

POINTS = 40
# An operation in the text, with one or several results: `%3 = stablehlo.add`, or a call.
OPERATION = re.compile(r'^\s*%\S+ = "?(?:stablehlo|chlo|func|call)\b', re.M)
FITS: dict[str, Callable[..., Any]] = {
    "levenberg_marquardt": fnopt.least_squares,
    "geodesic=False": lambda *args, **options: fnopt.least_squares(
        *args, solver=fnopt.levenberg_marquardt(geodesic=False), **options
    ),
    "dogleg": lambda *args, **options: fnopt.least_squares(*args, solver=dogleg(), **options),
    "gauss_newton": lambda *args, **options: fnopt.least_squares(
        *args, solver=gauss_newton(), **options
    ),
    "bounds": lambda *args, **options: fnopt.least_squares(*args, bounds=(0.0, 10.0), **options),
}


def minimized(method: str) -> Callable[..., Any]:
    """Return a function that fits by `minimize` of the sum of squares."""

    def fit(residuals: Any, params: Any, args: Any) -> Any:
        return fnopt.minimize(lambda p, *a: jnp.sum(residuals(p, *a) ** 2), params, args, method)

    return fit


FITS |= {f"minimize, {name}": minimized(name) for name in ("bfgs", "lbfgsb", "newton_cg")}


def residuals(params: Any, data: Any) -> Any:
    """Return the residuals of a decay with three params."""
    x, y = data
    return params[0] * jnp.exp(-params[1] * x) + params[2] - y


def run(settings: Settings) -> Iterator[Metric]:
    """Count for each method of `FITS`."""
    x = jnp.linspace(0.1, 10.0, POINTS)
    data, start = (x, 3 * jnp.exp(-0.5 * x) + 0.3), jnp.asarray([1.0, 1.0, 0.0])
    for name in list(FITS)[: 1 if settings.smoke else None]:

        def fit(params: Any, data: Any, name: str = name) -> Any:
            return FITS[name](residuals, params, args=(data,)).params

        jax.clear_caches()
        traced = jax.jit(fit).trace(start, data)
        operations = len(OPERATION.findall(traced.lower().as_text()))
        equations = jaxprs.equations(traced.jaxpr.jaxpr)
        copies = sum(eqn.primitive.name == "exp" for eqn in equations)
        yield Metric(f"{name}: operations", operations, "StableHLO operations", tolerance=0.02)
        yield Metric(f"{name}: model", copies, "copies in the program", tolerance=0.0)
