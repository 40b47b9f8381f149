"""Cautious steps and amplified slow gradients against their formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

GRADS = np.random.default_rng(0).standard_normal((6, 8))


def steps(tx, size=1.0):
    params = {"w": jnp.zeros(8, jnp.float32), "gone": jnp.zeros((0, 2))}

    @jax.jit
    def run(grads):
        def body(state, g):
            updates, state = tx.update({"w": g, "gone": params["gone"]}, state, params)
            return state, updates["w"]

        return jax.lax.scan(body, tx.init(params), grads)[1]

    return np.asarray(run(jnp.asarray(size * GRADS, jnp.float32)))


def test_cautious_momentum():
    trace, want = np.zeros(8), []
    for g in GRADS:
        trace = 0.9 * trace + g
        agrees = trace * g > 0
        want.append(-0.1 * trace * agrees / max(agrees.mean(), 1e-3))
    np.testing.assert_allclose(
        steps(fnopt.cautious(fnopt.sgd(0.1, momentum=0.9))), want, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("size", [1e-24, 1e20])
def test_cautious_at_any_magnitude(size):
    tx = fnopt.cautious(fnopt.sgd(0.1, momentum=0.9))
    np.testing.assert_allclose(steps(tx, size) / size, steps(tx), rtol=1e-5, atol=1e-7)


def test_decay_behind_is_left_alone():
    params = {"w": jnp.asarray([2.0, -2.0])}
    tx = fnopt.chain(fnopt.cautious(fnopt.sgd(0.1)), fnopt.add_decayed_weights(-0.1 * 0.5))
    updates, _ = tx.update({"w": jnp.zeros(2)}, tx.init(params), params)
    np.testing.assert_allclose(updates["w"], [-0.1, 0.1], rtol=1e-6)


def test_grokfast():
    mean, want = np.zeros(8), []
    for g in GRADS:
        mean = 0.98 * mean + 0.02 * g
        want.append(-(g + 2.0 * mean))
    got = steps(fnopt.chain(fnopt.grokfast(), fnopt.scale(-1.0)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
