"""Search space and methods of the validation table; all tasks have the same search space.

A point of the unit square determines a learning rate and a momentum. The learning rate is
log-uniform over two decades, whose lower end depends on the method but not on the task.
`1 - momentum` is log-uniform from 0.02 to 0.2 for every method. All other options are fixed.
"""

from __future__ import annotations

from typing import Any

from scipy.stats import qmc

import fnopt
from benchmarks.timing import peer
from benchmarks.training.methods import HIDDEN, MATRICES, Method, by_gradient, optax_axes, schedule
from benchmarks.training.task import Task

DECADES = 2.0
# Range of 1 - momentum: the search space of AlgoPerf (arXiv:2306.07179), cut at 0.2.
MOMENTUM = (0.02, 0.2)
BASELINES = ("adamw", "nadamw", "sgd")
ADAM, MUON, SGD = 1e-3, 2e-3, 5e-3  # lowest rates, below the best rates in `training.json`


def points(count: int) -> list[tuple[float, float]]:
    """Return the first points of a scrambled Halton sequence, the same for all methods."""
    sequence = qmc.Halton(2, seed=0)  # pyright: ignore[reportCallIssue]
    return [(float(a), float(b)) for a, b in sequence.random(count)]


def numbers(method: Method, point: tuple[float, float]) -> tuple[float, float]:
    """Return the learning rate and the momentum of a point."""
    low, high = MOMENTUM
    rate = method.first[1] * 10 ** (DECADES * point[0])
    return rate, 1 - low * (high / low) ** point[1]


def _adam(task: Task, rate: Any) -> Any:
    """Return the optimizer of leaves that aren't matrices, with a fifth of the learning rate."""
    return fnopt.nadamw(schedule(rate / 5, task.steps), weight_decay=0.0)


def _sgd(task: Task, rate: Any, b1: Any) -> Any:
    return fnopt.sgd(schedule(rate, task.steps), momentum=b1, nesterov=True)


def _adamw(task: Task, rate: Any, b1: Any) -> Any:
    return fnopt.adamw(schedule(rate, task.steps), b1=b1)


def _nadamw(task: Task, rate: Any, b1: Any) -> Any:
    return fnopt.nadamw(schedule(rate, task.steps), b1=b1)


def _muon(task: Task, rate: Any, b1: Any) -> Any:
    return fnopt.muon(
        schedule(rate, task.steps),
        b1,
        weight_dimension_numbers=HIDDEN,
        others=_adam(task, rate),
    )


def _normuon(task: Task, rate: Any, b1: Any) -> Any:
    return fnopt.normuon(
        schedule(rate, task.steps),
        b1,
        consistent_rms=None,
        weight_dimension_numbers=HIDDEN,
        others=_adam(task, rate),
    )


def _muon_h(task: Task, rate: Any, b1: Any) -> Any:
    parts = [fnopt.ema(b1, nesterov=True), fnopt.orthogonalize()]
    matrices = fnopt.chain(*parts, fnopt.hyperball(schedule(rate, task.steps)))
    return fnopt.partition_matrices(matrices, _adam(task, rate), HIDDEN)


def _optax_muon(task: Task, rate: Any, b1: Any) -> Any:
    return peer("optax.contrib").muon(
        schedule(rate, task.steps),
        beta=b1,
        adam_learning_rate=schedule(rate / 5, task.steps),
        muon_weight_dimension_numbers=optax_axes,
    )


def _kronecker(make: Any) -> Any:
    """Return a method with Kronecker factors, which treats embeddings and heads as matrices."""

    def create(task: Task, rate: Any, b1: Any) -> Any:
        rates = schedule(rate, task.steps)
        return make(rates, b1, weight_decay=1e-4, weight_dimension_numbers=MATRICES)

    return create


def _method(name: str, make: Any, lowest: float, period: int = 1) -> Method:
    factor = 10**DECADES
    return Method(
        name,
        make,
        ("rate", lowest, factor),
        ("1 - momentum", MOMENTUM),
        by_gradient,
        period=period,
    )


METHODS = {
    method.name: method
    for method in (
        _method("adamw", _adamw, ADAM),
        _method("nadamw", _nadamw, ADAM),
        _method("sgd", _sgd, SGD),
        _method("muon", _muon, MUON),
        _method("normuon", _normuon, MUON),
        _method("muon_h", _muon_h, MUON),
        _method("soap", _kronecker(fnopt.soap), ADAM, 10),
        _method("shampoo", _kronecker(fnopt.shampoo), ADAM, 10),
        _method("kl_shampoo", _kronecker(fnopt.kl_shampoo), ADAM, 10),
        _method("psgd_kron", _kronecker(fnopt.psgd_kron), ADAM),
        _method("optax.muon", _optax_muon, MUON),
    )
}
