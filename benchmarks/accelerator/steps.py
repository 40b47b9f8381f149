"""One optimizer step with donated params and state: fnopt beside optax, against the memory."""

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
LOOPED = 10  # steps of one program, enough to hide its own launch

# Every optimizer as fnopt and optax spell it alike, from the module that has the names.
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
    """The optimizers of one case: fnopt, optax where it has the algorithm, and fnopt's own."""
    optax = peer("optax")
    if name == "muon":
        from optax import contrib

        narrow = fnopt.muon(1e-3, orthogonalizer=fnopt.orthogonalize(ns_dtype=jnp.bfloat16))
        return {
            "fnopt": fnopt.muon(1e-3),
            "fnopt, bfloat16 products": narrow,
            "optax": contrib.muon(1e-3),
        }
    if name == "8-bit adamw":
        return {"fnopt": fnopt.quantized_state(ALIKE["adamw"](fnopt))}
    return {"fnopt": ALIKE[name](fnopt), "optax": ALIKE[name](optax)}


def shapes(total: int, leaves: int) -> list[tuple[int, ...]]:
    """Matrices and as many vectors, like the layers of a network; one vector for one leaf."""
    if leaves == 1:
        return [(total,)]
    matrices = leaves // 2
    width = 2 ** (int((total / matrices) ** 0.5).bit_length() - 1)
    rows = max(1, total // matrices // width)
    return [(rows, width), (width,)] * matrices


def least_bytes(name: str, params: Any, state: Any, grads: Any) -> int:
    """Bytes that the formula has to move: params and state in and out, gradients in.

    A global norm reads the gradients once more; LAMB's norms of whole leaves read params and
    moments once more.
    """
    once = 2 * nbytes(params) + 2 * nbytes(state) + nbytes(grads)
    if name == "clip + adamw":
        return once + nbytes(grads)
    return once + (nbytes(params) + nbytes(state) if name == "lamb" else 0)


def step_case(run: Run, name: str, total: int, leaves: int, dtype: str = "float32") -> Case:
    """A case of the usual trees; three hundred leaves are also stepped as one buffer."""
    if run.smoke:
        total, leaves = total // 10_000, min(leaves, 30)
    sizes = [(run.pick(2048, 32),) * 2] * 8 if name == "muon" else shapes(total, leaves)
    size = f"{sum(map(math.prod, sizes)):.1e}".replace("e+0", "e")
    label = f"{name}, {size} {dtype} params, leaves: {len(sizes)}"
    return Case(label, lambda: compare(run, name, sizes, dtype, many=leaves in (30, 300)))


def cases(run: Run) -> Iterator[Case]:
    """Hundred millions first: small enough to be quick, large enough to be bound by memory."""
    names = [*ALIKE, "8-bit adamw", "muon"]
    yield step_case(run, "adamw", 100 * MB, 1)
    yield step_case(run, "adamw", 100 * MB, 300)
    yield from (step_case(run, n, 100 * MB, 1) for n in names if n != "adamw")
    yield step_case(run, "adamw", 100 * MB, 1, "bfloat16")
    yield from (step_case(run, n, 100 * MB, 300) for n in ("clip + adamw", "sgd", "lion"))
    yield from (step_case(run, "adamw", 10 * MB, leaves) for leaves in (1, 300))


def more_cases(run: Run) -> Iterator[Case]:
    """Cases that take long, for the end: a billion params, and thousands of leaves."""
    yield from (step_case(run, name, GB, 1) for name in ("adamw", "sgd", "lion"))
    yield step_case(run, "lamb", 100 * MB, 300)
    yield step_case(run, "adamw", 100 * MB, 300, "bfloat16")
    yield from (step_case(run, n, 10 * MB, 1) for n in ("sgd", "clip + adamw", "lion"))
    yield step_case(run, "adamw", 100 * MB, 3000)


def many_steps(step: Any) -> Any:
    """Steps in a loop on the device, where the host has nothing to do between them."""

    def steps(params: Any, state: Any, grads: Any) -> Any:
        return jax.lax.fori_loop(0, LOOPED, lambda _, carry: step(*carry, grads), (params, state))

    return steps


def compare(
    run: Run, name: str, sizes: list[tuple[int, ...]], dtype: str, many: bool
) -> list[dict[str, Any]]:
    """Rows of all variants of one optimizer on one tree, timed in turns.

    For many leaves there are two more: the step on one buffer, and steps in a loop on the device.
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
        moved = least_bytes(name, params, state, grads)
        ways = {variant: (step, 1)}
        if many and name == "adamw":
            ways[f"{variant}, looped"] = (many_steps(step), LOOPED)
        for way, (fn, steps) in ways.items():
            program = compiled(fn, params, state, grads, donate_argnums=(0, 1))
            row = {"variant": way, "params": size, "bytes": moved, "steps": steps}
            rows[way] = row | program.facts()
            carry = copy((params, state)) if len(ways) > 1 else (params, state)
            loops[way] = Loop(program.call, carry, grads)
            del carry
        del params, state
    times = seconds_per_step(loops, run)
    return [
        row | {key: t / row["steps"] for key, t in times[way].items()} for way, row in rows.items()
    ]
