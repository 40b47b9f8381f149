"""What a type checker knows of a user's script; `make types` reads it."""

from __future__ import annotations

from typing import Any, NamedTuple, assert_type

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
    assert_type(tx.update(params, state, params)[0], Params)
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


def results_complete_in_an_editor() -> None:
    """Read by the type checker only."""
    params, x = Params(jnp.ones((2, 1)), jnp.zeros(1)), jnp.ones((3, 2))
    _, info = fnopt.clipped_grad(loss, 1.0)(params, x)
    assert_type(info.norm, jax.Array)
    assert_type(fnopt.tap("hidden", x), jax.Array)
    fnopt.freeze(fnopt.adam(1e-3), "kernel")


def curve_fits_keep_the_type_of_the_start() -> None:
    """Read by the type checker only: four fits would be compiled for nothing."""
    x = jnp.linspace(0.0, 1.0, 5)

    def line(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
        return a * x + b

    def model(x: jax.Array, params: Params) -> jax.Array:
        return params.kernel[0, 0] * x + params.bias[0]

    popt, pcov = fnopt.curve_fit(line, x, 2 * x, sigma=0.1, absolute_sigma=True, maxfev=50)
    assert_type(popt, jax.Array)
    assert_type(pcov, jax.Array)
    found = fnopt.curve_fit(line, x, 2 * x, [1.0, 1.0], full_output=True, loss="soft_l1")
    assert_type(found[1], jax.Array)
    assert_type(found[2], dict[str, Any])
    start = Params(jnp.ones((1, 1)), jnp.zeros(1))
    tree, _ = fnopt.curve_fit(model, x, 2 * x, start)
    assert_type(tree, Params)
