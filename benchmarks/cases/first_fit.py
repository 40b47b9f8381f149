"""Measure the CPU time from the start of a process to its first fits.

Each process imports a library and fits a decay to 40 points, then another model, then the first
model to 39 points. Compiled programs aren't cached on disk.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.metric import Metric
from benchmarks.timing import Settings, peer

_DATA = """
import time
import numpy as np
x = np.linspace(0, 4, 40)
y = 3 * np.exp(-0.7 * x) + 0.5 + 0.02 * np.random.default_rng(0).standard_normal(40)
"""

_FNOPT = """
import jax.numpy as jnp
import fnopt
times = []
def decay(x, a, b, c):
    return a * jnp.exp(-b * x) + c
def pure(x, a, b):
    return a * jnp.exp(-b * x)
for model, n in ((decay, 40), (pure, 40), (decay, 39)):
    params, covariance = fnopt.curve_fit(model, x[:n], y[:n])
    times.append(time.process_time())
"""

_OPTIMISTIX = """
import jax.numpy as jnp
import optimistix
times = []
def decay(p, data):
    x, y = data
    return p[0] * jnp.exp(-p[1] * x) + p[2] - y
def pure(p, data):
    x, y = data
    return p[0] * jnp.exp(-p[1] * x) - y
solver = optimistix.LevenbergMarquardt(rtol=1e-6, atol=1e-6)
for fn, n, k in ((decay, 40, 3), (pure, 40, 2), (decay, 39, 3)):
    data = jnp.asarray(x[:n]), jnp.asarray(y[:n])
    found = optimistix.least_squares(fn, solver, jnp.ones(k), data).value.block_until_ready()
    times.append(time.process_time())
"""

_SCIPY = """
from scipy.optimize import curve_fit
times = []
def decay(x, a, b, c):
    return a * np.exp(-b * x) + c
def pure(x, a, b):
    return a * np.exp(-b * x)
for model, n in ((decay, 40), (pure, 40), (decay, 39)):
    curve_fit(model, x[:n], y[:n])
    times.append(time.process_time())
"""

_NAMES = ("import", "first fit", "another model", "another length")


def run(settings: Settings) -> Iterator[Metric]:
    """Compare the CPU times of the first fit (with the start of the process) and of two more."""
    programs = {"ours": _FNOPT}
    for name, program in (("optimistix", _OPTIMISTIX), ("scipy", _SCIPY)):
        peer(name)
        programs[name] = program
    rounds = [
        {name: _measure(program) for name, program in programs.items()}
        for _ in range(1 if settings.smoke else 5)
    ]
    for part in ("start to first fit", "another model", "another length"):
        seconds = {
            name: statistics.median(measured[name][part] for measured in rounds)
            for name in programs
        }
        detail = {f"{name}_s": value for name, value in seconds.items()}
        for name in ("optimistix", "scipy"):
            value = seconds["ours"] / seconds[name]
            yield Metric(f"{part} / {name}", value, f"x {name}", detail=detail)


def _measure(program: str) -> dict[str, float]:
    """Run a program; return CPU seconds until the end of the first fit, and of the next two."""
    text = _DATA + program + "\nprint(*times)\n"
    out = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    first, second, third = map(float, out.stdout.split())
    return {
        "start to first fit": first,
        "another model": second - first,
        "another length": third - second,
    }
