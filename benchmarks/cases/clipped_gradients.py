"""Compare clipped per-example gradients with plain gradients: dense network and transformer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.metric import Metric
from benchmarks.timing import Settings, blocking, compile_ratio, compile_seconds, interleave
from benchmarks.timing import ratio as time_ratio
from fnopt.costs import cost
from fnopt.gradients import (
    clipped_grad,
    gradient_similarity,
    gradient_statistics,
    per_example_norms,
)

CLIP = 1.0


class Problem(NamedTuple):
    """A model: `loss` of one example, and `total` of a batch, without `vmap`."""

    loss: Callable[[Any, Any], jax.Array]
    total: Callable[[Any, Any], jax.Array]
    params: Any
    batch: Any


def _draw(rng: np.random.Generator, *shape: int) -> jax.Array:
    scale = np.float32(1 / max(1, shape[0]) ** 0.5)
    return jnp.asarray(scale * rng.standard_normal(shape, dtype=np.float32))


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - picked


def dense(smoke: bool, examples: int = 256) -> Problem:
    """Create a multi-layer perceptron; a smoke run has eight examples."""
    widths, examples = ([8, 16, 4], 8) if smoke else ([784, 512, 512, 10], examples)
    rng = np.random.default_rng(0)

    def loss(params: Any, batch: Any) -> jax.Array:
        x, labels = batch
        for w, b in params[:-1]:
            x = jax.nn.relu(x @ w + b)
        return _cross_entropy(x @ params[-1][0] + params[-1][1], labels)

    params = [(_draw(rng, n, m), jnp.zeros(m)) for n, m in itertools.pairwise(widths)]
    labels = jnp.asarray(rng.integers(0, widths[-1], examples), jnp.int32)
    x = jnp.asarray(rng.standard_normal((examples, widths[0]), dtype=np.float32))
    return Problem(loss, lambda p, b: jnp.sum(loss(p, b)), params, (x, labels))


def transformer(smoke: bool) -> Problem:
    """Create a transformer of two pre-norm blocks with a tied embedding."""
    d, length, examples, heads, words = (8, 4, 4, 2, 11) if smoke else (128, 64, 32, 4, 256)
    rng = np.random.default_rng(0)

    def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
        return scale * x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)

    def block(p: Any, x: jax.Array) -> jax.Array:
        h = norm(x, p["s1"])
        q, k, v = (
            y.reshape(*x.shape[:-1], heads, d // heads) for y in jnp.split(h @ p["qkv"], 3, -1)
        )
        scores = jnp.einsum("...qhc,...khc->...hqk", q, k) * (d // heads) ** -0.5
        causal = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        x = x + jnp.einsum("...hqk,...khc->...qhc", weights, v).reshape(x.shape) @ p["o"]
        return x + jax.nn.gelu(norm(x, p["s2"]) @ p["up"] + p["b"]) @ p["down"]

    def loss(params: Any, text: jax.Array) -> jax.Array:
        x = params["table"][text[..., :-1]] + params["place"]
        for p in params["blocks"]:
            x = block(p, x)
        logits = x @ params["table"].T
        return jnp.mean(_cross_entropy(logits, text[..., 1:]), axis=-1)

    def one() -> Any:
        weights = {"qkv": (d, 3 * d), "o": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        drawn = {name: _draw(rng, *shape) for name, shape in weights.items()}
        return drawn | {"s1": jnp.ones(d), "s2": jnp.ones(d), "b": jnp.zeros(4 * d)}

    params = {"table": _draw(rng, words, d), "place": _draw(rng, length, d)}
    params["blocks"] = [one(), one()]
    text = jnp.asarray(rng.integers(0, words, (examples, length + 1)), jnp.int32)
    return Problem(loss, lambda p, b: jnp.sum(loss(p, b)), params, text)


def _functions(problem: Problem) -> dict[str, Callable[..., Any]]:
    loss = problem.loss
    functions = {
        "plain": jax.grad(problem.total),
        "clipped, auto": lambda p, b: clipped_grad(loss, CLIP)(p, b)[0],
        "clipped, ghost": lambda p, b: clipped_grad(loss, CLIP, method="ghost")(p, b)[0],
        "clipped, chunked": lambda p, b: clipped_grad(loss, CLIP, method="chunked")(p, b)[0],
        "norms": per_example_norms(loss),
        "statistics": lambda p, b: gradient_statistics(loss)(p, b)[:4],
        "statistics, alignment": lambda p, b: gradient_statistics(loss, alignment=True)(p, b),
        "similarity": lambda p, b: gradient_similarity(loss, method="ghost")(p, b).inner,
    }
    try:
        from jax_privacy import clipped_grad as peer
    except ImportError:
        return functions
    options = {"l2_clip_norm": CLIP, "keep_batch_dim": False}
    for k in (1, 4):
        functions[f"jax_privacy, {k} at once"] = peer(loss, **options, microbatch_size=k)
    return functions


def run(settings: Settings) -> Iterator[Metric]:
    """Measure time, memory and matrix products, relative to the plain gradient.

    jax_privacy is measured if it is installed.
    """
    for make in (dense, transformer):
        problem = make(settings.smoke)
        args = (problem.params, problem.batch)
        functions = {name: (fn, args) for name, fn in _functions(problem).items()}
        seconds, compiled = compile_seconds(functions, settings)
        calls = {name: blocking(fn, *args) for name, fn in compiled.items()}
        times = interleave(calls, settings)
        for name in list(functions)[1:]:
            title = f"{make.__name__}, {name}"
            unit = "x plain gradient"
            yield time_ratio(f"{title}: run", unit, times[name], times["plain"])
            yield compile_ratio(f"{title}: compile", unit, seconds[name], seconds["plain"])
            yield _memory(f"{title}: temporary", compiled[name], compiled["plain"])
            if "jax_privacy" not in name:  # the lengths of its loops are unknown to `cost`
                yield _products(f"{title}: matrix products", functions[name], functions["plain"])


def _memory(name: str, ours: Any, plain: Any) -> Metric:
    mine, theirs = (c.memory_analysis().temp_size_in_bytes for c in (ours, plain))
    detail = {"ours_MB": mine / 1e6, "peer_MB": theirs / 1e6}
    return Metric(name, mine / theirs, "x plain gradient", tolerance=0.05, detail=detail)


def _products(name: str, ours: Any, plain: Any) -> Metric:
    mine, theirs = (cost(fn)(*args).matmul_flops for fn, args in (ours, plain))
    detail = {"ours_GFLOP": mine / 1e9, "peer_GFLOP": theirs / 1e9}
    return Metric(name, mine / theirs, "x plain gradient", tolerance=0.02, detail=detail)
