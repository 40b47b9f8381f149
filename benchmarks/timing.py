"""How times are taken: compiled first, interleaved, repeated, and compared round by round."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.metric import Metric, Skipped


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to measure: a smoke run only shows that everything works."""

    smoke: bool = False
    solvers: tuple[str, ...] = ()  # names; all if empty

    def chosen(self, names: Iterable[str]) -> list[str]:
        """The names of solvers to run, of those that a case has."""
        return [name for name in names if not self.solvers or name in self.solvers]

    @property
    def rounds(self) -> int:
        """How often every variant is measured."""
        return 3 if self.smoke else 15

    @property
    def seconds(self) -> float:
        """How long one measurement lasts at least, so that the clock's steps do not matter."""
        return 0.002 if self.smoke else 0.05

    @property
    def budget(self) -> float:
        """Seconds after which three rounds are enough; after three times that, one round is."""
        return 1.0 if self.smoke else 40.0

    @property
    def compilations(self) -> int:
        """How often every variant is compiled for the compile time."""
        return 1 if self.smoke else 3


def peer(name: str) -> Any:
    """Imports a peer library, or skips the case."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Skipped(f"{name} is not installed") from None


class Step:
    """A donated training step that keeps what it gives back, and waits for it."""

    def __init__(self, step: Callable[..., Any], carry: tuple[Any, ...], *args: Any) -> None:
        self.step, self.carry, self.args = step, carry, args

    def __call__(self) -> Any:
        self.carry = jax.block_until_ready(self.step(*self.carry, *self.args))


def blocking(fn: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """A call that waits for its result."""
    return lambda: jax.block_until_ready(fn(*args))


def copy(tree: Any) -> Any:
    """Fresh buffers, because donated ones are gone afterwards."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def compile_seconds(
    variants: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]], settings: Settings, **jit: Any
) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds from Python function to executable (median), and the executables.

    A fresh function object each time, or else JAX would answer from its caches.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    compiled = {}
    for _ in range(settings.compilations):
        for name, (fn, args) in variants.items():
            jax.clear_caches()
            start = time.perf_counter()
            compiled[name] = jax.jit(lambda *a, fn=fn: fn(*a), **jit).lower(*args).compile()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}, compiled


def _repetitions(fn: Callable[[], Any], seconds: float) -> int:
    """How many calls last that long; measured after a warm-up, unless a single one is that long."""
    lasted = 0.0
    for _ in range(2):
        start = time.perf_counter()
        fn()
        lasted = time.perf_counter() - start
        if lasted > 10 * seconds:
            return 1
    return max(1, round(seconds / max(lasted, 1e-9)))


def interleave(
    variants: dict[str, Callable[[], Any]], settings: Settings
) -> dict[str, list[float]]:
    """Seconds per call of every variant, round by round.

    Variants take turns (A B, B A, A B, ...), so that whatever else the machine does meets all
    of them alike; the garbage collector waits.
    """
    repetitions = {name: _repetitions(fn, settings.seconds) for name, fn in variants.items()}
    times: dict[str, list[float]] = {name: [] for name in variants}
    gc.collect()
    gc.disable()
    try:
        begin = time.perf_counter()
        for i in range(settings.rounds):
            spent = time.perf_counter() - begin
            if spent > (settings.budget if i >= 3 else 3 * settings.budget):
                break
            for name in list(variants)[:: 1 if i % 2 == 0 else -1]:
                start = time.perf_counter()
                for _ in range(repetitions[name]):
                    variants[name]()
                times[name].append((time.perf_counter() - start) / repetitions[name])
    finally:
        gc.enable()
    return times


def ratio(name: str, unit: str, ours: list[float], theirs: list[float], **kwargs: Any) -> Metric:
    """The median over the rounds of our time over the peer's in the same round."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    quarter = len(ratios) // 4
    return Metric(
        name,
        statistics.median(ratios),
        unit,
        spread=(ratios[quarter], ratios[-1 - quarter]),
        detail={
            "ours_ms": 1e3 * statistics.median(ours),
            "peer_ms": 1e3 * statistics.median(theirs),
        },
        **kwargs,
    )


def compile_ratio(name: str, unit: str, ours: float, theirs: float) -> Metric:
    """Our compile time over the peer's; shown, but too noisy to be held against anybody."""
    detail = {"ours_ms": 1e3 * ours, "peer_ms": 1e3 * theirs}
    return Metric(name, ours / theirs, unit, tolerance=float("inf"), detail=detail)
