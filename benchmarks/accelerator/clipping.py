"""Sums of clipped per-example gradients: `clipped_grad` and `vmap(grad)` with explicit clipping."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks.accelerator.measure import (
    Call,
    Case,
    Run,
    compiled,
    largest_difference,
    seconds_per_step,
)
from benchmarks.cases import clipped_gradients as models

CLIP = models.CLIP


def by_hand(loss: Any) -> Any:
    """Sum of clipped gradients, with the gradients of all examples in memory."""

    def one(params: Any, example: Any) -> Any:
        grads = jax.grad(loss)(params, example)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        factor = jnp.minimum(1.0, CLIP / jnp.maximum(norm, 1e-12))
        return jax.tree.map(lambda g: factor * g, grads)

    def summed(params: Any, batch: Any) -> Any:
        each = jax.vmap(one, (None, 0))(params, batch)
        return jax.tree.map(lambda g: jnp.sum(g, axis=0), each)

    return summed


def cases(run: Run) -> Iterator[Case]:
    """Measure a multi-layer perceptron with a large batch, and a small transformer."""
    yield Case("perceptron 784-512-512-10, 1024 examples", lambda: measure(run, _dense(run)))
    yield Case(
        "transformer of two blocks, 32 examples",
        lambda: measure(run, models.transformer(run.smoke)),
    )


def _dense(run: Run) -> Any:
    return models.dense(run.smoke, examples=1024)


def functions(problem: Any) -> dict[str, Any]:
    """Return the plain gradient and all implementations of the clipped gradient, by name."""
    clipped = {
        m: (lambda p, b, m=m: fnopt.clipped_grad(problem.loss, CLIP, method=m)(p, b)[0])
        for m in ("auto", "ghost", "chunked")
    }
    return {
        "plain gradient": jax.grad(problem.total),
        **{f"clipped_grad, {m}": fn for m, fn in clipped.items()},
        "vmap(grad) by hand": by_hand(problem.loss),
    }


def measure(run: Run, problem: Any) -> list[dict[str, Any]]:
    """Return one row for each function: its time, memory and difference from `by_hand`."""
    args = (problem.params, problem.batch)
    programs = {name: compiled(fn, *args) for name, fn in functions(problem).items()}
    reference = programs["vmap(grad) by hand"].call(*args)
    errors = {name: largest_difference(p.call(*args), reference) for name, p in programs.items()}
    times = seconds_per_step({name: Call(p.call, *args) for name, p in programs.items()}, run)
    return [
        {"variant": name, **p.facts(), **times[name]}
        | ({} if name == "plain gradient" else {"difference": errors[name]})
        for name, p in programs.items()
    ]
