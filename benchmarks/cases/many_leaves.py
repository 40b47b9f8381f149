"""Measure tracing, lowering, compilation and eager calls of a step with 1 to 2,000 leaves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks.cases.optimizer_step import optimizers, train_step
from benchmarks.metric import Metric
from benchmarks.timing import Settings, peer
from fnopt.programs import jaxprs


def run(settings: Settings) -> Iterator[Metric]:
    """Compare every optimizer with optax on trees of 1 to 2,000 small leaves."""
    optax = peer("optax")
    pairs = {"adam": (fnopt.adam(1e-3), optax.adam(1e-3)), **optimizers(optax)}
    for n in (1, 10) if settings.smoke else (1, 100, 500, 2000):
        params = {f"leaf_{i}": jnp.ones((2, 3)) for i in range(n)}
        for name, (ours, theirs) in pairs.items():
            both = ((ours, fnopt.apply_updates), (theirs, optax.apply_updates))
            yield from _compare(f"{name}, {n} leaves", both, params, settings)


def _compare(label: str, both: Any, params: Any, settings: Settings) -> Iterator[Metric]:
    ours, theirs = [_equations(tx, apply, params) for tx, apply in both]
    detail = {"ours": float(ours), "optax": float(theirs)}
    yield Metric(f"{label}: equations", ours / theirs, "x optax", detail=detail)
    rounds = 1 if settings.smoke or len(params) > 500 else 3
    # Both libraries alternate, so that other load of the machine affects both.
    times = [[_seconds(tx, apply, params) for tx, apply in both] for _ in range(rounds)]
    for stage in times[0][0]:
        ours, theirs = (statistics.median(r[k][stage] for r in times) for k in (0, 1))
        detail = {"ours_ms": 1e3 * ours, "optax_ms": 1e3 * theirs}
        value = ours / theirs
        yield Metric(f"{label}: {stage}", value, "x optax", tolerance=float("inf"), detail=detail)


def _equations(tx: Any, apply_updates: Any, params: Any) -> int:
    step = train_step(tx, apply_updates)
    return jaxprs.program_size(jax.make_jaxpr(step)(params, tx.init(params), params).jaxpr)


def _seconds(tx: Any, apply_updates: Any, params: Any) -> dict[str, float]:
    """Measure CPU seconds of each stage with empty caches, and of the second eager update."""
    state, step = tx.init(params), train_step(tx, apply_updates)
    jax.clear_caches()
    clock = [time.process_time()]
    traced = jax.jit(step).trace(params, state, params)
    clock.append(time.process_time())
    lowered = traced.lower()
    clock.append(time.process_time())
    if len(params) <= 500:  # more leaves take XLA minutes, with similar programs of both libraries
        lowered.compile()
        clock.append(time.process_time())
    stages = zip(("trace", "lower", "compile"), clock, clock[1:], strict=False)
    seconds = {name: end - begin for name, begin, end in stages}
    jax.block_until_ready(tx.update(params, state, params))
    begin = time.process_time()
    jax.block_until_ready(tx.update(params, state, params))
    return {**seconds, "eager update": time.process_time() - begin}
