"""Time optimizer steps of fnopt and optax with donated params and state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import fnopt
from benchmarks.accelerator.measure import Case, Loop, Run, compiled, normal, seconds_per_step
from benchmarks.cases.optimizer_step import train_step
from benchmarks.timing import copy, peer
from benchmarks.trees import nbytes

DECAY = 1e-2
MB, GB = 10**6, 10**9
LOOPED = 10  # steps of one program, so that the launch of the program takes little of the time

# Optimizers with the same name and arguments in fnopt and optax, as functions of the library.
ALIKE: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda m: m.sgd(1e-3, momentum=0.9),
    "adamw": lambda m: m.adamw(1e-3, weight_decay=DECAY),
    "clip + adamw": lambda m: m.chain(
        m.clip_by_global_norm(1.0), m.adamw(1e-3, weight_decay=DECAY)
    ),
    "lion": lambda m: m.lion(1e-4, weight_decay=DECAY),
    "lamb": lambda m: m.lamb(1e-3, weight_decay=DECAY),
}


def variants(name: str) -> dict[str, Any]:
    """Return the optimizers of a case: fnopt's variants, and optax's optimizer if it exists."""
    optax = peer("optax")
    if name == "muon":
        from optax import contrib

        bfloat16 = fnopt.muon(1e-3, orthogonalizer=fnopt.orthogonalize(ns_dtype=jnp.bfloat16))
        return {
            "fnopt": fnopt.muon(1e-3),
            "fnopt, bfloat16 products": bfloat16,
            "optax": contrib.muon(1e-3),
        }
    if name == "8-bit adamw":
        return {"fnopt": fnopt.quantized_state(ALIKE["adamw"](fnopt))}
    return {"fnopt": ALIKE[name](fnopt), "optax": ALIKE[name](optax)}


def shapes(total: int, leaves: int) -> list[tuple[int, ...]]:
    """Return shapes of equally many matrices and vectors, or of one vector for one leaf."""
    if leaves == 1:
        return [(total,)]
    matrices = leaves // 2
    width = 2 ** (int((total / matrices) ** 0.5).bit_length() - 1)
    rows = max(1, total // matrices // width)
    return [(rows, width), (width,)] * matrices


def minimum_bytes(name: str, params: Any, state: Any, grads: Any) -> int:
    """Bytes that a step must move: reads and writes of params and state, reads of gradients.

    A global norm reads the gradients a second time. LAMB's norms of leaves read params and moments
    a second time.
    """
    step_bytes = 2 * nbytes(params) + 2 * nbytes(state) + nbytes(grads)
    if name == "clip + adamw":
        return step_bytes + nbytes(grads)
    return step_bytes + (nbytes(params) + nbytes(state) if name == "lamb" else 0)


def step_case(run: Run, name: str, total: int, leaves: int, dtype: str = "float32") -> Case:
    """Case for one optimizer and one tree; many leaves are also stepped as one buffer."""
    if run.smoke:
        total, leaves = total // 10_000, min(leaves, 30)
    sizes = [(run.pick(2048, 32),) * 2] * 8 if name == "muon" else shapes(total, leaves)
    size = f"{sum(map(math.prod, sizes)):.1e}".replace("e+0", "e")
    label = f"{name}, {size} {dtype} params, leaves: {len(sizes)}"
    return Case(label, lambda: compare(run, name, sizes, dtype, many=leaves in (30, 300)))


def cases(run: Run) -> Iterator[Case]:
    """Measure 100 million params first, which are fast to measure and memory-bound."""
    names = [*ALIKE, "8-bit adamw", "muon"]
    yield step_case(run, "adamw", 100 * MB, 1)
    yield step_case(run, "adamw", 100 * MB, 300)
    yield from (step_case(run, n, 100 * MB, 1) for n in names if n != "adamw")
    yield step_case(run, "adamw", 100 * MB, 1, "bfloat16")
    yield from (step_case(run, n, 100 * MB, 300) for n in ("clip + adamw", "sgd", "lion"))
    yield from (step_case(run, "adamw", 10 * MB, leaves) for leaves in (1, 300))


def more_cases(run: Run) -> Iterator[Case]:
    """Measure the slow cases: a billion params, and 3,000 leaves."""
    yield from (step_case(run, name, GB, 1) for name in ("adamw", "sgd", "lion"))
    yield step_case(run, "lamb", 100 * MB, 300)
    yield step_case(run, "adamw", 100 * MB, 300, "bfloat16")
    yield from (step_case(run, n, 10 * MB, 1) for n in ("sgd", "clip + adamw", "lion"))
    yield step_case(run, "adamw", 100 * MB, 3000)


def many_steps(step: Any) -> Any:
    """Run `LOOPED` steps in a loop on the device, without the host between the steps."""

    def steps(params: Any, state: Any, grads: Any) -> Any:
        return jax.lax.fori_loop(0, LOOPED, lambda _, carry: step(*carry, grads), (params, state))

    return steps


def compare(
    run: Run, name: str, sizes: list[tuple[int, ...]], dtype: str, many: bool
) -> list[dict[str, Any]]:
    """Time all variants of an optimizer on one tree; the variants alternate.

    Many leaves have two more variants: a step of one buffer, and steps in a loop on the device.
    """
    optimizers = variants(name)
    if many:
        optimizers["fnopt, flatten"] = fnopt.flatten(optimizers["fnopt"])

    def tree(seed: int) -> dict[str, jax.Array]:
        return {f"w{i}": normal(seed + i, s, dtype) for i, s in enumerate(sizes)}

    grads, loops, rows = tree(1_000_000), {}, {}
    size = sum(x.size for x in grads.values())
    for variant, tx in optimizers.items():
        params, step = tree(0), train_step(tx, fnopt.apply_updates)
        state = jax.jit(tx.init)(params)
        step_bytes = minimum_bytes(name, params, state, grads)
        functions = {variant: (step, 1)}
        if many and name == "adamw":
            functions[f"{variant}, looped"] = (many_steps(step), LOOPED)
        for label, (fn, steps) in functions.items():
            program = compiled(fn, params, state, grads, donate_argnums=(0, 1))
            row = {"variant": label, "params": size, "bytes": step_bytes, "steps": steps}
            rows[label] = row | program.facts()
            # Each function donates its carry, so two functions need two copies.
            carry = copy((params, state)) if len(functions) > 1 else (params, state)
            loops[label] = Loop(program.call, carry, grads)
            del carry
        del params, state
    times = seconds_per_step(loops, run)
    return [
        row | {key: t / row["steps"] for key, t in times[label].items()}
        for label, row in rows.items()
    ]
