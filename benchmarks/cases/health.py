"""Measure how much `record_health` adds to the time of a training step, on two networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.metric import Metric
from benchmarks.timing import Settings, Step, compile_seconds, copy, interleave, ratio
from fnopt.monitor import record_health

HISTORY = 64
LOOKS = {
    "norm, ratio, nonfinite": ("norm", "ratio", "nonfinite"),
    "seven numbers": ("norm", "max", "mean", "rms", "ratio", "zeros", "nonfinite"),
    "with histograms": ("norm", "ratio", "nonfinite", "histogram"),
}


def _draw(rng: np.random.Generator, *shape: int) -> jax.Array:
    scale = 1 / np.sqrt(shape[0])
    return jnp.asarray(scale * rng.standard_normal(shape), jnp.float32)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -jnp.mean(picked)


def mlp(smoke: bool) -> tuple[Any, Any, Any]:
    """Create a perceptron: params, batch and loss."""
    widths, examples = ([8, 16, 4], 8) if smoke else ([784, 512, 512, 10], 256)
    rng = np.random.default_rng(0)
    params = [(_draw(rng, n, m), jnp.zeros(m)) for n, m in itertools.pairwise(widths)]
    labels = jnp.asarray(rng.integers(0, widths[-1], examples), jnp.int32)

    def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        w, b = params[-1]
        return _cross_entropy(x @ w + b, labels)

    return params, (_draw(rng, examples, widths[0]), labels), loss


def _normed(x: jax.Array) -> jax.Array:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def transformer(smoke: bool) -> tuple[Any, Any, Any]:
    """Create a small decoder with tied embeddings: params, batch and loss."""
    width, layers, length, batch, words = (8, 1, 4, 2, 16) if smoke else (128, 4, 64, 32, 512)
    heads, rng = 4, np.random.default_rng(0)
    shapes = {"qkv": (width, 3 * width), "out": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    blocks = [{name: _draw(rng, *shape) for name, shape in shapes.items()} for _ in range(layers)]
    blocks = [b | {f"{n}_bias": jnp.zeros(w.shape[1]) for n, w in b.items()} for b in blocks]
    params = {"embedding": _draw(rng, words, width), "blocks": blocks}
    tokens = jnp.asarray(rng.integers(0, words, (batch, length)), jnp.int32)
    causal = jnp.tril(jnp.ones((length, length), bool))

    def block(p: Any, x: jax.Array) -> jax.Array:
        qkv = _normed(x) @ p["qkv"] + p["qkv_bias"]
        q, k, v = jnp.moveaxis(qkv.reshape(*x.shape[:2], 3, heads, -1), 2, 0)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(width // heads).astype(np.float32)
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape)
        x = x + mixed @ p["out"] + p["out_bias"]
        hidden = jax.nn.gelu(_normed(x) @ p["up"] + p["up_bias"])
        return x + hidden @ p["down"] + p["down_bias"]

    def loss(params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        x = params["embedding"][tokens]
        for p in params["blocks"]:
            x = block(p, x)
        return _cross_entropy(_normed(x) @ params["embedding"].T, targets)

    return params, (tokens, jnp.roll(tokens, -1, axis=1)), loss


def train_step(tx: Any, loss: Any) -> Any:
    """Return a function that computes gradient, update and new params."""

    def step(params: Any, state: Any, *batch: Any) -> tuple[Any, Any]:
        updates, state = tx.update(jax.grad(loss)(params, *batch), state, params)
        return fnopt.apply_updates(params, updates), state

    return step


def run(settings: Settings) -> Iterator[Metric]:
    """Compare each set of statistics with the step without statistics."""
    for where, problem in {"mlp": mlp, "transformer": transformer}.items():
        params, batch, loss = problem(settings.smoke)
        plain = fnopt.adamw(1e-3)
        optimizers = {"plain": plain} | {
            look: fnopt.chain(plain, record_health(size=HISTORY, stats=stats))
            for look, stats in LOOKS.items()
        }
        optimizers["every 10 steps, all"] = fnopt.chain(
            plain,
            record_health(size=HISTORY, every=10, stats=(*LOOKS["seven numbers"], "histogram")),
        )
        steps = {
            name: (train_step(tx, loss), (params, tx.init(params), *batch))
            for name, tx in optimizers.items()
        }
        _, compiled = compile_seconds(steps, settings, donate_argnums=(0, 1))
        variants = {
            name: Step(compiled[name], copy(args[:2]), *args[2:])
            for name, (_, args) in steps.items()
        }
        times = interleave(variants, settings)
        for name in list(steps)[1:]:
            yield ratio(f"{where}, {name}", "x adamw step", times[name], times["plain"])
