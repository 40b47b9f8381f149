"""Steps of an optimizer, to compare with a paper's update in NumPy."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

RNG = np.random.default_rng(7)
STEPS = 20
SHAPES = {"kernel": (4, 3), "bias": (3,), "embed": (5, 2)}
START = {name: RNG.standard_normal(shape) for name, shape in SHAPES.items()}
NOISE = {name: RNG.standard_normal((STEPS, *shape)) for name, shape in SHAPES.items()}
SCALE = np.linspace(0.2, 3.0, STEPS)


def gradient(p: np.ndarray, t: int, name: str) -> np.ndarray:
    """Return the gradient of a quadratic plus noise that grows with the step."""
    return 0.5 * p + SCALE[t] * NOISE[name][t]


def path(tx: Any, **extras: Any) -> dict[str, np.ndarray]:
    """Return the params after each of 20 steps in float64, computed by one program."""
    with jax.enable_x64(True):
        start, noise = (jax.tree.map(jnp.asarray, tree) for tree in (START, NOISE))

        def body(carry: Any, xs: Any) -> Any:
            params, state = carry
            scale, noise = xs
            grads = jax.tree.map(lambda p, n: 0.5 * p + scale * n, params, noise)
            updates, state = tx.update(grads, state, params, **extras)
            params = jax.tree.map(jnp.add, params, updates)
            return (params, state), params

        run = jax.jit(lambda p, xs: jax.lax.scan(body, (p, tx.init(p)), xs)[1])
        return jax.tree.map(np.asarray, run(start, (jnp.asarray(SCALE), noise)))


def by_hand(step: Any) -> dict[str, np.ndarray]:
    """Return the params after each step of `step(name, t, p, g, slots) -> u` in NumPy."""
    out = {}
    for name, start in START.items():
        p, slots, points = start.copy(), {}, []
        for t in range(STEPS):
            p = p + step(name, t + 1, p, gradient(p, t, name), slots)
            points.append(p)
        out[name] = np.stack(points)
    return out


def ema(slots: dict[str, Any], key: str, x: Any, decay: float) -> Any:
    slots[key] = decay * slots.get(key, 0.0) + (1 - decay) * x
    return slots[key]


def assert_same(ours: Any, expected: Any, rtol: float = 1e-10) -> None:
    for name in expected:
        close = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=rtol)
        close(ours[name], expected[name], err_msg=name)
