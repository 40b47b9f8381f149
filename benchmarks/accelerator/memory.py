"""Measure steps of many leaves, and steps that save memory: packed, offloaded, layered, 8-bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

import fnopt
from benchmarks.accelerator.measure import (
    Call,
    Case,
    Loop,
    Run,
    compiled,
    normal,
    peak_bytes,
    seconds_per_step,
)
from benchmarks.cases.optimizer_step import train_step
from benchmarks.timing import copy, peer
from benchmarks.trees import nbytes
from fnopt.transforms import _quantized_state

LAYERS = 24


def cases(run: Run) -> Iterator[Case]:
    """Measure the fast cases first."""
    yield Case("norm of 1e8 numbers", lambda: norms(run))
    yield Case("adamw, 2000 leaves of 4 x 4, packed", lambda: packed(run, 2000))
    optimizers = {
        "adamw": fnopt.adamw(1e-3),
        "8-bit lion": fnopt.quantized_state(fnopt.lion(1e-4), {"mu": "signed"}),
        "sgd": fnopt.sgd(1e-3),
    }
    yield Case("24 layers, 1e8 params", lambda: layered(run, optimizers))
    yield Case("adamw, 1e8 params, 24 leaves, state on the host", lambda: offloaded(run))
    on_host = {"adamw": fnopt.offloaded(fnopt.adamw(1e-3))}
    yield Case("24 layers, 1e8 params, state on the host", lambda: layered(run, on_host))
    yield Case("8-bit states, 1e8 params, 24 leaves", lambda: quantized(run))
    yield Case("adamw, 300 leaves of 4 x 4", lambda: packed(run, 300, tree=True, model=True))


def more_cases(run: Run) -> Iterator[Case]:
    """Measure a tree of 2,000 leaves, which takes minutes to compile."""
    yield Case("adamw, 2000 leaves of 4 x 4", lambda: packed(run, 2000, tree=True))


def norms(run: Run) -> list[dict[str, Any]]:
    """Measure `global_norm`, which can't overflow, and the square root of a sum of squares."""
    x = normal(0, (run.pick(10**8, 10**4),))
    fns = {"global_norm": fnopt.global_norm, "sum of squares": lambda x: jnp.sqrt(jnp.sum(x * x))}
    programs = {name: compiled(fn, x) for name, fn in fns.items()}
    times = seconds_per_step({n: Call(p.call, x) for n, p in programs.items()}, run)
    return [{"variant": n, "bytes": x.nbytes, **p.facts(), **times[n]} for n, p in programs.items()]


def steps(run: Run, variants: dict[str, tuple[Any, Any, Any, Any]]) -> list[dict[str, Any]]:
    """Time alternating steps `step(params, state, *args)` with donated `params` and `state`."""
    loops, rows = {}, {}
    for name, (step, init, params, args) in variants.items():
        params = copy(params)
        state = jax.jit(init)(params)
        program = compiled(step, params, state, *args, donate_argnums=(0, 1))
        peak, size = peak_bytes(program.call), nbytes(params)
        rows[name] = {"variant": name, **program.facts(), "peak_bytes": peak}
        rows[name] |= {"peak_of_params": peak / size if peak else None}
        loops[name] = Loop(program.call, (params, state), *args)
        del params, state
    times = seconds_per_step(loops, run)
    return [row | times[name] for name, row in rows.items()]


def packed(run: Run, leaves: int, tree: bool = False, model: bool = False) -> list[dict[str, Any]]:
    """Measure steps of packed arrays (with `model`: and its gradient), and of the tree."""
    optax = peer("optax")
    params = {f"w{i}": jnp.full((4, 4), 0.01 * i) for i in range(run.pick(leaves, 20))}
    tx = fnopt.packed(fnopt.adamw(1e-3), params)
    buffers = jax.jit(tx.pack)(params)

    def gradient_step(params: Any, state: Any) -> Any:
        """Compute the gradient and take a step."""
        loss = lambda p: sum(jnp.sum(x**4) for x in jax.tree.leaves(tx.unpack(p)))  # noqa: E731
        return train_step(tx, fnopt.apply_updates)(params, state, jax.grad(loss)(params))

    step = train_step(tx, fnopt.apply_updates)
    variants: dict[str, Any] = {"fnopt, packed": (step, tx.init, buffers, (buffers,))}
    if model:
        variants["fnopt, packed, with a gradient"] = gradient_step, tx.init, buffers, ()
    if tree:
        for name, plain, apply in (
            ("fnopt", fnopt.adamw(1e-3), fnopt.apply_updates),
            ("optax", optax.adamw(1e-3), optax.apply_updates),
        ):
            variants[name] = train_step(plain, apply), plain.init, params, (params,)
    return steps(run, variants)


