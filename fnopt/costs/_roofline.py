"""Work counts, and the roofline model, which yields a lower bound of the run time."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Work:
    """Counts of FLOPs, transcendentals and bytes, with addition and scaling.

    Attributes:
        matmul_flops: FLOPs of matrix products and convolutions; a multiply-add counts as two.
        elementwise_flops: All other FLOPs.
        transcendentals: Evaluations of exp, log, tanh, sqrt, ...
        bytes: Memory traffic if all elementwise operations are fused.
    """

    matmul_flops: int = 0
    elementwise_flops: int = 0
    transcendentals: int = 0
    bytes: int = 0

    @property
    def flops(self) -> int:
        """All floating-point operations except transcendental ones."""
        return self.matmul_flops + self.elementwise_flops

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte; infinite without memory traffic."""
        if self.bytes:
            return self.flops / self.bytes
        return float("inf") if self.flops else 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.matmul_flops + other.matmul_flops,
            self.elementwise_flops + other.elementwise_flops,
            self.transcendentals + other.transcendentals,
            self.bytes + other.bytes,
        )

    def __sub__(self, other: Work) -> Work:
        return self + other * -1

    def __mul__(self, times: int) -> Work:
        return Work(
            self.matmul_flops * times,
            self.elementwise_flops * times,
            self.transcendentals * times,
            self.bytes * times,
        )

    def at_least(self, other: Work) -> Work:
        """Elementwise maximum of two work counts."""
        amounts = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Work(*map(max, amounts))


@dataclasses.dataclass(frozen=True)
class Hardware:
    r"""Peak rates of a machine, from which the roofline time of a program is computed.

    .. math:: t = \max\left(\frac{F_\mathrm{matmul}}{\mathrm{flops}} +
              \frac{F_\mathrm{other}}{\mathrm{vector\_flops}},\
              \frac{B}{\mathrm{bandwidth}}\right)

    The roofline time is a lower bound, because it assumes that arithmetic and memory traffic
    overlap perfectly, and omits all other costs. A transcendental function is counted as one
    operation of the vector units.

    Args:
        flops: Matrix-product rate in FLOP/s, for the dtype in use.
        bandwidth: Memory bandwidth in byte/s.
        vector_flops: Rate of all other arithmetic in FLOP/s; `flops` by default.
        name: The name in tables.

    Raises:
        ValueError: If a rate isn't positive.

    Example:
        >>> from fnopt.costs import Hardware, Work
        >>> machine = Hardware(flops=1e12, bandwidth=1e11)
        >>> machine.seconds(Work(matmul_flops=4_000_000_000, bytes=1_000_000)), machine.ridge
        (0.004, 10.0)
        >>> machine.limit(Work(matmul_flops=1_000, bytes=1_000_000))
        'memory'

    Reference:
        Williams, Waterman and Patterson, 2009, "Roofline: an insightful visual performance model
        for multicore architectures".
    """

    flops: float
    bandwidth: float
    vector_flops: float | None = None
    name: str = "machine"

    def __post_init__(self) -> None:
        for rate in ("flops", "bandwidth", "vector_flops"):
            value = getattr(self, rate)
            if value is not None and not value > 0:
                raise ValueError(f"Hardware: {rate} is {value!r}, expected a rate above 0.")

    @property
    def ridge(self) -> float:
        """Arithmetic intensity (FLOP/byte) above which a program is compute-bound."""
        return self.flops / self.bandwidth

    def seconds(self, work: Work) -> float:
        """Roofline time: a lower bound of the run time of the work."""
        return max(self._arithmetic(work), work.bytes / self.bandwidth)

    def limit(self, work: Work) -> str:
        """Bottleneck: `'compute'` or `'memory'`."""
        return "compute" if self._arithmetic(work) > work.bytes / self.bandwidth else "memory"

    def _arithmetic(self, work: Work) -> float:
        other = work.elementwise_flops + work.transcendentals
        return work.matmul_flops / self.flops + other / (self.vector_flops or self.flops)


def measure_hardware(dtype: Any = jnp.float32, size: int = 2048, repeats: int = 5) -> Hardware:
    """Measure the rates of this machine with a matrix product and an addition of large vectors.

    Args:
        dtype: The dtype of the matrices.
        size: Rows of the square matrices; the vectors have `8 * size**2` elements.
        repeats: Number of measurements, of which the median is used.

    Returns:
        A `Hardware` named after JAX's default device.

    Example:
        >>> from fnopt.costs import measure_hardware
        >>> machine = measure_hardware(size=64, repeats=1)
        >>> machine.flops > 0, machine.bandwidth > 0
        (True, True)
    """
    # The default size fully utilizes an accelerator, and its vectors exceed every cache.
    a = jnp.ones((size, size), dtype)
    x = jnp.ones((8 * size**2,), dtype)
    matmul = _median_seconds(jax.jit(jnp.matmul), (a, a), repeats)
    add = _median_seconds(jax.jit(jnp.add), (x, x), repeats)
    return Hardware(
        flops=2 * size**3 / matmul,
        bandwidth=3 * x.nbytes / add,  # two reads and a write
        vector_flops=None,
        name=jax.devices()[0].device_kind,
    )


def _median_seconds(fn: Callable[..., Any], args: tuple[Any, ...], repeats: int) -> float:
    jax.block_until_ready(fn(*args))  # compile before the measurement
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(fn(*args))
        times.append(time.perf_counter() - start)
    return statistics.median(times)
