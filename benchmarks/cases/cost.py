"""Check `fnopt.costs.cost`: its FLOP count against exact counts and XLA's counts, and its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.costs import cost


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a float32 array."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def recurrent(w: jax.Array, u: jax.Array, xs: jax.Array) -> jax.Array:
    """Run a recurrent network by a scan over time."""

    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ w + h @ u), None

    return jax.lax.scan(step, jnp.zeros((xs.shape[1], u.shape[0])), xs)[0]


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Return the loss of a deep network without loops."""
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(jnp.square(x))


def run(settings: Settings) -> Iterator[Metric]:
    """Report errors as `1 + |relative error|`, so 1 is exact, and the time of a count."""
    t, n, i, h = 50, 16, 32, 64
    args = (f32(i, h), f32(h, h), f32(t, n, i))
    by_hand = t * (2 * n * i * h + 2 * n * h * h)
    counted = cost(recurrent, compile=True)(*args)
    yield _error("recurrent network, 50 steps: ours", counted.matmul_flops, by_hand, "hand count")
    yield Metric(
        "recurrent network, 50 steps: the compiler",
        counted.compiled.flops / counted.flops,
        "x our count",
        "higher",
        tolerance=float("inf"),
    )

    depth, width = (3, 16) if settings.smoke else (12, 512)
    weights, x = [f32(width, width)] * depth, f32(4 * width, width)
    grad = jax.value_and_grad(loss)
    deep = cost(grad, compile=True)(weights, x)
    yield _error("gradient without loops: ours", deep.flops, deep.compiled.flops, "the compiler")

    seconds = {
        "ours": _seconds(lambda: cost(grad)(weights, x)),
        "compile": _seconds(lambda: jax.jit(grad).lower(weights, x).compile()),
    }
    detail = {f"{name}_s": s for name, s in seconds.items()}
    ratio = seconds["ours"] / seconds["compile"]
    yield Metric("time to count", ratio, "x compiling", tolerance=1.0, detail=detail)


def _error(name: str, ours: float, reference: float, what: str) -> Metric:
    error = abs(ours / reference - 1)
    detail = {"ours_flops": float(ours), "reference_flops": float(reference)}
    return Metric(name, 1 + error, f"x {what}", tolerance=0.02, detail=detail)


def _seconds(call: Callable[[], Any]) -> float:
    jax.clear_caches()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
