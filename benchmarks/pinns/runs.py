"""Run a method on a problem for a budget of CPU seconds, and record errors during the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from benchmarks.pinns.methods import MEMORY, Method
from benchmarks.pinns.problem import Problem
from benchmarks.timing import peer

READINGS = 14  # number of readings, at times that grow by a factor of sqrt(2)
_TRIED = 4  # steps of a first rough measurement of the time per step
_SHARE = 0.03  # fraction of the budget for the second measurement of the time per step


class Reading(NamedTuple):
    """Error after a number of steps, and the CPU seconds of these steps."""

    step: int
    seconds: float
    error: float


class Programs:
    """Programs of a method on a problem, which compile at their first use.

    Args:
        problem: The problem.
        method: The method.
        error: `error(params)`, which is compiled once for all methods.
    """

    def __init__(self, problem: Problem, method: Method, error: Callable[[Any], Any]) -> None:
        self.problem, self.method, self.error = problem, method, error
        self.compile_seconds = 0.0
        self._compiled: dict[float, Any] = {}

    def run(self, rate: float, factor: float, seed: int, budget: float) -> Iterator[Reading]:
        """Train once from the initial parameters of a seed."""
        if self.method.scipy:
            return _scipy_run(self.problem, factor, seed, budget, self.error)
        return self._run(rate, factor, seed, budget)

    def _run(self, rate: float, factor: float, seed: int, budget: float) -> Iterator[Reading]:
        start, points, state = self._init(rate, seed)
        run_steps = self._compile(factor, start, state, points)
        each = self._seconds_of_a_step(run_steps, start, state, points, budget)
        # A schedule needs the total number of steps before the first step.
        last = max(round(budget / each), 1) if self.method.scheduled else None
        numbers = _array(rate), _array(last or 1)
        params, step, spent = start, 0, 0.0
        for share in 2.0 ** (-np.arange(READINGS)[::-1] / 2):
            end = round(share * last) if last else step + round((share * budget - spent) / each)
            if end <= step:
                continue
            clock = time.process_time()
            params, state = jax.block_until_ready(
                run_steps(params, state, points, *numbers, _index(step), _index(end))
            )
            spent += time.process_time() - clock
            step, each = end, max(spent / end, 1e-9)
            yield Reading(step, spent, float(self.error(params)))

    def _init(self, rate: float, seed: int) -> tuple[Any, jax.Array, Any]:
        start = jax.jit(self.problem.init)(jax.random.key(seed))
        tx = self.method.make(rate, 1)
        return start, jax.random.key(1000 + seed), jax.jit(tx.init)(start)

    def _compile(self, factor: float, start: Any, state: Any, points: jax.Array) -> Any:
        if factor not in self._compiled:
            clock = time.process_time()
            args = (start, state, points, _array(1), _array(1), _index(0), _index(1))
            self._compiled[factor] = jax.jit(self._steps(factor)).lower(*args).compile()
            self.compile_seconds = time.process_time() - clock
        return self._compiled[factor]

    def _steps(self, factor: float) -> Callable[..., Any]:
        problem, method = self.problem, self.method

        def steps(
            params: Any, state: Any, points: Any, rate: Any, last: Any, first: Any, end: Any
        ) -> Any:
            tx = method.make(rate, last)
            fixed = None if method.resampled else problem.sample(points, factor)

            def one(i: Any, carry: Any) -> Any:
                batch = fixed or problem.sample(jax.random.fold_in(points, i), factor)
                return method.step(problem, tx, *carry, batch)

            return jax.lax.fori_loop(first, end, one, (params, state))

        return steps

    def _seconds_of_a_step(
        self, run_steps: Any, start: Any, state: Any, points: Any, budget: float
    ) -> float:
        """Measure the time per step on steps whose results are discarded."""

        def spent(number: int) -> float:
            clock = time.process_time()
            numbers = _array(self.method.rates[0]), _array(number)
            jax.block_until_ready(
                run_steps(start, state, points, *numbers, _index(0), _index(number))
            )
            return max(time.process_time() - clock, 1e-6) / number

        return spent(max(int(_SHARE * budget / spent(_TRIED)), 1))


class _BudgetSpent(Exception):  # noqa: N818
    pass


def _scipy_run(
    problem: Problem, factor: float, seed: int, budget: float, error: Callable[[Any], Any]
) -> Iterator[Reading]:
    """Run SciPy's L-BFGS-B with a compiled function and gradient."""
    start = jax.jit(problem.init)(jax.random.key(seed))
    batch = jax.jit(lambda key: problem.sample(key, factor))(jax.random.key(1000 + seed))
    x, tree = ravel_pytree(start)
    compiled = (
        jax.jit(jax.value_and_grad(lambda x: problem.loss(tree(x), batch))).lower(x).compile()
    )
    # Import SciPy before the clock starts, because the import takes half a CPU second.
    minimize = peer("scipy.optimize").minimize
    jax.block_until_ready(compiled(x))
    reading_times = [float(budget * s) for s in 2.0 ** (-np.arange(READINGS)[::-1] / 2)]
    readings: list[Reading] = []
    step, paused, clock = 0, 0.0, time.process_time()

    def value_and_grad(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = compiled(jnp.asarray(x))
        return float(value), np.asarray(gradient)

    def callback(x: np.ndarray) -> None:
        nonlocal step, paused
        step += 1
        now = time.process_time()
        spent = now - clock - paused
        if reading_times and spent >= reading_times[0]:
            while reading_times and spent >= reading_times[0]:
                reading_times.pop(0)
            readings.append(Reading(step, spent, float(error(tree(jnp.asarray(x))))))
            paused += time.process_time() - now
        if not reading_times:
            raise _BudgetSpent

    options = {"maxiter": 10**9, "maxfun": 10**9, "ftol": 0, "gtol": 0, "maxcor": MEMORY}
    try:
        end = minimize(
            value_and_grad,
            np.asarray(x),
            jac=True,
            method="L-BFGS-B",
            callback=callback,
            options=options,
        )
        spent = time.process_time() - clock - paused
        readings.append(Reading(step, spent, float(error(tree(jnp.asarray(end.x))))))
    except _BudgetSpent:
        pass
    return iter(readings)


def _array(number: Any) -> jax.Array:
    return jnp.asarray(number, jnp.result_type(float))


def _index(number: int) -> jax.Array:
    return jnp.asarray(number, jnp.int32)
