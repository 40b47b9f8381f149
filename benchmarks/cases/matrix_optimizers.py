"""Compare time and program size of a Muon step on the layers of a transformer with optax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

import fnopt
from benchmarks import trees
from benchmarks.cases.optimizer_step import train_step
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
from fnopt.programs import jaxprs


def run(settings: Settings) -> Iterator[Metric]:
    """Measure the time of Muon on 12 layers, and its program on 24 layers."""
    optax = peer("optax")
    width, layers = (8, 2) if settings.smoke else (192, 12)
    params = trees.transformer(width, layers, 2 * width)["layers"]
    yield from _time("muon", params, fnopt.muon(0.02), optax.contrib.muon(0.02), optax, settings)
    yield _program("muon", fnopt.muon(0.02), optax.contrib.muon(0.02), optax)


def _time(
    name: str, params: Any, ours: Any, theirs: Any, optax: Any, settings: Settings
) -> Iterator[Metric]:
    label, grads = f"{name}, {len(params)} layers", trees.like(params)
    steps = {
        "ours": (train_step(ours, fnopt.apply_updates), (params, ours.init(params), grads)),
        "optax": (train_step(theirs, optax.apply_updates), (params, theirs.init(params), grads)),
    }
    seconds, compiled = compile_seconds(steps, settings, donate_argnums=(0, 1))
    variants = {k: Step(compiled[k], (copy(params), copy(steps[k][1][1])), grads) for k in compiled}
    times = interleave(variants, settings)
    yield ratio(f"{label}: run", "x optax", times["ours"], times["optax"])
    yield compile_ratio(f"{label}: compile", "x optax", seconds["ours"], seconds["optax"])
    yield _temporaries(f"{label}: temporaries", params, compiled)


def _temporaries(name: str, params: Any, compiled: dict[str, Any]) -> Metric:
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    relative = {k: c.memory_analysis().temp_size_in_bytes / size for k, c in compiled.items()}
    return Metric(name, relative["ours"], "x params", detail=relative)


def _program(name: str, ours: Any, theirs: Any, optax: Any) -> Metric:
    params = trees.transformer(8, 24, 16)["layers"]
    sizes = [
        jaxprs.program_size(
            jax.make_jaxpr(train_step(tx, apply))(
                params, jax.eval_shape(tx.init, params), params
            ).jaxpr
        )
        for tx, apply in ((ours, fnopt.apply_updates), (theirs, optax.apply_updates))
    ]
    detail = {"ours": float(sizes[0]), "optax": float(sizes[1])}
    return Metric(f"{name}, 24 layers: equations", sizes[0] / sizes[1], "x optax", detail=detail)
