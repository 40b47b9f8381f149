"""Compiled program of a method on a task, which takes hyper-parameters and batches as arguments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.training.methods import Method
from benchmarks.training.task import Task

TUNING_SEED = 1000  # differs from the seeds of the compared runs


class Reading(NamedTuple):
    """Losses after a number of steps, and the CPU seconds without evaluations of the losses."""

    step: int
    train: float
    test: float
    seconds: float
    trips: float


def drawn(task: Task, seed: int) -> tuple[Any, Any]:
    """Return the initial params and the items of all batches, equal for all methods."""
    start = jax.jit(task.init)(jax.random.key(seed))
    items = task.draw(np.random.default_rng(seed), task.steps)
    return start, jax.tree.map(jnp.asarray, items)


def reader(task: Task) -> Any:
    """Return `read(params) -> training loss, test loss`, compiled once for all methods."""
    return jax.jit(lambda params: (task.loss(params, task.train), task.test(params)))


class Programs:
    """Program of a method on a task, which compiles once; hyper-parameters are arguments."""

    def __init__(self, task: Task, method: Method, read: Any) -> None:
        self.task = task._replace(steps=round(task.steps * method.share))
        self.method, self.read = method, read
        self.compile_seconds: float | None = None
        self._chunk: Any = None
        self._start = jax.jit(self._init)

    def _scan(self, params: Any, state: Any, first: Any, second: Any, items: Any) -> Any:
        tx = self.method.make(self.task, first, second)

        def step(carry: Any, item: Any) -> tuple[Any, None]:
            return self.method.step(self.task, tx, *carry, item), None

        return jax.lax.scan(step, (params, state), items)[0]

    def _init(self, params: Any, first: Any, second: Any) -> Any:
        return self.method.make(self.task, first, second).init(params)

    def final_losses(self, firsts: Sequence[float], seconds: Sequence[float]) -> list[float]:
        """Return the final training losses of runs with these pairs of hyper-parameters."""
        pairs = zip(firsts, seconds, strict=True)
        return [self._mean_final_loss(a, b) for a, b in pairs]

    def _mean_final_loss(self, first: float, second: float) -> float:
        seeds = range(TUNING_SEED, TUNING_SEED + self.method.tuning_seeds)
        ends = [next(self.run(first, second, seed, last=True)).train for seed in seeds]
        return float(np.mean(ends))

    def run(
        self, first: float, second: float, seed: int, *, last: bool = False
    ) -> Iterator[Reading]:
        """Train once; yield a reading every `task.every` steps, or only at the end if `last`."""
        task = self.task
        params, items = drawn(task, seed)
        numbers = _array(first), _array(second)
        state = self._start(params, *numbers)
        spent = 0.0
        for begin in range(0, task.steps, task.every):
            chunk = jax.tree.map(lambda a, b=begin: a[b : b + task.every], items)
            if self._chunk is None:
                self._compile(params, state, *numbers, chunk)
            clock = time.process_time()
            params, state = jax.block_until_ready(self._chunk(params, state, *numbers, chunk))
            spent += time.process_time() - clock
            if not last or begin + task.every >= task.steps:
                yield self._read(begin + task.every, params, state, spent)

    def _compile(self, *args: Any) -> None:
        clock = time.process_time()
        self._chunk = jax.jit(self._scan).lower(*args).compile()
        self.compile_seconds = time.process_time() - clock

    def _read(self, step: int, params: Any, state: Any, spent: float) -> Reading:
        train, test = self.read(self.method.best(params, state))
        trips = 0.0 if self.method.trips is None else float(self.method.trips(state))
        return Reading(step, float(train), float(test), spent, trips)


def _array(numbers: Any) -> jax.Array:
    return jnp.asarray(numbers, jnp.result_type(float))
