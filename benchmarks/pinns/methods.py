"""Compared methods: their steps, points and tuned hyper-parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

import fnopt
from benchmarks.pinns.problem import Problem

Points = tuple[jax.Array, ...]
MEMORY = 50  # steps stored by both L-BFGS methods; usual for losses with derivatives (PINNs)


@dataclasses.dataclass(frozen=True)
class Method:
    """A compared method.

    Attributes:
        name: Name on the command line.
        title: Title in tables and pictures.
        make: `make(rate, steps) -> optimizer`; rate and steps may be traced.
        step: `step(problem, optimizer, params, state, batch) -> params, state`.
        resampled: Whether every step has new points.
        rates: Learning rates of the trials; `(1.0,)` for a method without a learning rate.
        factors: Batch sizes of the trials, relative to the problem's batch size.
        scheduled: Whether the method needs the number of steps in advance.
        scipy: Whether SciPy runs the method.
    """

    name: str
    title: str
    make: Callable[[Any, Any], Any]
    step: Callable[[Problem, Any, Any, Any, Points], tuple[Any, Any]]
    resampled: bool = True
    rates: tuple[float, ...] = (1.0,)
    factors: tuple[float, ...] = (1.0,)
    scheduled: bool = False
    scipy: bool = False

    @property
    def trials(self) -> list[tuple[float, float]]:
        """Return all pairs of a learning rate and a relative batch size."""
        return [(rate, factor) for factor in self.factors for rate in self.rates]


def _by_gradient(
    problem: Problem, tx: Any, params: Any, state: Any, batch: Points
) -> tuple[Any, Any]:
    gradients = jax.grad(problem.loss)(params, batch)
    updates, state = tx.update(gradients, state, params)
    return fnopt.apply_updates(params, updates), state


def _by_residuals(
    problem: Problem, tx: Any, params: Any, state: Any, batch: Points
) -> tuple[Any, Any]:
    updates, state = tx.update(None, state, params, residual_fn=problem.residuals, batch=batch)
    return fnopt.apply_updates(params, updates), state


def _by_rows(problem: Problem, tx: Any, params: Any, state: Any, batch: Points) -> tuple[Any, Any]:
    """Take a step of a method that minimizes sums of squares instead of means."""

    def scaled(fn: Callable[..., jax.Array], points: jax.Array) -> Callable[..., jax.Array]:
        return lambda params, x: fn(params, x) / len(points) ** 0.5

    rows = [scaled(fn, points) for fn, points in zip(problem.residuals, batch, strict=True)]
    updates, state = tx.update(None, state, params, residual_fn=rows, batch=list(batch))
    return fnopt.apply_updates(params, updates), state


def _by_search(
    problem: Problem, tx: Any, params: Any, state: Any, batch: Points
) -> tuple[Any, Any]:
    def loss(params: Any) -> jax.Array:
        return problem.loss(params, batch)

    value, grad = fnopt.value_and_grad_from_state(loss)(params, state=state)
    updates, state = tx.update(grad, state, params, value=value, grad=grad, value_fn=loss)
    return fnopt.apply_updates(params, updates), state


def _no_step(*args: Any) -> tuple[Any, Any]:
    raise AssertionError("SciPy runs this method, so it has no step function")


def _cosine(rate: Any, steps: Any) -> Any:
    return fnopt.cosine_decay_schedule(rate, steps, 1e-3)


_ALL = (
    Method(
        "gauss_newton",
        "Gauss-Newton",
        lambda rate, steps: fnopt.gauss_newton_descent(),
        _by_residuals,
        resampled=False,
    ),
    Method(
        "gauss_newton_fresh",
        "Gauss-Newton, fresh points",
        lambda rate, steps: fnopt.gauss_newton_descent(),
        _by_residuals,
    ),
    Method(
        "spring",
        "SPRING, fresh points",
        lambda rate, steps: fnopt.gauss_newton_descent(momentum=0.9),
        _by_residuals,
    ),
    Method(
        "levenberg_marquardt",
        "Levenberg-Marquardt",
        lambda rate, steps: fnopt.levenberg_marquardt(),
        _by_rows,
        resampled=False,
    ),
    Method(
        "lbfgs",
        "L-BFGS",
        lambda rate, steps: fnopt.lbfgs(memory_size=MEMORY),
        _by_search,
        resampled=False,
    ),
    Method(
        "scipy_lbfgs",
        "SciPy's L-BFGS-B",
        lambda rate, steps: None,
        _no_step,
        resampled=False,
        scipy=True,
    ),
    Method(
        "adam",
        "Adam",
        lambda rate, steps: fnopt.adam(_cosine(rate, steps)),
        _by_gradient,
        rates=(3e-3, 1e-2, 3e-2, 1e-1),
        factors=(0.25, 1.0),
        scheduled=True,
    ),
    Method(
        "soap",
        "SOAP",
        lambda rate, steps: fnopt.soap(_cosine(rate, steps)),
        _by_gradient,
        rates=(3e-3, 1e-2, 3e-2),
        scheduled=True,
    ),
)
METHODS = {method.name: method for method in _ALL}
