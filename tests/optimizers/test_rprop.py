from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import fnopt


def test_the_steps_are_those_of_the_paper():
    """Written out for one number at a time."""
    gs = np.random.default_rng(0).standard_normal((15, 5)).astype(np.float32)
    tx = fnopt.rprop(0.1, 0.5, 1.25, 0.03, 0.3)

    def body(state, g):
        updates, state = tx.update({"w": g}, state)
        return state, updates["w"]

    start = tx.init({"w": jnp.zeros(5)})
    actual = jax.jit(lambda: jax.lax.scan(body, start, jnp.asarray(gs))[1])()
    size, last, seen = np.full(5, 0.1), np.zeros(5), []
    for g in gs:
        agree = np.sign(g) * np.sign(last)
        size = np.where(agree > 0, np.minimum(1.25 * size, 0.3), size)
        size = np.where(agree < 0, np.maximum(0.5 * size, 0.03), size)
        last = np.where(agree < 0, 0, size * np.sign(g))
        seen.append(-last)
    np.testing.assert_allclose(actual, np.asarray(seen), rtol=1e-6)


def test_signs_of_tiny_gradients_count():
    tx, params = fnopt.rprop(0.5), {"w": jnp.zeros(())}
    g, state = {"w": jnp.asarray(1e-36)}, tx.init(params)
    _, state = tx.update(g, state)
    assert float(tx.update(g, state)[0]["w"]) == np.float32(-0.6)
