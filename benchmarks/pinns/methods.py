"""The methods: how a step is made, on which points, and what is tuned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

import fnopt
from benchmarks.pinns.problem import Problem

Points = tuple[jax.Array, ...]
MEMORY = 50  # of both L-BFGS: what their users ask for where derivatives are in the loss


@dataclasses.dataclass(frozen=True)
class Method:
    """A method as the benchmark needs it.

    Attributes:
        name: On the command line.
        title: In tables and pictures.
        make: `make(rate, steps) -> optimizer`, of numbers that may be traced.
        step: `step(problem, optimizer, params, state, batch) -> params, state`.
        resampled: Whether every step has new points.
        rates: What is tried; none of a method without a rate.
        factors: Sizes of the batch that are tried, in units of the problem's.
        scheduled: Whether the number of steps has to be known before the first one.
        scipy: Whether it is SciPy that runs it.
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
        """Pairs of a rate and a size of the batch."""
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
    """The same for a method that doesn't take the means itself."""

    def of(fn: Callable[..., jax.Array], points: jax.Array) -> Callable[..., jax.Array]:
        return lambda params, x: fn(params, x) / len(points) ** 0.5

    rows = [of(fn, points) for fn, points in zip(problem.residuals, batch, strict=True)]
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
    raise AssertionError("SciPy makes its steps itself")


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
