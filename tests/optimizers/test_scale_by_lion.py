from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def test_every_element_moves_by_one():
    tx = fnopt.scale_by_lion()
    g = {"w": jnp.asarray([1e-20, -3.0, 0.0])}
    assert tx.update(g, tx.init(g))[0]["w"].tolist() == [1.0, -1.0, 0.0]


@pytest.mark.parametrize(("b1", "b2"), [(0.9, 0.99), (0.99, 0.9), (0.0, 0.5), (0.5, 0.01)])
def test_the_direction_from_the_new_mean_is_that_of_the_paper(b1, b2):
    """It is computed from the mean after the step, but defined by the mean before it."""
    gs = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
    tx, mu, seen = fnopt.scale_by_lion(b1, b2), np.zeros(40), []

    def body(state, g):
        updates, state = tx.update({"w": g}, state)
        return state, updates["w"]

    start = tx.init({"w": jnp.zeros(40)})
    actual = jax.jit(lambda: jax.lax.scan(body, start, jnp.asarray(gs))[1])()
    for g in gs.astype(np.float64):
        seen.append(np.sign(b1 * mu + (1 - b1) * g))
        mu = b2 * mu + (1 - b2) * g
    np.testing.assert_array_equal(actual, np.asarray(seen))
