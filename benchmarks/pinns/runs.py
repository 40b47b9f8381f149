"""One run: a method on a problem until its seconds of CPU are spent, with readings on the way."""

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

READINGS = 14  # each after 2^(1/2) times the seconds of the one before
_TRIED = 4  # steps that show how long one takes, before more are made to measure it
_SHARE = 0.03  # of the budget: how long that measurement may take


class Reading(NamedTuple):
    """The error after some steps, and the seconds of CPU that they took."""

    step: int
    seconds: float
    error: float


class Programs:
    """The compiled pieces of a method on a problem; compiled when first used.

    Args:
        problem: What is solved.
        method: By what.
        error: `error(params)`, compiled once for all methods.
    """

    def __init__(self, problem: Problem, method: Method, error: Callable[[Any], Any]) -> None:
        self.problem, self.method, self.error = problem, method, error
        self.compile_seconds = 0.0
        self._compiled: dict[float, Any] = {}

    def run(self, rate: float, factor: float, seed: int, budget: float) -> Iterator[Reading]:
        """Trains once from the start of a seed."""
        if self.method.scipy:
            return _scipy_run(self.problem, factor, seed, budget, self.error)
        return self._run(rate, factor, seed, budget)

    def _run(self, rate: float, factor: float, seed: int, budget: float) -> Iterator[Reading]:
        start, points, state = self._begun(rate, seed)
        many = self._many(factor, start, state, points)
        each = self._seconds_of_a_step(many, start, state, points, budget)
        last = max(round(budget / each), 1) if self.method.scheduled else None
        numbers = _array(rate), _array(last or 1)
        params, step, spent = start, 0, 0.0
        for share in 2.0 ** (-np.arange(READINGS)[::-1] / 2):
            aim = round(share * last) if last else step + round((share * budget - spent) / each)
            if aim <= step:
                continue
            clock = time.process_time()
            params, state = jax.block_until_ready(
                many(params, state, points, *numbers, _index(step), _index(aim))
            )
            spent += time.process_time() - clock
            step, each = aim, max(spent / aim, 1e-9)
            yield Reading(step, spent, float(self.error(params)))

    def _begun(self, rate: float, seed: int) -> tuple[Any, jax.Array, Any]:
        start = jax.jit(self.problem.init)(jax.random.key(seed))
        tx = self.method.make(rate, 1)
        return start, jax.random.key(1000 + seed), jax.jit(tx.init)(start)

    def _many(self, factor: float, start: Any, state: Any, points: jax.Array) -> Any:
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
        self, many: Any, start: Any, state: Any, points: Any, budget: float
    ) -> float:
        """Measured on steps that are thrown away."""

        def spent(number: int) -> float:
            clock = time.process_time()
            numbers = _array(self.method.rates[0]), _array(number)
            jax.block_until_ready(many(start, state, points, *numbers, _index(0), _index(number)))
            return max(time.process_time() - clock, 1e-6) / number

        return spent(max(int(_SHARE * budget / spent(_TRIED)), 1))


class _Enough(Exception):  # noqa: N818
    pass


def _scipy_run(
    problem: Problem, factor: float, seed: int, budget: float, error: Callable[[Any], Any]
) -> Iterator[Reading]:
    """SciPy's own loop, its function and gradient compiled here."""
    start = jax.jit(problem.init)(jax.random.key(seed))
    batch = jax.jit(lambda key: problem.sample(key, factor))(jax.random.key(1000 + seed))
    x, tree = ravel_pytree(start)
    compiled = (
        jax.jit(jax.value_and_grad(lambda x: problem.loss(tree(x), batch))).lower(x).compile()
    )
    # Its import takes half a second of CPU, which is no part of the run.
    minimize = peer("scipy.optimize").minimize
    jax.block_until_ready(compiled(x))
    due = [float(budget * s) for s in 2.0 ** (-np.arange(READINGS)[::-1] / 2)]
    readings: list[Reading] = []
    step, paused, clock = 0, 0.0, time.process_time()

    def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = compiled(jnp.asarray(x))
        return float(value), np.asarray(slope)

    def after(x: np.ndarray) -> None:
        nonlocal step, paused
        step += 1
        now = time.process_time()
        spent = now - clock - paused
        if due and spent >= due[0]:
            while due and spent >= due[0]:
                due.pop(0)
            readings.append(Reading(step, spent, float(error(tree(jnp.asarray(x))))))
            paused += time.process_time() - now
        if not due:
            raise _Enough

    options = {"maxiter": 10**9, "maxfun": 10**9, "ftol": 0, "gtol": 0, "maxcor": MEMORY}
    try:
        found = minimize(
            value_and_slope,
            np.asarray(x),
            jac=True,
            method="L-BFGS-B",
            callback=after,
            options=options,
        )
        spent = time.process_time() - clock - paused
        readings.append(Reading(step, spent, float(error(tree(jnp.asarray(found.x))))))
    except _Enough:
        pass
    return iter(readings)


def _array(number: Any) -> jax.Array:
    return jnp.asarray(number, jnp.result_type(float))


def _index(number: int) -> jax.Array:
    return jnp.asarray(number, jnp.int32)
