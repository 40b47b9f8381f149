"""Measure run time, compile time, kernels and temporary buffers of programs on any backend."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Run(NamedTuple):
    """Size of the measurement; with `smoke`, tiny sizes only test the benchmark."""

    smoke: bool

    def pick(self, full: Any, smoke: Any) -> Any:
        """Return `full` in a full run, and `smoke` in a smoke run."""
        return smoke if self.smoke else full

    @property
    def rounds(self) -> int:
        """Number of timings of each variant."""
        return self.pick(7, 2)

    @property
    def seconds(self) -> float:
        """Approximate duration of one timing."""
        return self.pick(0.08, 0.002)


class Case(NamedTuple):
    """A named measurement: `measure` returns one row (a dictionary of JSON values) per variant."""

    name: str
    measure: Callable[[], list[dict[str, Any]]]


class Compiled(NamedTuple):
    """An executable, its compile time, its number of kernels and its temporary buffers."""

    call: Any
    seconds: float
    kernels: int | None
    temporary: int | None

    def facts(self) -> dict[str, Any]:
        """Return the columns that describe the program."""
        return {
            "compile_s": self.seconds,
            "kernels": self.kernels,
            "temporary_bytes": self.temporary,
        }


def compiled(fn: Callable[..., Any], *args: Any, **jit: Any) -> Compiled:
    """Compile a function for arguments, which may be arrays or shapes."""
    start = time.perf_counter()
    program = jax.jit(fn, **jit).lower(*args).compile()
    seconds = time.perf_counter() - start
    return Compiled(program, seconds, kernels(program), temporary_bytes(program))


def temporary_bytes(program: Any) -> int | None:
    """Bytes of temporary buffers; None if the backend doesn't report them."""
    memory = getattr(program, "memory_analysis", lambda: None)()
    return getattr(memory, "temp_size_in_bytes", None)


def peak_bytes(program: Any) -> int | None:
    """Bytes of arguments, outputs and temporary buffers; donated arguments count once."""
    memory = getattr(program, "memory_analysis", lambda: None)()
    if memory is None:
        return None
    kinds = ("argument", "output", "temp")
    total = sum(getattr(memory, f"{kind}_size_in_bytes") for kind in kinds)
    return total - memory.alias_size_in_bytes


# Instructions of optimized HLO that launch no kernel.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = .*?(?:^|[\s)}\]])([a-z][a-z0-9\-]*)\(")
_CALLED = re.compile(r"(?:to_apply|calls)=%?([\w.\-]+)")


def kernels(program: Any) -> int | None:
    """Count the instructions of the optimized program's entry computation that launch kernels.

    A loop counts as one instruction. A call (such as a GPU's command buffer) counts as the
    instructions of the called computation.
    """
    try:
        text = program.as_text()
    except Exception:  # some backends can't print a compiled program
        return None
    bodies: dict[str, list[str]] = {}
    entry, lines = None, []
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" ") and not line.startswith("HloModule"):
            name = line.removeprefix("ENTRY ").split(" ")[0].split("(")[0].lstrip("%")
            lines = bodies.setdefault(name, [])
            entry = name if line.startswith("ENTRY") else entry
        else:
            lines.append(line)
    return None if entry is None else _work(bodies, entry)


def _work(bodies: dict[str, list[str]], name: str) -> int:
    total = 0
    for line in bodies.get(name, []):
        match = _INSTRUCTION.match(line)
        operation = match.group(1) if match else "parameter"
        called = _CALLED.search(line)
        if operation == "call" and called:
            total += _work(bodies, called.group(1))
        else:
            total += operation not in _FREE
    return total


class Loop:
    """A step with donated arguments, whose results are the arguments of the next step."""

    def __init__(self, step: Callable[..., Any], carry: tuple[Any, ...], *args: Any) -> None:
        self.step, self.carry, self.args = step, carry, args

    def times(self, n: int) -> float:
        """Take n steps, wait for the last result, and return the seconds."""
        start = time.perf_counter()
        for _ in range(n):
            self.carry = self.step(*self.carry, *self.args)
        jax.block_until_ready(self.carry)
        return time.perf_counter() - start


class Call(Loop):
    """A function that is called repeatedly with the same arguments."""

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        super().__init__(lambda *_: (fn(*args),), ())

    def times(self, n: int) -> float:
        """Call the function n times, discard the results, and return the seconds."""
        seconds = super().times(n)
        self.carry = ()
        return seconds


def seconds_per_step(loops: Mapping[str, Loop], run: Run) -> dict[str, dict[str, float]]:
    """Return median, minimum and maximum seconds per step of variants that alternate."""
    counts = {}
    for name, loop in loops.items():
        loop.times(1)
        counts[name] = min(500, max(1, round(run.seconds / max(loop.times(2) / 2, 1e-7))))
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for i in range(run.rounds):
        for name in list(loops)[:: 1 if i % 2 == 0 else -1]:
            seconds[name].append(loops[name].times(counts[name]) / counts[name])
    return {
        name: {"seconds": statistics.median(t), "least_s": min(t), "largest_s": max(t)}
        for name, t in seconds.items()
    }


def largest_difference(a: Any, b: Any) -> float:
    """Return the largest difference of two trees, relative to the largest element of `b`."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    host = [(jax.device_get(x), jax.device_get(y)) for x, y in pairs]
    top = max(float(abs(y).max()) for _, y in host)
    return max(float(abs(x - y).max()) for x, y in host) / top


def normal(seed: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """Create normal random numbers with standard deviation 0.02 on the device."""
    return (0.02 * jax.random.normal(jax.random.key(seed), shape)).astype(dtype)
