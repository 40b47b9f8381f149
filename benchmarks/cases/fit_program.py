"""The size of the program of a small fit: its operations, and its copies of the user's function.

Both are counted, so they are the same on every machine: StableHLO operations as JAX lowers them,
and how often the program evaluates the model once XLA has inlined all functions. The model is a
decay with one exponential, which a value, a first and a second derivative need once each.
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
# An operation of the text: `%3 = stablehlo.add`, also of several results, or a call.
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
    """The same fit by `minimize`, of the sum of squares."""

    def fit(residuals: Any, params: Any, args: Any) -> Any:
        return fnopt.minimize(lambda p, *a: jnp.sum(residuals(p, *a) ** 2), params, args, method)

    return fit


FITS |= {f"minimize, {name}": minimized(name) for name in ("bfgs", "lbfgsb", "newton_cg")}


def residuals(params: Any, data: Any) -> Any:
    """A decay of three params."""
    x, y = data
    return params[0] * jnp.exp(-params[1] * x) + params[2] - y


def run(settings: Settings) -> Iterator[Metric]:
    """The default, its straight steps, the other methods, and a fit with bounds."""
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
