"""Measure the bandwidth and the matrix-product rate of the device."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator.measure import Call, Case, Loop, Run, normal, seconds_per_step


def cases(run: Run) -> Iterator[Case]:
    """List versions, then measure the peak rates."""
    yield Case("versions", versions)
    yield Case("copy", lambda: copy(run))
    for dtype, precision in (("float32", "highest"), ("float32", None), ("bfloat16", None)):
        label = f"matmul {dtype}" + (f" {precision}" if precision else "")
        yield Case(label, lambda d=dtype, p=precision: matmul(run, d, p))


def versions() -> list[dict[str, Any]]:
    """Return the name of the device and the versions of the packages."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for package in ("jax", "jaxlib", "optax", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    device = jax.devices()[0]
    return [{"platform": device.platform, "device": device.device_kind} | versions]


def copy(run: Run) -> list[dict[str, Any]]:
    """Measure the bytes read and written per second by y = x + 1, with and without donation."""
    size = run.pick(2**29, 2**16)  # 2 GiB of float32: far beyond any cache

    def add_one(x: Any) -> tuple[Any]:
        return (x + 1.0,)

    x = jnp.zeros(size)
    undonated = jax.jit(add_one)
    loops = {
        "donated": Loop(jax.jit(add_one, donate_argnums=0), (jnp.zeros(size),)),
        "not donated": Call(lambda: undonated(x)),
    }
    times = seconds_per_step(loops, run)
    return [
        {"variant": name, "bytes": 2 * x.nbytes, "bandwidth": 2 * x.nbytes / t["seconds"]} | t
        for name, t in times.items()
    ]


def matmul(run: Run, dtype: str, precision: str | None) -> list[dict[str, Any]]:
    """Measure the floating-point operations per second of a product of square matrices."""
    n = run.pick(8192, 128)
    a, b = (normal(seed, (n, n), dtype) for seed in (0, 1))
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    t = seconds_per_step({"matmul": Call(product, a, b)}, run)["matmul"]
    return [{"variant": f"{n} x {n}", "flops": 2 * n**3, "rate": 2 * n**3 / t["seconds"]} | t]
