"""What fits of 1 to 200 leaves cost before they run, beside those of one vector."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.programs import jaxprs

_TIMES = jnp.linspace(0.0, 1.0, 3)


def residuals(params: Any) -> Any:
    """Decays, three residuals each; of a tree of rates, or of a vector of them."""
    return jax.tree.map(lambda a: jnp.exp(-a[..., None] * _TIMES) - 0.5, params)


def _cost(params: Any) -> jax.Array:
    return sum((jnp.sum(r**2) for r in jax.tree.leaves(residuals(params))), jnp.zeros(()))


def _equations(params: Any) -> Any:
    return jax.tree.map(lambda a: jnp.exp(-a) - 0.5, params)


def _programs() -> dict[str, Callable[[Any], Any]]:
    return {
        "least_squares": lambda p: fnopt.least_squares(residuals, p),
        "minimize": lambda p: fnopt.minimize(_cost, p, method="lbfgsb"),
        "root": lambda p: fnopt.root(_equations, p),
    }


def run(settings: Settings) -> Iterator[Metric]:
    """Every solver on trees of scalars, and on one vector of as many."""
    for n in (1, 20) if settings.smoke else (1, 20, 200):
        tree = {f"rate_{i}": jnp.ones(()) for i in range(n)}
        for name, solve in _programs().items():
            leaves, vector = (_stages(solve, start) for start in (tree, jnp.ones(n)))
            for stage, ours in leaves.items():
                exact = stage in {"equations", "lines"}
                yield Metric(
                    f"{name}, {n} leaves: {stage}",
                    ours / vector[stage],
                    "x one vector",
                    tolerance=0.25 if exact else float("inf"),
                    detail={"leaves": ours, "vector": vector[stage]},
                )


def _stages(solve: Callable[[Any], Any], start: Any) -> dict[str, float]:
    """The size of a program, and CPU seconds for tracing, lowering and compiling it."""
    jax.clear_caches()
    clock = [time.process_time()]
    traced = jax.jit(solve).trace(start)
    clock.append(time.process_time())
    lowered = traced.lower()
    clock.append(time.process_time())
    lines = lowered.as_text().count("\n")
    found = {"equations": jaxprs.program_size(traced.jaxpr.jaxpr), "lines": lines}
    found |= {"trace": clock[1] - clock[0], "lower": clock[2] - clock[1]}
    begin = time.process_time()
    lowered.compile()
    return found | {"compile": time.process_time() - begin}
