"""`python -m benchmarks paths [METHOD ...]`: the path of every first-order optimizer down a valley.

Every recipe of `fnopt.optimizers` that needs no more than gradients and values goes down a parabola
and Rosenbrock's valley, with the best of a grid of learning rates; all rates are one program, by
`jax.vmap` over optimizers. Writes `benchmarks/paths.json`, which a page of the gallery draws.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt

RECORD = Path(__file__).parent / "paths.json"
STEPS = 400
RATES = np.logspace(-4, 1, 21).astype(np.float32)
KEPT = np.unique(np.geomspace(1, STEPS + 1, 48).astype(int)) - 1  # points of a path in the record
START = {"parabola": (-1.5, 1.0), "rosenbrock": (-1.2, 1.0)}
FLOOR = 1e-12  # what counts as the minimum, and is drawn as such
# What a recipe needs beside the learning rate.
ARGUMENTS = {
    "accumulated_sgd": {"k": 2},
    "sgdr": {"decay_steps": STEPS, "t_mult": 1.0},
    "momo": {"lower_bound": 0.0},
    "momo_adam": {"lower_bound": 0.0},
    "polyak_sgd": {"f_min": 0.0},
}
# These find or bound their steps themselves: what they are given is a number, no schedule.
CONSTANT = {"polyak_sgd", "rprop", "schedule_free_adamw", "schedule_free_sgd", "sgdr", "lbfgs"}
# These need a model or its residuals, not a function of the params.
OTHERS = {
    *("gauss_newton_descent", "kfac", "natural_gradient", "stochastic_reconfiguration"),
    "hyperball",  # a part: the params keep their norm
}


def parabola(x: Any, y: Any) -> Any:
    """Twenty times as steep in one direction as in the other."""
    return 0.5 * (x**2 + 20 * y**2)


def rosenbrock(x: Any, y: Any) -> Any:
    """A bent valley whose floor falls slowly to (1, 1)."""
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def recipes() -> list[str]:
    """The names of all optimizers that run here."""

    def is_recipe(name: str) -> bool:
        first = next(iter(inspect.signature(getattr(fnopt.optimizers, name)).parameters), "")
        return "learning_rate" in first and not name.startswith("scale_by_") and name not in OTHERS

    return [name for name in fnopt.optimizers.__all__ if is_recipe(name)]


def run(name: str, function: Callable[[Any, Any], Any], start: tuple[float, float]) -> dict:
    """The run of one optimizer that ends lowest: its rate, and points and values on the way."""

    def value_fn(params: Any) -> Any:
        return function(*params[:, 0])

    def train(rate: Any) -> Any:
        if name not in CONSTANT:
            rate = fnopt.cosine_decay_schedule(rate, STEPS)
        optimizer = getattr(fnopt.optimizers, name)(rate, **ARGUMENTS.get(name, {}))

        def step(carry: Any, _: None) -> Any:
            params, state = carry
            value, grad = jax.value_and_grad(value_fn)(params)
            extras = {"value": value, "grad": grad, "value_fn": value_fn, "obj_fn": value_fn}
            updates, state = optimizer.update(grad, state, params, **extras)
            return (fnopt.apply_updates(params, updates), state), (params[:, 0], value)

        # a matrix, so that methods for matrices are themselves
        params = jnp.asarray(start, jnp.float32)[:, None]
        return jax.lax.scan(step, (params, optimizer.init(params)), length=STEPS + 1)[1]

    points, values = jax.tree.map(np.asarray, jax.jit(jax.vmap(train))(jnp.asarray(RATES)))
    best = int(np.argmin(_height(values[:, -1]) + 0.01 * _height(values).mean(axis=1)))
    return {
        "rate": _digits(RATES[best]),
        "path": [[*map(_digits, point)] for point in points[best, KEPT]],
        "values": [*map(_digits, values[best, KEPT])],
    }


def _height(values: Any) -> Any:
    """What is compared: the end, and of two that end at 0 the one that is there first."""
    return np.log10(np.clip(np.nan_to_num(values, nan=np.inf), FLOOR, 1e30))


def _digits(number: Any) -> float:
    """Four significant digits are more than a picture shows."""
    return float(f"{number:.4g}")


def read() -> dict[str, Any]:
    """The record: by method, by function."""
    return json.loads(RECORD.read_text())


def written(found: dict[str, Any]) -> str:
    """JSON: a line for each method."""
    lines = (f"{json.dumps(name)}: {json.dumps(runs)}" for name, runs in sorted(found.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(argv: list[str]) -> int:
    """Runs the methods that are named, or all, and writes them into the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks paths", description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    found = read() if RECORD.exists() else {}
    known = recipes()
    for name in parser.parse_args(argv).methods or known:
        runs = {f.__name__: functools.partial(run, name, f) for f in (parabola, rosenbrock)}
        found[name] = {function: make(START[function]) for function, make in runs.items()}
        ends = ", ".join(
            f"{f} {r['values'][-1]:.1e} at {r['rate']:g}" for f, r in found[name].items()
        )
        print(f"{name:28} {ends}", flush=True)
        RECORD.write_text(written({n: runs for n, runs in found.items() if n in known}))
    return 0
