"""Count memory traffic, kernels and peak memory of steps that XLA compiles for an absent GPU.

`python -m benchmarks.accelerator.without_card TARGET` prints the counts. TARGET is the description
of a card in XLA's repository (`xla/backends/gpu/target_config/specs/h100_sxm.txtpb`). The command
needs JAX's CUDA plugin (`jax-cuda12-plugin`, `jax-cuda12-pjrt`, `nvidia-cuda-nvcc-cu12`) and the
environment `JAX_PLATFORMS=cpu JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1`. Kernels and temporary buffers
agree with measurements on an H200.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.experimental import topologies

import fnopt
from benchmarks.accelerator.measure import kernels, peak_bytes, temporary_bytes
from benchmarks.accelerator.memory import LAYERS, layered_variants
from benchmarks.cases.optimizer_step import train_step

_BITS = {"pred": 8, "s4": 4, "u8": 8, "bf16": 16, "s32": 32, "u32": 32, "f32": 32}
_NO_WORK = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast"}
_LINE = re.compile(r"^ +(?:ROOT )?%?(\S+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)", re.M)


def traffic(text: str) -> float:
    """Count the bytes that kernels of a program read and write; a repeated operand counts once."""
    lines = _LINE.findall(text[text.index("\nENTRY ") :])
    sizes = {name: _bytes(kind) for name, kind, _, _ in lines}
    work = [(name, rest) for name, _, opcode, rest in lines if opcode not in _NO_WORK]
    operands = (sum(sizes.get(x, 0) for x in {*re.findall(r"%([\w.-]+)", r)}) for _, r in work)
    return sum(operands) + sum(sizes[name] for name, _ in work)


def _bytes(kind: str) -> float:
    total = 0.0
    for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", kind):
        count = functools.reduce(lambda n, axis: n * int(axis), filter(None, shape.split(",")), 1)
        total += count * _BITS.get(dtype, 0) / 8
    return total


def compiler(target: str) -> Callable[..., Any]:
    """Return a function that compiles `step(params, state, *args)` for a card, with donation."""
    topology = topologies.get_topology_desc("card", "cuda", target_config=target, topology="1x1x1")
    mesh = topologies.make_mesh(topology, (1,), ("card",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def compiled(step: Callable[..., Any], *args: Any) -> Any:
        placed = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), args
        )
        with mock.patch.object(jax, "default_backend", return_value="gpu"):
            traced = jax.jit(step, donate_argnums=(0, 1)).trace(*placed)
            return traced.lower(lowering_platforms=("cuda",)).compile()

    return compiled


def steps() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Yield optimizer steps of one and of several arrays, and training steps of stacked layers."""
    adamw, lion = fnopt.adamw(1e-3), fnopt.lion(1e-4)
    optimizers = {
        "adamw": adamw,
        "clip + adamw": fnopt.chain(fnopt.clip_by_global_norm(1.0), adamw),
        "lion": lion,
        "lamb": fnopt.lamb(1e-3),
        "8-bit adamw": fnopt.quantized_state(adamw),
        "4-bit adamw": fnopt.quantized_state(adamw, block_size=128, bits=4),
        "8-bit lion": fnopt.quantized_state(lion, {"mu": "signed"}),
        "4-bit lion": fnopt.quantized_state(lion, {"mu": "signed"}, 128, bits=4),
    }
    matrix = jax.ShapeDtypeStruct((2048, 2048), jnp.float32)
    trees = {
        "one array": {"w": jax.ShapeDtypeStruct((10**8,), jnp.float32)},
        "8 matrices": {f"w{i}": matrix for i in range(8)},
    }
    for name, tx in optimizers.items():
        for where, params in trees.items():
            step = train_step(tx, fnopt.apply_updates)
            yield f"{name}, {where}", step, (params, jax.eval_shape(tx.init, params), params)
    width = 3344  # 24 layers are 1.07 GB
    params = tuple(
        jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((width,), (LAYERS, width, width))
    )
    x = jax.ShapeDtypeStruct((64, width), jnp.float32)
    for name in ("adamw", "8-bit adamw", "4-bit adamw", "8-bit lion", "4-bit lion"):
        for form, (step, init) in layered_variants(optimizers[name]).items():
            state = jax.eval_shape(init, params)
            yield f"{name}, {LAYERS} layers, {form}", step, (params, state, x)


def main() -> None:
    """Print the table of all steps."""
    compiled = compiler(Path(sys.argv[1]).read_text())
    print("| step | bytes a param | kernels | temporaries, bytes a param | peak / params |")
    print("| --- | --- | --- | --- | --- |")
    for name, step, args in steps():
        program = compiled(step, *args)
        size = sum(x.size for x in jax.tree.leaves(args[0]))
        bytes_per_param = traffic(program.as_text()) / size
        temporary, peak = ((f(program) or 0) / size for f in (temporary_bytes, peak_bytes))
        row = f"{bytes_per_param:.1f} | {kernels(program)} | {temporary:.2f} | {peak / 4:.2f}"
        print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
