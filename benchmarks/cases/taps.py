"""Measure the cost of taps without `capture`, and of captured cotangents and statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.metric import Metric
from benchmarks.timing import Settings, blocking, compile_ratio, compile_seconds, interleave, ratio
from fnopt.taps import capture, tap

Name = Callable[[str, Any], Any]
NODES = 5


def perceptron(name: Name, params: Any, x: jax.Array) -> jax.Array:
    """Apply five layers, with a node after each layer."""
    for i, w in enumerate(params):
        x = name(f"layer_{i}", jax.nn.relu(x @ w))
    return jnp.mean(x**2)


def recurrent(name: Name, params: Any, x: jax.Array) -> jax.Array:
    """Scan over time, with five nodes in the body."""
    w_in, w, w_out = params

    def step(h: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        a = name("input", u @ w_in)
        b = name("recurrent", h @ w)
        h = name("state", jnp.tanh(name("sum", a + b)))
        return h, name("output", h @ w_out)

    h = jnp.zeros((x.shape[1], w.shape[0]), x.dtype)
    return jnp.mean(jax.lax.scan(step, h, x)[1] ** 2)


def problems(smoke: bool) -> dict[str, tuple[Any, Any, jax.Array]]:
    """Return model, params and inputs by name."""
    rng = np.random.default_rng(0)
    batch, width, steps = (4, 8, 3) if smoke else (256, 512, 50)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, dtype=np.float32))

    def weights() -> jax.Array:
        return draw(width, width) / np.sqrt(width).astype(np.float32)

    return {
        "perceptron": (perceptron, [weights() for _ in range(NODES)], draw(batch, width)),
        "recurrent": (recurrent, [weights() for _ in range(3)], draw(steps, batch // 4, width)),
    }


def run(settings: Settings) -> Iterator[Metric]:
    """Compare each use of `capture` with the plain gradient of a function without taps."""
    for where, (model, params, x) in problems(settings.smoke).items():
        yield from _compare(where, model, (params, x), settings)


def _compare(where: str, model: Any, args: tuple[Any, ...], settings: Settings) -> Iterator[Metric]:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        return model(tap, params, x)

    def plain(params: Any, x: jax.Array) -> jax.Array:
        return model(lambda _, value: value, params, x)

    variants = {
        "nobody looks": jax.value_and_grad(loss),
        "cotangents": capture(loss, values=False, cotangents=True, argnums=0),
        "cotangents and values": capture(loss, cotangents=True, argnums=0),
        "rms of both": capture(loss, cotangents=True, argnums=0, reduce="rms"),
        "histograms of both": capture(loss, cotangents=True, argnums=0, reduce="histogram"),
    }
    functions = {"plain": (jax.value_and_grad(plain), args)}
    functions |= {name: (fn, args) for name, fn in variants.items()}
    seconds, compiled = compile_seconds(functions, settings)
    times = interleave({k: blocking(fn, *args) for k, fn in compiled.items()}, settings)
    unit = "x plain gradient"
    for name in variants:
        label = f"{where}, {name}"
        yield ratio(f"{label}: run", unit, times[name], times["plain"])
        yield compile_ratio(f"{label}: compile", unit, seconds[name], seconds["plain"])
        yield _memory(f"{label}: temporary", compiled[name], compiled["plain"], unit)


def _memory(label: str, ours: Any, plain: Any, unit: str) -> Metric:
    ours, plain = (c.memory_analysis().temp_size_in_bytes for c in (ours, plain))
    detail = {"ours_MB": ours / 1e6, "plain_MB": plain / 1e6}
    return Metric(label, ours / max(plain, 1), unit, tolerance=0.05, detail=detail)