def offloaded(run: Run) -> list[dict[str, Any]]:
    """Measure steps with the state on the device and on the host."""
    width = run.pick(2048, 16)
    params = {f"w{i}": normal(i, (width, width)) for i in range(LAYERS)}
    grads = {name: normal(LAYERS, (width, width)) for name in params}
    adamw = fnopt.adamw(1e-3)
    optimizers = {"on the device": adamw, "on the host": fnopt.offloaded(adamw)}
    return steps(
        run,
        {
            name: (train_step(tx, fnopt.apply_updates), tx.init, params, (grads,))
            for name, tx in optimizers.items()
        },
    )


def quantized(run: Run) -> list[dict[str, Any]]:
    """Measure float32 and 8-bit states; 8-bit steps are computed once, or twice as on a GPU."""
    width = run.pick(2048, 128)
    params = {f"w{i}": normal(i, (width, width)) for i in range(run.pick(LAYERS, 2))}
    grads = {name: normal(LAYERS, (width, width)) for name in params}
    adamw, lion = fnopt.adamw(1e-3), fnopt.lion(1e-4)
    optimizers = {
        "adamw": (adamw, False),
        "8-bit adamw, computed once": (fnopt.quantized_state(adamw), False),
        "8-bit adamw, computed twice": (fnopt.quantized_state(adamw), True),
        "lion": (lion, False),
        "8-bit lion, computed once": (fnopt.quantized_state(lion, {"mu": "signed"}), False),
        "8-bit lion, computed twice": (fnopt.quantized_state(lion, {"mu": "signed"}), True),
    }
    return steps(
        run,
        {
            name: (_repeated(train_step(tx, fnopt.apply_updates), twice), tx.init, params, (grads,))
            for name, (tx, twice) in optimizers.items()
        },
    )


def _repeated(step: Callable[..., Any], twice: bool) -> Callable[..., Any]:
    """Step in which `quantized_state` computes its slots twice if `twice`, otherwise once."""

    def repeated(*args: Any) -> Any:
        with mock.patch.object(_quantized_state, "_recomputes_step", return_value=twice):
            return step(*args)

    return repeated


def _first(outer: Any, x: Any) -> Any:
    return x * outer


def _layer(w: Any, h: Any, x: Any) -> Any:
    return h + jnp.tanh(h @ w)


def _last(outer: Any, h: Any, x: Any) -> Any:
    return jnp.mean((h * outer - 1) ** 2)


def _plain(tx: Any) -> Callable[..., Any]:
    """Step that computes the gradient of all layers, with rematerialized layers."""

    def loss(params: Any, x: Any) -> Any:
        outer, layers = params
        layer = jax.checkpoint(_layer)
        h, _ = jax.lax.scan(lambda h, w: (layer(w, h, x), None), _first(outer, x), layers)
        return _last(outer, h, x)

    def step(params: Any, state: Any, x: Any) -> Any:
        return train_step(tx, fnopt.apply_updates)(params, state, jax.grad(loss)(params, x))

    return step


def layered_variants(tx: Any) -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Return the plain step and the `layered_step` of stacked layers, with their `init`."""
    step = fnopt.layered_step(tx, first=_first, layer=_layer, last=_last)
    return {
        "plain": (_plain(tx), tx.init),
        "layered": (lambda p, s, x: step(p, s, x)[:2], step.init),
    }


def layered(run: Run, optimizers: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure `layered_step` and the plain step."""
    width = run.pick(2048, 64)
    params = jnp.ones(width), normal(0, (run.pick(LAYERS, 4), width, width))
    x = normal(1, (run.pick(64, 2), width))
    variants = {"plain, adamw": layered_variants(fnopt.adamw(1e-3))["plain"]}
    variants |= {f"layered, {n}": layered_variants(tx)["layered"] for n, tx in optimizers.items()}
    return steps(run, {n: (*variant, params, (x,)) for n, variant in variants.items()})
