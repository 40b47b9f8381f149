"""Compare the compilation of fits with 1 to 200 leaves with fits of one vector."""

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
    """Return three residuals of a decay for each rate, for a tree or a vector of rates."""
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
    """Compile every solver for a tree of scalars and for a vector of the same size."""
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
    """Return the size of a program, and CPU seconds to trace, lower and compile it."""
    jax.clear_caches()
    clock = [time.process_time()]
    traced = jax.jit(solve).trace(start)
    clock.append(time.process_time())
    lowered = traced.lower()
    clock.append(time.process_time())
    lines = lowered.as_text().count("\n")
    stages = {"equations": jaxprs.program_size(traced.jaxpr.jaxpr), "lines": lines}
    stages |= {"trace": clock[1] - clock[0], "lower": clock[2] - clock[1]}
    begin = time.process_time()
    lowered.compile()
    return stages | {"compile": time.process_time() - begin}
