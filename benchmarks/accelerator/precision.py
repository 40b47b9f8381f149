"""Compare float32 steps with matrix products, on device and host, with float64 steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from benchmarks.accelerator.measure import Case, Run, largest_difference

STEPS, SIDE = 3, 48
FLOAT32 = float(np.finfo(np.float32).eps)


def model(params: Any, example: Any) -> Any:
    """Network with one hidden layer, whose matrix products have full float32 precision."""
    hidden = jnp.tanh(jnp.matmul(example[0], params["w"], precision="highest") + params["b"])
    return jnp.matmul(hidden, params["v"], precision="highest")


def loss(outputs: Any, example: Any) -> Any:
    """Sum of squared errors of one example."""
    return jnp.sum((outputs - example[1]) ** 2)


def optimizers(batch: Any) -> dict[str, Any]:
    """Return optimizers whose updates use matrix products or factorizations."""
    return {
        "muon": fnopt.muon(0.1),
        "soap": fnopt.soap(0.1, precondition_frequency=1),
        "shampoo": fnopt.shampoo(0.1, precondition_frequency=1),
        "kfac": fnopt.kfac(model, loss, batch, curvature="exact"),
    }


def changes(name: str, dtype: str, device: Any) -> Any:
    """Return the change of the params after `STEPS` steps; the problem is the same in every dtype.

    Gradients are square matrices with singular values of about 1 to 3. SOAP and Shampoo divide by
    powers of the singular values, so small singular values would amplify rounding errors and hide
    the difference between the devices.
    """
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        values = rng.standard_normal(shape).astype(np.float32) / np.float32(shape[0] ** 0.5)
        return jnp.asarray(values.astype(dtype))

    with jax.enable_x64(dtype == "float64"), jax.default_device(device):
        params = {"w": draw(SIDE, SIDE), "b": draw(SIDE), "v": draw(SIDE, SIDE)}
        batch = draw(256, SIDE), draw(256, SIDE)
        grads = [jax.tree.map(lambda p: draw(*p.shape), params) for _ in range(STEPS)]
        grads = [g | {k: g[k] + 2 * jnp.eye(SIDE, dtype=dtype) for k in "wv"} for g in grads]
        tx = optimizers(batch)[name]
        extra = {"batch": batch} if name == "kfac" else {}

        @jax.jit
        def step(params: Any, state: Any, grads: Any) -> Any:
            updates, state = tx.update(grads, state, params, **extra)
            return fnopt.apply_updates(params, updates), state

        now, state = params, tx.init(params)
        for g in grads:
            now, state = step(now, state, g)
        return jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b), now, params)


def cases(run: Run) -> Iterator[Case]:
    """Measure each optimizer; full runs and smoke runs have the same sizes."""
    del run
    yield from (Case(n, lambda n=n: measure(n)) for n in ("muon", "soap", "shampoo", "kfac"))


def measure(name: str) -> list[dict[str, Any]]:
    """Return the relative difference of float32 from float64, also divided by the epsilon."""
    host = jax.devices("cpu")[0]
    reference = changes(name, "float64", host)
    rows = []
    for variant, device in {"device": jax.devices()[0], "host": host}.items():
        error = largest_difference(changes(name, "float32", device), reference)
        rows.append({"variant": variant, "difference": error, "epsilons": error / FLOAT32})
    return rows
