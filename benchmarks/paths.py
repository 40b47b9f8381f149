"""Record the paths of optimizers on two functions: `python -m benchmarks paths [METHOD ...]`.

Every recipe of `fnopt.optimizers` that needs only gradients and values minimizes a parabola and
Rosenbrock's function, with the best of a grid of learning rates. `jax.vmap` over optimizers runs
all learning rates in one program. The command writes `benchmarks/paths.json`, which a page of the
gallery plots.
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
RECORDED = np.unique(np.geomspace(1, STEPS + 1, 48).astype(int)) - 1  # steps in the record
START = {"parabola": (-1.5, 1.0), "rosenbrock": (-1.2, 1.0)}
FLOOR = 1e-12  # lower values are treated and plotted as this value
# Arguments of a recipe in addition to the learning rate.
ARGUMENTS = {
    "accumulated_sgd": {"k": 2},
    "sgdr": {"decay_steps": STEPS, "t_mult": 1.0},
    "momo": {"lower_bound": 0.0},
    "momo_adam": {"lower_bound": 0.0},
    "polyak_sgd": {"f_min": 0.0},
}
# These recipes determine or bound their step size, so their learning rate is a number.
CONSTANT = {"polyak_sgd", "rprop", "schedule_free_adamw", "schedule_free_sgd", "sgdr", "lbfgs"}
# These recipes need a model or its residuals instead of a function of the params.
OTHERS = {
    *("gauss_newton_descent", "kfac", "natural_gradient", "stochastic_reconfiguration"),
    "hyperball",  # a constraint, which keeps the norm of the params
}


def parabola(x: Any, y: Any) -> Any:
    """Quadratic function with condition number 20."""
    return 0.5 * (x**2 + 20 * y**2)


def rosenbrock(x: Any, y: Any) -> Any:
    """Rosenbrock's function, whose curved valley leads to the minimum at (1, 1)."""
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def recipes() -> list[str]:
    """Return the names of all optimizers in the record."""

    def is_recipe(name: str) -> bool:
        first = next(iter(inspect.signature(getattr(fnopt.optimizers, name)).parameters), "")
        return "learning_rate" in first and not name.startswith("scale_by_") and name not in OTHERS

    return [name for name in fnopt.optimizers.__all__ if is_recipe(name)]


def run(name: str, function: Callable[[Any, Any], Any], start: tuple[float, float]) -> dict:
    """Run all learning rates; return rate, points and values of the run with the lowest end."""

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

        # A matrix, so that matrix methods apply their matrix formula.
        params = jnp.asarray(start, jnp.float32)[:, None]
        return jax.lax.scan(step, (params, optimizer.init(params)), length=STEPS + 1)[1]

    points, values = jax.tree.map(np.asarray, jax.jit(jax.vmap(train))(jnp.asarray(RATES)))
    best = int(np.argmin(_height(values[:, -1]) + 0.01 * _height(values).mean(axis=1)))
    return {
        "rate": _digits(RATES[best]),
        "path": [[*map(_digits, point)] for point in points[best, RECORDED]],
        "values": [*map(_digits, values[best, RECORDED])],
    }


def _height(values: Any) -> Any:
    """Logarithm of the value, between FLOOR and 1e30; NaN counts as infinity."""
    return np.log10(np.clip(np.nan_to_num(values, nan=np.inf), FLOOR, 1e30))


def _digits(number: Any) -> float:
    """Round to four significant digits, which are enough for a plot."""
    return float(f"{number:.4g}")


def read() -> dict[str, Any]:
    """Read the record, keyed by method and function."""
    return json.loads(RECORD.read_text())


def as_json(record: dict[str, Any]) -> str:
    """Format a record as JSON with one line for each method."""
    lines = (f"{json.dumps(name)}: {json.dumps(runs)}" for name, runs in sorted(record.items()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(argv: list[str]) -> int:
    """Run the given methods (default: all), and write their paths to the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks paths", description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    record = read() if RECORD.exists() else {}
    recipe_names = recipes()
    for name in parser.parse_args(argv).methods or recipe_names:
        runs = {f.__name__: functools.partial(run, name, f) for f in (parabola, rosenbrock)}
        record[name] = {function: make(START[function]) for function, make in runs.items()}
        ends = ", ".join(
            f"{f} {r['values'][-1]:.1e} at {r['rate']:g}" for f, r in record[name].items()
        )
        print(f"{name:28} {ends}", flush=True)
        RECORD.write_text(as_json({n: runs for n, runs in record.items() if n in recipe_names}))
    return 0
