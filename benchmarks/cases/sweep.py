"""Compare a vmapped sweep of 16 learning rates with a Python loop over optax."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings, blocking, interleave, peer, ratio

RATES = np.logspace(-4, -1, 16).astype(np.float32)


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the loss of a small regression network."""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] - y) ** 2)


def problem(smoke: bool) -> tuple[Any, Any, int]:
    """Create params, data and the number of steps."""
    n, width, steps = (16, 4, 3) if smoke else (128, 32, 300)
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, dtype=np.float32))

    params = {"w1": draw(8, width) / 3, "b1": jnp.zeros(width), "w2": draw(width, 1) / 6}
    x = draw(n, 8)
    return params, (x, jnp.sin(x[:, :1]) * x[:, 1:2]), steps


def trainer(steps: int, apply_updates: Any) -> Any:
    """Return `train(tx, params, data) -> final loss`, with all steps in one scan."""

    def train(tx: Any, params: Any, data: Any) -> jax.Array:
        def step(carry: Any, _: None) -> tuple[Any, None]:
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params, *data), state, params)
            return (apply_updates(params, updates), state), None

        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), length=steps)
        return loss(params, *data)

    return train


def run(settings: Settings) -> Iterator[Metric]:
    """Compare first calls, which compile, and run times of the fastest compiled loop."""
    optax = peer("optax")
    params, data, steps = problem(settings.smoke)
    ours = trainer(steps, fnopt.apply_updates)
    theirs = trainer(steps, optax.apply_updates)

    def swept() -> Any:
        sweep = jax.vmap(ours, (0, None, None))
        return jax.jit(sweep)(jax.vmap(fnopt.adam)(jnp.asarray(RATES)), params, data)

    def looped() -> Any:
        # An optax optimizer is a pair of closures, so every rate compiles another program.
        return [
            jax.jit(lambda p, d, rate=rate: theirs(optax.adam(rate), p, d))(params, data)
            for rate in RATES.tolist()
        ]

    seconds = {name: _first_call(fn) for name, fn in {"ours": swept, "theirs": looped}.items()}
    detail = {f"{name}_s": s for name, s in seconds.items()}
    value = seconds["ours"] / seconds["theirs"]
    yield Metric("16 rates, compile and run", value, "x loop over optax", detail=detail)

    # To compare run times, the rate is an argument of optax's program, which compiles once.
    sweep = jax.jit(jax.vmap(ours, (0, None, None)))
    traced = jax.jit(lambda rate, p, d: theirs(optax.adam(rate), p, d))
    stacked = jax.vmap(fnopt.adam)(jnp.asarray(RATES))
    rates = [jnp.asarray(r) for r in RATES]
    variants = {
        "ours": blocking(sweep, stacked, params, data),
        "theirs": blocking(lambda: [traced(r, params, data) for r in rates]),
    }
    times = interleave(variants, settings)
    yield ratio("16 rates, run", "x loop over optax", times["ours"], times["theirs"])
    _check_same(sweep(stacked, params, data), [traced(r, params, data) for r in rates])


def _first_call(fn: Any) -> float:
    jax.clear_caches()
    start = time.perf_counter()
    jax.block_until_ready(fn())
    return time.perf_counter() - start


def _check_same(ours: jax.Array, theirs: list[jax.Array]) -> None:
    # Times are comparable only if both libraries compute the same losses.
    np.testing.assert_allclose(ours[:8], np.asarray(theirs)[:8], rtol=1e-2)
