"""Compare weighted and clipped per-example gradients with plain and vmapped gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.metric import Metric
from benchmarks.timing import Settings, blocking, compile_ratio, compile_seconds, interleave, peer
from benchmarks.timing import ratio as time_ratio
from fnopt.gradients import clipped_grad, per_example_norms, weighted_grad

CLIP = 1.0


def network(params: Any, x: jax.Array) -> jax.Array:
    """Apply a multi-layer perceptron to one example or a batch."""
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def example_loss(params: Any, example: Any) -> jax.Array:
    """Return the cross-entropy of one example."""
    x, label = example
    logits = network(params, x)
    return jax.nn.logsumexp(logits) - logits[label]


def batch_loss(params: Any, batch: Any) -> jax.Array:
    """Return the cross-entropy summed over a batch, without per-example losses."""
    x, labels = batch
    logits = network(params, x)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return jnp.sum(jax.nn.logsumexp(logits, axis=1) - picked)


def problem(smoke: bool) -> tuple[Any, Any, jax.Array]:
    """Create params, a batch and weights of examples."""
    widths, examples = ([8, 16, 4], 8) if smoke else ([256, 512, 512, 10], 512)
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, dtype=np.float32))

    pairs = itertools.pairwise(widths)
    params = [(draw(n, m) / np.sqrt(n).astype(np.float32), draw(m)) for n, m in pairs]
    labels = jnp.asarray(rng.integers(0, widths[-1], examples), jnp.int32)
    return params, (draw(examples, widths[0]), labels), jnp.abs(draw(examples))


def vmapped_grads(params: Any, batch: Any) -> Any:
    """Compute the gradients of all examples by `vmap`."""
    return jax.vmap(jax.grad(example_loss), (None, 0))(params, batch)


def vmapped_weighted(params: Any, batch: Any, weights: jax.Array) -> Any:
    """Compute all gradients by `vmap`, then their weighted sum."""
    grads = vmapped_grads(params, batch)
    return jax.tree.map(lambda g: jnp.tensordot(weights, g, axes=1), grads)


def vmapped_norms(params: Any, batch: Any) -> jax.Array:
    """Compute all gradients by `vmap`, then their norms."""
    squares = [
        jnp.sum(g * g, axis=range(1, g.ndim)) for g in jax.tree.leaves(vmapped_grads(params, batch))
    ]
    return jnp.sqrt(sum(squares))


def run(settings: Settings) -> Iterator[Metric]:
    """Compare three functions with the plain gradient and with `vmap`."""
    optax = peer("optax")
    params, batch, weights = problem(settings.smoke)

    def optax_clipped(params: Any, batch: Any) -> Any:
        grads, _ = optax.per_example_global_norm_clip(vmapped_grads(params, batch), CLIP)
        return grads

    functions = {
        "plain": (jax.grad(batch_loss), (params, batch)),
        "weighted_grad": (weighted_grad(example_loss), (params, batch, weights)),
        "weighted by vmap": (vmapped_weighted, (params, batch, weights)),
        "clipped_grad": (lambda p, b: clipped_grad(example_loss, CLIP)(p, b)[0], (params, batch)),
        "clipped by optax": (optax_clipped, (params, batch)),
        "per_example_norms": (per_example_norms(example_loss), (params, batch)),
        "norms by vmap": (vmapped_norms, (params, batch)),
    }
    seconds, compiled = compile_seconds(functions, settings)
    times = interleave({k: blocking(compiled[k], *functions[k][1]) for k in functions}, settings)
    pairs = [
        ("weighted_grad", "plain", "x plain gradient"),
        ("weighted_grad", "weighted by vmap", "x vmap"),
        ("clipped_grad", "plain", "x plain gradient"),
        ("clipped_grad", "clipped by optax", "x optax"),
        ("per_example_norms", "plain", "x plain gradient"),
        ("per_example_norms", "norms by vmap", "x vmap"),
    ]
    for ours, theirs, unit in pairs:
        yield time_ratio(f"{ours}: run", unit, times[ours], times[theirs])
        yield compile_ratio(f"{ours}: compile", unit, seconds[ours], seconds[theirs])
    yield from _memory(functions, compiled, pairs)


def _memory(functions: Any, compiled: Any, pairs: list[tuple[str, str, str]]) -> Iterator[Metric]:
    size = sum(x.nbytes for x in jax.tree.leaves(functions["plain"][1][0]))
    for name in dict.fromkeys(ours for ours, _, _ in pairs):
        temporary = compiled[name].memory_analysis().temp_size_in_bytes
        detail = {"ours_MB": temporary / 1e6, "params_MB": size / 1e6}
        yield Metric(f"{name}: temporary", temporary / size, "x params' bytes", detail=detail)
