"""Measure matrix-free Levenberg-Marquardt steps of a network with a million params."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks.accelerator.measure import Call, Case, Loop, Run, compiled, normal, seconds_per_step
from benchmarks.trainers import regression


def cases(run: Run) -> Iterator[Case]:
    """Measure one network on one batch."""
    yield Case("network of a million params, 2048 examples", lambda: measure(run))


def measure(run: Run) -> list[dict[str, Any]]:
    """Time the matrix-free step and one gradient; record the loss before and after the steps."""
    widths = run.pick((64, 968, 968, 1), (4, 8, 1))
    params = [
        {"w": normal(k, (n, m)) * 50 / n**0.5, "b": jnp.zeros(m)}
        for k, (n, m) in enumerate(itertools.pairwise(widths))
    ]
    x = 50 * normal(10, (run.pick(2048, 16), widths[0]))
    y = jnp.sin(x[:, 0]) * x[:, 1]
    tx = fnopt.levenberg_marquardt(linear_solver="cg")

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = tx.update(None, state, params, residual_fn=lambda p: regression(p, x, y))
        return fnopt.apply_updates(params, updates), state

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean(regression(params, x, y) ** 2)

    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    state = jax.jit(tx.init)(params)
    lm = compiled(step, params, state, x, y, donate_argnums=(0, 1))
    gradient = compiled(jax.grad(loss), params, x, y)
    before, copied = float(loss(params, x, y)), jax.tree.map(jnp.copy, params)
    loops = {
        "LM step, cg": Loop(lm.call, (params, state), x, y),
        "gradient": Call(gradient.call, copied, x, y),
    }
    times = seconds_per_step(loops, run)
    after = float(loss(loops["LM step, cg"].carry[0], x, y))
    facts = {
        "LM step, cg": lm.facts() | {"loss_before": before, "loss_after": after},
        "gradient": gradient.facts(),
    }
    return [{"variant": n, "params": size, **facts[n], **t} for n, t in times.items()]
