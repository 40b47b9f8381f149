"""Compared optimizers: their tuned hyper-parameters and their steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks.timing import peer
from benchmarks.training.task import Task

WARM_UP = 20  # the learning rate warms up over 1 / WARM_UP of the steps


@dataclasses.dataclass(frozen=True)
class Method:
    """A compared optimizer.

    Attributes:
        name: Name in tables and on the command line.
        make: `make(task, first, second) -> optimizer`; the two hyper-parameters may be traced.
        first: Name of the first hyper-parameter, its smallest value and the ratio of two values.
        second: Name of the second hyper-parameter, and its values.
        step: `step(task, optimizer, params, state, item) -> params, state`.
        best: `best(params, state)`, which returns the params to evaluate.
        period: Number of steps after which the cost of a step repeats, to count FLOPs.
        trips: `trips(state)`, the number of iterations of the step's while loops.
        tuning_seeds: Number of seeds of a trial, whose result is the mean.
        share: Fraction of the task's steps that the method runs, with a schedule of this length.
    """

    name: str
    make: Callable[[Task, Any, Any], Any]
    first: tuple[str, float, float]
    second: tuple[str, tuple[float, ...]]
    step: Callable[..., Any]
    best: Callable[[Any, Any], Any] = lambda params, state: params
    period: int = 1
    trips: Callable[[Any], Any] | None = None
    tuning_seeds: int = 1
    share: float = 1.0


def schedule(rate: Any, steps: int) -> Any:
    """Return a warm-up over a twentieth of the steps, then a cosine to a hundredth of the rate."""
    return fnopt.warmup_cosine_decay_schedule(0.0, rate, steps // WARM_UP, steps, 0.01 * rate)


def by_gradient(task: Task, tx: Any, params: Any, state: Any, item: Any) -> tuple[Any, Any]:
    """Take a step with the gradient of a batch."""
    gradients = jax.grad(task.loss)(params, task.take(item))
    updates, state = tx.update(gradients, state, params)
    return fnopt.apply_updates(params, updates), state


def _by_batch(task: Task, tx: Any, params: Any, state: Any, item: Any) -> tuple[Any, Any]:
    updates, state = tx.update(None, state, params, batch=task.take(item))
    return fnopt.apply_updates(params, updates), state


def _by_residuals(task: Task, tx: Any, params: Any, state: Any, item: Any) -> tuple[Any, Any]:
    assert task.residuals is not None
    functions, rows = task.residuals
    batch = rows(task.take(item))
    updates, state = tx.update(None, state, params, residual_fn=functions, batch=batch)
    return fnopt.apply_updates(params, updates), state


def _by_search(task: Task, tx: Any, params: Any, state: Any, item: Any) -> tuple[Any, Any]:
    del item

    def loss(params: Any) -> jax.Array:
        return task.loss(params, task.full)

    value, grad = fnopt.value_and_grad_from_state(loss)(params, state=state)
    updates, state = tx.update(grad, state, params, value=value, grad=grad, value_fn=loss)
    return fnopt.apply_updates(params, updates), state


def _axes(path: str, leaf: Any, *, hidden_only: bool) -> Any:
    """Return the matrix axes of a leaf; with `hidden_only`, embeddings and heads have none."""
    if leaf.ndim == 4:
        return fnopt.MatrixDimensionNumbers((0, 1, 2), 3)
    return leaf.ndim == 2 and not (hidden_only and path.startswith(("embed", "head")))


HIDDEN = fnopt.by_path(lambda path, leaf: _axes(path, leaf, hidden_only=True))
MATRICES = fnopt.by_path(lambda path, leaf: _axes(path, leaf, hidden_only=False))


def _sgd(task: Task, rate: Any, momentum: Any) -> Any:
    return fnopt.sgd(schedule(rate, task.steps), momentum=momentum, nesterov=True)


def _adamw(task: Task, rate: Any, b2: Any) -> Any:
    return fnopt.adamw(schedule(rate, task.steps), b2=b2)


def _schedule_free(task: Task, rate: Any, b1: Any) -> Any:
    return fnopt.schedule_free_adamw(rate, task.steps // WARM_UP, b1=b1, weight_decay=1e-4)


def _lion(task: Task, rate: Any, b2: Any) -> Any:
    return fnopt.lion(schedule(rate, task.steps), b2=b2)


def _muon(task: Task, rate: Any, ratio: Any) -> Any:
    return fnopt.muon(
        schedule(rate, task.steps),
        weight_dimension_numbers=HIDDEN,
        others=fnopt.nadamw(schedule(ratio * rate, task.steps), weight_decay=0.0),
    )


def _soap(task: Task, rate: Any, b2: Any) -> Any:
    return fnopt.soap(
        schedule(rate, task.steps), b2=b2, weight_decay=1e-4, weight_dimension_numbers=MATRICES
    )


def _shampoo(task: Task, rate: Any, b2: Any) -> Any:
    return fnopt.shampoo(
        schedule(rate, task.steps), b2=b2, weight_decay=1e-4, weight_dimension_numbers=MATRICES
    )


def _optax_adamw(task: Task, rate: Any, b2: Any) -> Any:
    return peer("optax").adamw(schedule(rate, task.steps), b2=b2)


def optax_axes(params: Any) -> Any:
    """Convert `HIDDEN` to optax's dimension numbers."""
    numbers = peer("optax.contrib").MuonDimensionNumbers

    def one(path: Any, leaf: Any) -> Any:
        axes = _axes(jax.tree_util.keystr(path, simple=True, separator="/"), leaf, hidden_only=True)
        return None if not axes else numbers() if axes is True else numbers((0, 1, 2), 3)

    return jax.tree_util.tree_map_with_path(one, params)


