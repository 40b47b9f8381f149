"""Compare an optimizer step with donated params and state with optax and with memory bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks import trees
from benchmarks.metric import Metric
from benchmarks.timing import (
    Settings,
    Step,
    compile_ratio,
    compile_seconds,
    copy,
    interleave,
    peer,
    ratio,
)

# Number of arrays of the params' size that a step must read and write: params in and out, gradient
# in, each slot in and out. A chain with a global norm reads the gradient twice.
TRAFFIC = {"sgd": 3, "adamw": 7, "clip + adamw": 8, "lion": 5}


def optimizers(optax: Any) -> dict[str, tuple[Any, Any]]:
    """Return pairs of the same optimizer in fnopt and optax."""
    clipped = (
        fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adamw(1e-3, weight_decay=1e-2)),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=1e-2)),
    )
    return {
        "sgd": (fnopt.sgd(1e-3), optax.sgd(1e-3)),
        "adamw": (
            fnopt.adamw(1e-3, weight_decay=1e-2),
            optax.adamw(1e-3, weight_decay=1e-2),
        ),
        "clip + adamw": clipped,
        "lion": (
            fnopt.lion(1e-4, weight_decay=1e-2),
            optax.lion(1e-4, weight_decay=1e-2),
        ),
    }


def train_step(tx: Any, apply_updates: Any) -> Any:
    """Return a step that updates params and state, as in a training loop."""

    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grads, state, params)
        return apply_updates(params, updates), state

    return step


def saxpy(y: Any, x: Any) -> tuple[Any]:
    """Read two arrays and write one array, with negligible arithmetic."""
    return (jax.tree.map(lambda a, b: jnp.float32(0.5) * b + a, y, x),)


def run(settings: Settings) -> Iterator[Metric]:
    """Compare every optimizer on every tree."""
    optax = peer("optax")
    smoke = settings.smoke
    shapes = {
        "one leaf": trees.one_leaf(10_000 if smoke else 20_000_000),
        "transformer": trees.transformer(16, 2, 64) if smoke else trees.transformer(320, 12, 8192),
    }
    for where, params in shapes.items():
        for name, (ours, theirs) in optimizers(optax).items():
            yield from _compare(f"{name}, {where}", name, params, ours, theirs, optax, settings)


def _compare(
    label: str, name: str, params: Any, ours: Any, theirs: Any, optax: Any, settings: Settings
) -> Iterator[Metric]:
    grads = trees.like(params)
    steps = {
        "ours": (train_step(ours, fnopt.apply_updates), (params, ours.init(params), grads)),
        "optax": (train_step(theirs, optax.apply_updates), (params, theirs.init(params), grads)),
    }
    seconds, compiled = compile_seconds(steps, settings, donate_argnums=(0, 1))
    variants = {
        k: Step(compiled[k], (copy(params), copy(steps[k][1][1])), grads) for k in ("ours", "optax")
    }
    plain = jax.jit(saxpy, donate_argnums=0)
    variants["saxpy"] = Step(plain, (copy(params),), copy(grads))
    times = interleave(variants, settings)
    yield ratio(f"{label}: run", "x optax", times["ours"], times["optax"])
    minimum = [t * TRAFFIC[name] / 3 for t in times["saxpy"]]
    yield ratio(f"{label}: run", "x memory traffic", times["ours"], minimum, tolerance=0.5)
    yield _temporary(f"{label}: temporary", params, compiled)
    yield compile_ratio(f"{label}: compile", "x optax", seconds["ours"], seconds["optax"])


def _temporary(label: str, params: Any, compiled: dict[str, Any]) -> Metric:
    size = trees.nbytes(params)
    ours, theirs = (compiled[k].memory_analysis().temp_size_in_bytes for k in ("ours", "optax"))
    detail = {"ours_MB": ours / 1e6, "optax_MB": theirs / 1e6}
    return Metric(label, ours / size, "x params' bytes", tolerance=0.05, detail=detail)
