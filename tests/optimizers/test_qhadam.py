"""QHAdam against its formula in float64, and what it contains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def steps(tx, grads):
    params = jnp.zeros(grads.shape[1:], grads.dtype)

    def body(state, g):
        updates, state = tx.update(g, state, params)
        return state, updates

    return np.asarray(jax.jit(lambda g: jax.lax.scan(body, tx.init(params), g)[1])(grads))


@pytest.mark.parametrize(("v1", "v2"), [(0.7, 1.0), (0.8, 0.6), (0.0, 1.0)])
def test_agrees_with_the_formula(v1, v2):
    grads = np.random.default_rng(1).standard_normal((12, 5))
    mu, nu, want = np.zeros(5), np.zeros(5), []
    for t, g in enumerate(grads, start=1):
        mu, nu = 0.9 * mu + 0.1 * g, 0.99 * nu + 0.01 * g**2
        mean, square = mu / (1 - 0.9**t), nu / (1 - 0.99**t)
        length = np.sqrt((1 - v2) * g**2 + v2 * square) + 1e-8
        want.append(-0.1 * ((1 - v1) * g + v1 * mean) / length)
    with jax.enable_x64(True):
        got = steps(fnopt.qhadam(0.1, 0.9, 0.99, v1, v2), jnp.asarray(grads))
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_with_all_of_the_means_it_is_adam():
    grads = jnp.asarray(np.random.default_rng(2).standard_normal((6, 5)), jnp.float32)
    ours = steps(fnopt.qhadam(0.1, 0.9, 0.999, 1.0, 1.0), grads)
    np.testing.assert_allclose(ours, steps(fnopt.adam(0.1), grads), rtol=2e-6)
