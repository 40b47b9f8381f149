"""Least-squares solvers and problems of the contract tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import fnopt
from fnopt import Status
from fnopt.solvers import dogleg, gauss_newton


@dataclasses.dataclass(frozen=True)
class Solver:
    """A solver under test: its name in test ids, and a function that creates it."""

    name: str
    make: Callable[..., Any]

    def __repr__(self) -> str:
        return self.name


SOLVERS = [
    Solver("levenberg_marquardt", fnopt.levenberg_marquardt),
    Solver(
        "straight_reverse",
        lambda **kw: fnopt.levenberg_marquardt(geodesic=False, jacobian="reverse", **kw),
    ),
]


# Other methods and linear solvers. They share the code around the step, so they have fewer tests.
VARIANTS = [
    Solver("marquardt", lambda: fnopt.levenberg_marquardt(damping="marquardt")),
    Solver("nielsen", lambda: fnopt.levenberg_marquardt(damping="nielsen", lam=1e-6)),
    Solver("cholesky", lambda: fnopt.levenberg_marquardt(linear_solver="cholesky", radius=1e4)),
    Solver("cg", lambda: fnopt.levenberg_marquardt(linear_solver="cg", radius=1e4)),
    Solver("gauss_newton", gauss_newton),
    Solver("dogleg", lambda: dogleg(radius=1e4)),
]


@dataclasses.dataclass(frozen=True)
class Problem:
    """A problem and its expected result.

    Attributes:
        name: Name in test ids.
        residual_fn: Function that returns the residuals.
        start: Initial guess, as Python numbers and lists.
        statuses: Expected statuses.
        cost: Expected cost, or None if it depends on the iterates.
        rank: Expected rank, or None if it depends on the iterates.
        unchanged: Names of params that must not change bitwise.
    """

    name: str
    residual_fn: Callable[[Any], Any]
    start: dict[str, Any]
    statuses: frozenset[Status]
    cost: float | None = 0.0
    rank: int | None = None
    unchanged: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return self.name

    def params(self, dtype: Any) -> dict[str, Any]:
        """Return the initial guess in a dtype."""
        return {name: jnp.asarray(value, dtype) for name, value in self.start.items()}


CONVERGED = frozenset(s for s in Status if s.converged)


def rosenbrock(p: Any) -> Any:
    return {"valley": 10 * (p["y"] - p["x"] ** 2), "slope": 1 - p["x"]}


def _line(x: Any, slope: Any, level: Any) -> Any:
    t = jnp.arange(4, dtype=x.dtype)
    return slope * t + level - (2 * t + 1)


PROBLEMS = [
    Problem("rosenbrock", rosenbrock, {"x": -1.2, "y": 1.0}, CONVERGED, rank=2),
    Problem("zero_start", lambda p: 3 * p["x"] - 6, {"x": [0.0, 0.0]}, CONVERGED, rank=2),
    Problem("at_solution", lambda p: p["x"] - 2, {"x": [2.0]}, CONVERGED, unchanged=("x",)),
    Problem(
        "large_residual",
        lambda p: jnp.stack([p["x"] - 1, p["x"] + 1, jnp.exp(p["x"]) - 1]),
        {"x": 0.5},
        CONVERGED,
        cost=1.0,
    ),
    Problem(
        "rank_deficient",
        lambda p: _line(p["x"], p["s"], p["x"] + p["z"]),
        {"s": 0.0, "x": 0.0, "z": 3.0},
        CONVERGED,
        rank=2,
    ),
    Problem(
        "underdetermined",
        lambda p: jnp.stack([p["x"][0] * p["x"][1] - 1, p["x"][2] + p["x"][3] - 2]),
        {"x": [0.5, 1.0, 3.0, 0.5]},
        CONVERGED,
        rank=2,
    ),
    Problem(
        "ignores_a_parameter",
        lambda p: p["x"] ** 2 - 2,
        {"unused": [1.5, 0.0], "x": 1.0},
        CONVERGED,
        rank=1,
        unchanged=("unused",),
    ),
    Problem(
        "constant_residual",
        lambda p: jnp.full(3, 2.0, p["x"].dtype),
        {"x": 1.0},
        frozenset({Status.ILL_POSED}),
        cost=6.0,
        rank=0,
        unchanged=("x",),
    ),
    Problem(
        "nonfinite_start",
        lambda p: jnp.log(p["x"]),
        {"x": -1.0},
        frozenset({Status.NONFINITE_START}),
        cost=None,
        unchanged=("x",),
    ),
    Problem(
        "nonfinite_on_the_way",  # the first full step leaves the domain
        lambda p: jnp.log(p["x"]),
        {"x": 10.0},
        CONVERGED,
    ),
    Problem(
        "nonfinite_everywhere_else",
        lambda p: jnp.where(p["x"] < 1, jnp.nan, p["x"]) + 1,
        {"x": 1.0},
        frozenset({Status.NONFINITE_STEP}),
        cost=2.0,
        unchanged=("x",),
    ),
    Problem(
        "infinite_jacobian",  # r is finite at 0, its derivative is not
        lambda p: jnp.sqrt(p["x"]) + 1,
        {"x": 0.0},
        frozenset({Status.NONFINITE_START}),
        cost=0.5,
        unchanged=("x",),
    ),
]
