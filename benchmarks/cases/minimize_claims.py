"""Claims of convergence of `minimize` in ordinary and in other units: right, false, refused.

A run is at a minimum if SciPy, from where it ended and in float64, gains no more than a thousandth
of the value there (a hundredth in float32). SciPy's tries are the slow part; a value that was found
to be one of a minimum is remembered for the other methods and units.
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
from benchmarks.problems.claims import FUNCTIONS, SIZE
from benchmarks.problems.smooth import Smooth
from benchmarks.timing import Settings

METHODS = ("bfgs", "lbfgsb", "cg", "newton_cg", "projected_gradient")
# The unit of params in powers of ten, up and down in turns, and that of the value.
UNITS = {
    "as they are": (0, 1.0),
    "values of 1e-24": (0, 1e-24),
    "values of 1e20": (0, 1e20),
    "params of 1e12 and 1e-12": (12, 1.0),
}
NEAR = {"float64": (1e-3, 1e-6), "float32": (1e-2, 1e-4)}  # of the value, and of what was gained
TRIES: tuple[tuple[str, dict[str, float]], ...] = (
    ("L-BFGS-B", {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 150}),
    ("BFGS", {"gtol": 1e-10, "maxiter": 150}),
)


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
        start, value = self._at(which, self._functions[which].start)[0], self._at(which, x)[0]

        def near(least: float) -> bool:
            room = relative * abs(least) + absolute * min(1, max(start - least, 0))
            return -1e-9 * abs(least) - 1e-12 <= value - least <= room

        if not np.isfinite(value) or any(map(near, self._known[which])):
            return bool(np.isfinite(value))
        least = value
        for method, options in TRIES:
            end = scipy_minimize(
                lambda x: self._at(which, x), x, jac=True, method=method, options=options
            )
            least = min(least, end.fun) if np.isfinite(end.fun) else least
        if near(least):
            self._known[which].append(least)
        return near(least)

    def _at(self, which: int, x: Any) -> tuple[float, np.ndarray]:
        n = self._functions[which].n
        value, g = self._slope(jnp.asarray(_padded(x)), jnp.int32(which))
        known = bool(np.isfinite(value))
        return (float(value), np.asarray(g)[:n]) if known else (1e300, np.zeros(n))


class Count(NamedTuple):
    """How many runs ended in which way, and their evaluations."""

    right: int = 0
    false: int = 0
    refused: int = 0  # at a minimum, not claimed
    lost: int = 0
    nfev: int = 0


def run(settings: Settings) -> Iterator[Metric]:
    """All methods, units and dtypes."""
    functions = FUNCTIONS[:2] if settings.smoke else FUNCTIONS
    with jax.enable_x64(True):
        judge = Judge(functions)
        for method in METHODS[:1] if settings.smoke else METHODS:
            for dtype in ("float64",) if settings.smoke else ("float64", "float32"):
                yield from _of_method(functions, judge, method, dtype)


def _of_method(functions: list[Smooth], judge: Judge, method: str, dtype: str) -> Iterator[Metric]:
    @jax.jit
    def ended(x: Any, which: Any, scale: Any, factor: Any) -> Any:
        def fun(x: Any) -> Any:
            return judge.family(x / scale, which) * factor

        return fnopt.minimize(fun, x, method=method)

    for name, (power, factor) in UNITS.items():
        count = Count()
        scale = jnp.asarray(10.0 ** (power * np.where(np.arange(SIZE) % 2, -1, 1)), dtype)
        for which, problem in enumerate(functions):
            if power and problem.n == 1:
                continue
            start = jnp.asarray(_padded(problem.start), dtype) * scale
            end = ended(start, jnp.int32(which), scale, jnp.asarray(factor, dtype))
            x = (np.asarray(end.params, float) / np.asarray(scale, float))[: problem.n]
            kind = (bool(end.converged), judge.is_least(which, x, dtype))
            count = _counted(count, kind, int(end.nfev))
        yield Metric(
            f"{method}, {dtype}, {name}: false claims",
            count.false,
            f"of {len(functions)}",
            tolerance=0.5,
            detail={key: float(value) for key, value in count._asdict().items()},
        )


def _counted(count: Count, kind: tuple[bool, bool], nfev: int) -> Count:
    names = {(True, True): "right", (True, False): "false", (False, True): "refused"}
    name = names.get(kind, "lost")
    return count._replace(**{name: getattr(count, name) + 1}, nfev=count.nfev + nfev)


def _padded(values: Any) -> np.ndarray:
    """A vector of the common size."""
    values = np.asarray(values, float)
    return np.concatenate([values, np.zeros(SIZE - values.size)])
