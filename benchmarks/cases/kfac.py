"""Compare K-FAC with tuned AdamW on a deep autoencoder of digits.

AdamW has warm-up, a cosine schedule and the best of several learning rates. The target is AdamW's
final loss on all training data. The benchmark counts the steps and FLOPs that K-FAC takes to reach
the target. `fnopt.costs` counts the FLOPs; operations of every k-th step count with weight 1 / k.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks import data
from benchmarks.metric import Metric
from benchmarks.timing import Settings
from fnopt.costs import cost
from fnopt.curvature import KroneckerModel, KroneckerSpec

# Rounding errors change which minimum is reached, so these metrics have no tolerance.
SHOWN = float("inf")


class Size(NamedTuple):
    """Size of the problem and of the runs."""

    widths: tuple[int, ...] = (64, 100, 50, 25, 6, 25, 50, 100, 64)
    rows: int = 1408
    batch: int = 704
    steps: int = 300
    ours: int = 100
    rates: tuple[float, ...] = (3e-3, 1e-2, 2e-2, 4e-2)
    seeds: tuple[int, ...] = (0, 1, 2)


SMOKE = Size((64, 4, 64), 64, 32, 12, 6, (2e-2,), (0,))
OPTIONS = {
    "every step": {},
    "factors every 3rd": {"statistics_every": 3, "inverse_every": 15},
}


def autoencoder(params: Any, x: jax.Array) -> jax.Array:
    """Return the logits of the pixels; the code layer and the output layer are linear."""
    last = len(params) - 1
    for k, layer in enumerate(params):
        x = x @ layer["w"] + layer["b"]
        x = x if k in (last, last // 2) else jnp.tanh(x)
    return x


def cross_entropy(logits: jax.Array, x: jax.Array) -> jax.Array:
    """Return the cross-entropy of an image, whose pixels are probabilities."""
    return jnp.sum(jax.nn.softplus(logits) - x * logits)


def mean_loss(params: Any, x: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of a batch."""
    return jnp.mean(jax.vmap(cross_entropy)(autoencoder(params, x), x))


def start(widths: tuple[int, ...], seed: int) -> Any:
    """Draw random weights, with zero biases."""
    keys = jax.random.split(jax.random.key(seed), len(widths))
    pairs = zip(keys, itertools.pairwise(widths), strict=False)
    return [
        {"w": jax.random.normal(k, (m, n)) / np.sqrt(m), "b": jnp.zeros(n)} for k, (m, n) in pairs
    ]


def curve(tx: Any, params: Any, batches: jax.Array, x: jax.Array, *, first: bool) -> jax.Array:
    """Train, and return the loss of all data after every step."""

    def step(carry: Any, batch: jax.Array) -> Any:
        params, state = carry
        gradients = jax.grad(mean_loss)(params, batch) if first else None
        extra = {} if first else {"batch": batch}
        updates, state = tx.update(gradients, state, params, **extra)
        params = fnopt.apply_updates(params, updates)
        return (params, state), mean_loss(params, x)

    return jax.lax.scan(step, (params, tx.init(params)), batches)[1]


def adamw(rate: Any, steps: int) -> Any:
    """Return AdamW with warm-up and a cosine schedule."""
    schedule = fnopt.warmup_cosine_decay_schedule(0.0, rate, steps // 20, steps, 0.01 * rate)
    return fnopt.adamw(schedule, weight_decay=1e-4)


def first_order_flops(tx: Any, params: Any, batch: Any) -> float:
    """Count the FLOPs of a gradient and an update."""

    def step(params: Any, state: Any, batch: Any) -> Any:
        return tx.update(jax.grad(mean_loss)(params, batch), state, params)

    return float(cost(step)(params, jax.eval_shape(tx.init, params), batch).flops)


def kfac_flops(tx: Any, params: Any, batch: Any) -> float:
    """Count the average FLOPs of a step.

    `cost` counts every branch in every step, so the counts of operations that run every k-th step
    are reduced to 1 / k.
    """
    state = jax.eval_shape(tx.init, params)

    def step(params: Any, state: Any, batch: Any) -> Any:
        return tx.update(None, state, params, batch=batch)

    def model(params: Any, batch: Any) -> KroneckerModel:
        return KroneckerModel(KroneckerSpec(autoencoder, cross_entropy), params, batch)

    def factors(params: Any, outputs: Any, batch: Any) -> Any:
        return model(params, batch).factors(outputs, jax.random.key(0))

    def inverses(params: Any, factors: Any, batch: Any) -> Any:
        return model(params, batch).inverses(factors, jnp.ones(()))

    outputs = jax.eval_shape(lambda p, b: model(p, b).outputs(p), params, batch)
    parts = {
        tx.statistics_every: cost(factors)(params, outputs, batch).flops,
        tx.damping_every: cost(mean_loss)(params, batch).flops,
    }
    solved = cost(inverses)(params, state.factors, batch).flops
    total = float(cost(step)(params, state, batch).flops)
    total -= solved * (1 - 1 / tx.inverse_every)
    return total - sum(flops * (1 - 1 / every) for every, flops in parts.items())


def run(settings: Settings) -> Iterator[Metric]:
    """Report medians over seeds, each with separate initial parameters and batches."""
    size = SMOKE if settings.smoke else Size()
    x = jnp.asarray(data.digits().x[: size.rows], jnp.float32)
    example = jax.ShapeDtypeStruct((size.batch, x.shape[1]), x.dtype)
    adam = functools.partial(adamw, steps=size.steps)
    sweep = jax.jit(
        lambda rates, p, b: jax.vmap(lambda r: curve(adam(r), p, b, x, first=True))(rates)
    )
    options = dict([*OPTIONS.items()][-1:]) if settings.smoke else OPTIONS
    txs = {
        k: fnopt.kfac(autoencoder, cross_entropy, example, l2=1e-5, **o) for k, o in options.items()
    }
    ours = {
        k: jax.jit(lambda p, b, tx=tx: curve(tx, p, b, x, first=False)) for k, tx in txs.items()
    }
    runs: dict[str, list[tuple[float, float, float]]] = {k: [] for k in txs}
    for seed in size.seeds:
        params, rng = start(size.widths, seed), np.random.default_rng(seed)
        rows = [rng.permutation(size.rows)[: size.batch] for _ in range(size.steps)]
        batches = x[jnp.asarray(np.stack(rows))]
        final = float(jnp.nanmin(sweep(jnp.asarray(size.rates), params, batches)[:, -1]))
        for name, train in ours.items():
            values = np.asarray(train(params, batches[: size.ours]))
            below = np.flatnonzero(values <= final)
            steps = float(below[0] + 1) if below.size else float("inf")
            runs[name].append((steps, final, float(values[-1])))
    params = start(size.widths, 0)
    theirs = first_order_flops(adam(1e-2), params, example)
    for name, outcomes in runs.items():
        steps, final, last = np.median(np.asarray(outcomes), axis=0)
        each = kfac_flops(txs[name], params, example) / theirs
        detail = {
            "ours_steps": float(steps),
            "peer_steps": float(size.steps),
            "peer_loss": float(final),
            "ours_loss_at_its_end": float(last),
            "ours_FLOPs_of_a_step": each,
        }
        kfac = f"digits autoencoder, {name}"
        unit = "x tuned AdamW"
        yield Metric(f"{kfac}: steps", steps / size.steps, unit, tolerance=SHOWN, detail=detail)
        yield Metric(f"{kfac}: FLOPs", each * steps / size.steps, unit, tolerance=SHOWN)
