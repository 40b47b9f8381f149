"""A small regression problem for the loops of all libraries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

X = jnp.asarray(np.random.default_rng(0).normal(size=(16, 3)), jnp.float32)
Y = jnp.sin(X @ jnp.asarray([[1.0], [-0.5], [0.25]]))


def make_params() -> Any:
    keys = jax.random.split(jax.random.key(0))
    return {
        "hidden": {"kernel": 0.5 * jax.random.normal(keys[0], (3, 8)), "bias": jnp.zeros(8)},
        "out": {"kernel": 0.5 * jax.random.normal(keys[1], (8, 1)), "bias": jnp.zeros(1)},
    }


def loss_fn(params: Any) -> jax.Array:
    h = jnp.tanh(X @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return jnp.mean((h @ params["out"]["kernel"] + params["out"]["bias"] - Y) ** 2)


def train(tx: Any, steps: int = 40, apply: Any = None, **extras: Any) -> tuple[Any, Any]:
    """Train in a plain loop, and assert that the loss decreases to less than a fifth."""
    import fnopt

    apply = apply or fnopt.apply_updates

    @jax.jit
    def step(params: Any, state: Any) -> Any:
        value, grads = jax.value_and_grad(loss_fn)(params)
        extra_args = {k: v(value) for k, v in extras.items()}
        updates, state = tx.update(grads, state, params, **extra_args)
        return apply(params, updates), state

    params = make_params()
    state, before = tx.init(params), loss_fn(params)
    for _ in range(steps):
        params, state = step(params, state)
    assert float(loss_fn(params)) < 0.2 * float(before)
    return params, state