def _optax_muon(task: Task, rate: Any, ratio: Any) -> Any:
    return peer("optax.contrib").muon(
        schedule(rate, task.steps),
        adam_learning_rate=schedule(ratio * rate, task.steps),
        muon_weight_dimension_numbers=optax_axes,
    )


def _kfac(**options: int) -> Callable[[Task, Any, Any], Any]:
    def make(task: Task, damping: Any, decay: Any) -> Any:
        shapes = jax.eval_shape(lambda: task.train)
        return fnopt.kfac(
            task.model, task.criterion, shapes, damping=damping, decay=decay, **options
        )

    return make


def _gauss_newton(task: Task, damping: Any, momentum: Any) -> Any:
    del task
    return fnopt.gauss_newton_descent(damping=damping, momentum=momentum)


def _natural_gradient(task: Task, damping: Any, momentum: Any) -> Any:
    return fnopt.natural_gradient(task.model, task.criterion, damping=damping, momentum=momentum)


def _halvings(state: Any) -> Any:
    return jnp.maximum(-jnp.log2(jnp.maximum(state.length, 2.0**-10)), 0)


def _lbfgs(task: Task, rate: Any, unused: Any) -> Any:
    del task, unused
    return fnopt.lbfgs(rate)


_LION = ("b2", (0.95, 0.99))
_KRONECKER = ("decay", (0.95,))  # only the default, because a sweep of K-FAC is expensive
_ADAM_SHARE = ("Adam's rate / Muon's", (0.2, 1.0))

_ALL = (
    Method("sgd", _sgd, ("rate", 0.02, 2), ("momentum", (0.9, 0.97)), by_gradient),
    Method("adamw", _adamw, ("rate", 2e-3, 2), ("b2", (0.97, 0.999)), by_gradient, tuning_seeds=3),
    Method("adamw_fifth", _adamw, ("rate", 2e-3, 2), ("b2", (0.97, 0.999)), by_gradient, share=0.2),
    Method(
        "schedule_free_adamw",
        _schedule_free,
        ("rate", 2e-3, 2),
        ("b1", (0.9, 0.97)),
        by_gradient,
        best=lambda params, state: fnopt.schedule_free_eval_params(state, params),
    ),
    Method("lion", _lion, ("rate", 4e-4, 2), _LION, by_gradient),
    Method("muon", _muon, ("rate", 5e-3, 2), _ADAM_SHARE, by_gradient),
    Method("soap", _soap, ("rate", 2e-3, 2), ("b2", (0.95, 0.99)), by_gradient, period=10),
    Method("shampoo", _shampoo, ("rate", 2e-3, 2), ("b2", (0.95, 0.99)), by_gradient, period=10),
    Method(
        "kfac",
        _kfac(),
        ("first damping", 1e-3, 10),
        _KRONECKER,
        _by_batch,
        period=5,
    ),
    Method(
        "kfac_rare",
        _kfac(statistics_every=3, inverse_every=15),
        ("first damping", 1e-3, 10),
        _KRONECKER,
        _by_batch,
        period=15,
    ),
    Method(
        "gauss_newton",
        _gauss_newton,
        ("first damping", 1e-6, 10),
        ("momentum", (0.0, 0.9)),
        _by_residuals,
        trips=_halvings,
    ),
    Method(
        "natural_gradient",
        _natural_gradient,
        ("first damping", 1e-4, 10),
        ("momentum", (0.0,)),
        _by_batch,
        trips=_halvings,
    ),
    Method(
        "lbfgs",
        _lbfgs,
        ("first length", 0.25, 2),
        ("nothing", (0.0,)),
        _by_search,
        trips=lambda state: state[-1].info.num_linesearch_steps,
    ),
    Method("optax.adamw", _optax_adamw, ("rate", 2e-3, 2), ("b2", (0.97, 0.999)), by_gradient),
    Method("optax.muon", _optax_muon, ("rate", 5e-3, 2), _ADAM_SHARE, by_gradient),
)
METHODS = {method.name: method for method in _ALL}


def methods_of(task: Task, names: list[str] | None) -> list[Method]:
    """Return the methods of a task, restricted to `names`."""
    return [m for k, m in METHODS.items() if k not in task.skip and (not names or k in names)]
