"""Measure Adam with float32, bfloat16 and 8-bit state, and sparse updates of an embedding table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks import trees
from benchmarks.cases.optimizer_step import train_step
from benchmarks.metric import Metric
from benchmarks.timing import Settings, Step, copy, interleave, ratio


def precisions() -> dict[str, Any]:
    """Return Adam with states and params of different precision."""
    adam = fnopt.adam(1e-3)
    both = {"mu": "bfloat16", "nu": "bfloat16"}
    return {
        "float32": adam,
        "bfloat16 slots": fnopt.precision_policy(adam, both),
        "bfloat16 slots, rounded at random": fnopt.precision_policy(adam, both, key=0),
        "8-bit slots": fnopt.quantized_state(adam),
        "bfloat16 params, kahan": fnopt.kahan(adam),
        "bfloat16 params, master_copy": fnopt.master_copy(adam),
        "bfloat16 params, stochastic_rounding": fnopt.stochastic_rounding(adam),
    }


def run(settings: Settings) -> Iterator[Metric]:
    """Measure steps and state of Adam, then an embedding table."""
    wide = trees.one_leaf(2**14 if settings.smoke else 2**22)
    steps, sizes = {}, {}
    for name, tx in precisions().items():
        narrow = name.startswith("bfloat16 params")
        params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide) if narrow else wide
        state = tx.init(params)
        sizes[name] = trees.nbytes(state) / wide["w"].size
        step = jax.jit(train_step(tx, fnopt.apply_updates), donate_argnums=(0, 1))
        steps[name] = Step(step, (copy(params), state), copy(params))
    times = interleave(steps, settings)
    for name in list(steps)[1:]:
        label = f"adam, {name}"
        detail = {"bytes_per_param": sizes[name], "float32_bytes_per_param": sizes["float32"]}
        relative = sizes[name] / sizes["float32"]
        yield Metric(f"{label}: state", relative, "x float32", tolerance=0.01, detail=detail)
        yield ratio(f"{label}: run", "x float32", times[name], times["float32"], tolerance=0.5)
    yield from _table(settings)


def lookup_loss(params: Any, ids: Any) -> Any:
    """Loss with little work in addition to the lookup of rows."""
    return jnp.sum(params["w"][ids] ** 2)


def table_step(tx: Any, value_and_grad: Any) -> Any:
    """Return a step that computes gradient and update."""

    def step(params: Any, state: Any, ids: Any) -> tuple[Any, Any]:
        updates, state = tx.update(value_and_grad(params, ids)[1], state, params)
        return fnopt.apply_updates(params, updates), state

    return step


def _table(settings: Settings) -> Iterator[Metric]:
    rows, width, touched = (10_000, 64, 64) if settings.smoke else (1_000_000, 64, 4096)
    table = {"w": jnp.ones((rows, width))}
    ids = jax.random.randint(jax.random.key(0), (touched,), 0, rows)
    sparse = fnopt.sparse_value_and_grad(lookup_loss, "w")
    for name, tx in {"adam": fnopt.adam(1e-3), "adagrad": fnopt.adagrad(1e-3)}.items():
        functions = {
            "dense": table_step(tx, jax.value_and_grad(lookup_loss)),
            "rows": table_step(fnopt.sparse_rows(tx), sparse),
        }
        states = {"dense": tx.init(table), "rows": fnopt.sparse_rows(tx).init(table)}
        steps = {
            kind: Step(jax.jit(fn, donate_argnums=(0, 1)), (copy(table), states[kind]), ids)
            for kind, fn in functions.items()
        }
        seconds = interleave(steps, settings)
        label = f"{name}, {touched} of {rows} rows: run"
        yield ratio(label, "x dense step", seconds["rows"], seconds["dense"], tolerance=1.0)
