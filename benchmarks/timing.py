"""Time compiled functions in interleaved, repeated rounds, and compare the times per round."""

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
    """Size of the measurements; a smoke run only tests the benchmark."""

    smoke: bool = False
    solvers: tuple[str, ...] = ()  # names; all if empty

    def select(self, names: Iterable[str]) -> list[str]:
        """Select the solvers to run from the solvers of a case."""
        return [name for name in names if not self.solvers or name in self.solvers]

    @property
    def rounds(self) -> int:
        """Number of measurements of every variant."""
        return 3 if self.smoke else 15

    @property
    def seconds(self) -> float:
        """Approximate duration of one measurement, far above the resolution of the clock."""
        return 0.002 if self.smoke else 0.05

    @property
    def budget(self) -> float:
        """Seconds after which three rounds suffice; after three times this, one round suffices."""
        return 1.0 if self.smoke else 40.0

    @property
    def compilations(self) -> int:
        """Number of compilations of every variant."""
        return 1 if self.smoke else 3


def peer(name: str) -> Any:
    """Import another library, or skip the case."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Skipped(f"{name} is not installed") from None


class Step:
    """A training step with donated arguments, whose results are the arguments of the next call."""

    def __init__(self, step: Callable[..., Any], carry: tuple[Any, ...], *args: Any) -> None:
        self.step, self.carry, self.args = step, carry, args

    def __call__(self) -> Any:
        self.carry = jax.block_until_ready(self.step(*self.carry, *self.args))


def blocking(fn: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Return a function that calls `fn` and waits for the result."""
    return lambda: jax.block_until_ready(fn(*args))


def copy(tree: Any) -> Any:
    """Copy all arrays, because donation deletes the original buffers."""
    return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)


def compile_seconds(
    variants: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]], settings: Settings, **jit: Any
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the median seconds to compile each function, and the executables.

    Every compilation gets a new function object, because JAX caches traces by function identity.
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
    """Return the number of calls that take `seconds`; a warm-up call precedes the timed call."""
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
    """Measure the seconds per call of every variant in every round.

    Variants alternate (A B, B A, A B, ...), so that other load of the machine affects all variants
    equally. The garbage collector is disabled during the measurement.
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
    """Return the median over rounds of fnopt's time divided by the peer's time."""
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
    """Return fnopt's compile time divided by the peer's; too noisy to detect regressions."""
    detail = {"ours_ms": 1e3 * ours, "peer_ms": 1e3 * theirs}
    return Metric(name, ours / theirs, unit, tolerance=float("inf"), detail=detail)
