"""Measure the compilation of per-example gradients and gradient statistics, for 1 to 200 leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.monitor import health
from fnopt.programs import jaxprs


def _loss(params: Any, x: jax.Array) -> jax.Array:
    """Loss of a network of sequential layers, in which products and biases alternate."""
    for w in params.values():
        x = x @ w if w.ndim == 2 else x + 0.1 * jnp.tanh(x + w)
    return jnp.sum(x**2)


def _mean_loss(params: Any, batch: jax.Array) -> jax.Array:
    return jnp.mean(jax.vmap(_loss, (None, 0))(params, batch))


def _programs() -> dict[str, Callable[..., Any]]:
    return {
        "per_example_grads": fnopt.per_example_grads(_loss),
        "clipped_grad": fnopt.clipped_grad(_loss, 1.0),
        "gradient_statistics": fnopt.gradient_statistics(_loss),
        "health": lambda params, batch: health(params, params),
        "global_norm": lambda params, batch: fnopt.global_norm(params),
    }


def run(settings: Settings) -> Iterator[Metric]:
    """Compare each function with the gradient of the mean loss."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(0.3 * rng.standard_normal(shape), jnp.float32)

    for n in (4,) if settings.smoke else (1, 20, 200):
        params = {f"leaf_{i:03d}": draw(4, 4) if i % 2 == 0 else draw(4) for i in range(n)}
        plain = _stages(jax.grad(_mean_loss), params, draw(8, 4))
        for name, fn in _programs().items():
            for stage, ours in _stages(fn, params, draw(8, 4)).items():
                yield Metric(
                    f"{name}, {n} leaves: {stage}",
                    ours / plain[stage],
                    "x gradient of the mean",
                    tolerance=0.25 if stage == "equations" else float("inf"),
                    detail={"ours": ours, "gradient": plain[stage]},
                )


def _stages(fn: Callable[..., Any], *args: Any) -> dict[str, float]:
    """Count equations, and measure CPU seconds of each stage and of the second eager call."""
    jax.clear_caches()
    clock = [time.process_time()]
    traced = jax.jit(fn).trace(*args)
    clock.append(time.process_time())
    lowered = traced.lower()
    clock.append(time.process_time())
    lowered.compile()
    clock.append(time.process_time())
    jax.block_until_ready(fn(*args))
    begin = time.process_time()
    jax.block_until_ready(fn(*args))
    eager = time.process_time() - begin
    stages = zip(("trace", "lower", "compile"), clock, clock[1:], strict=False)
    seconds = {name: end - start for name, start, end in stages}
    equations = jaxprs.program_size(traced.jaxpr.jaxpr)
    return {"equations": equations, **seconds, "eager call": eager}
