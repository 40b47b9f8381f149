# pyright: strict
"""What a type checker knows of a user's script: `make types` reads it in strict mode."""

from __future__ import annotations

from typing import NamedTuple, assert_type

import jax
import jax.numpy as jnp

import fnopt


class Params(NamedTuple):
    """A model's params as users type them."""

    kernel: jax.Array
    bias: jax.Array


def loss(params: Params, x: jax.Array) -> jax.Array:
    """A scalar."""
    return jnp.sum((x @ params.kernel + params.bias) ** 2)


def test_a_training_step_keeps_the_type_of_the_params() -> None:
    params = Params(jnp.ones((2, 1)), jnp.zeros(1))
    tx = fnopt.adamw(0.1, mask="kernel")
    state = tx.init(params)
    grads = jax.grad(loss)(params, jnp.ones((3, 2)))
    updates, state = tx.update(grads, state, params)
    params = fnopt.apply_updates(params, updates)
    assert_type(params, Params)
    average = fnopt.incremental_update(params, params, 0.1)
    assert_type(average, Params)


def test_fits_keep_the_type_of_the_params() -> None:
    def residuals(params: Params) -> jax.Array:
        return jnp.concatenate([params.kernel[:, 0] - 1.0, params.bias])

    start = Params(jnp.ones((2, 1)), jnp.zeros(1))
    solution = fnopt.least_squares(residuals, start)
    assert_type(solution.params, Params)
    end = fnopt.minimize(lambda params: jnp.sum(residuals(params) ** 2), start)
    assert_type(end.params, Params)
