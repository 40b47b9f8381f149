from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

G = {"w": jnp.asarray([3.0, -4.0])}


@pytest.mark.parametrize("eps_in_sqrt", [True, False])
def test_one_step_by_hand(eps_in_sqrt):
    tx = fnopt.scale_by_rms(0.75, eps=0.25, initial_scale=4.0, eps_in_sqrt=eps_in_sqrt)
    updates, state = tx.update(G, tx.init(G))
    nu = 0.75 * 4.0 + 0.25 * np.square([3.0, -4.0])
    divisor = np.sqrt(nu + 0.25) if eps_in_sqrt else np.sqrt(nu) + 0.25
    np.testing.assert_allclose(updates["w"], [3.0, -4.0] / divisor, rtol=1e-6)
    np.testing.assert_allclose(state.nu["w"], nu, rtol=1e-6)


def test_bias_correction_makes_the_first_step_the_sign():
    tx = fnopt.scale_by_rms(0.99, bias_correction=True)
    np.testing.assert_allclose(tx.update(G, tx.init(G))[0]["w"], [1.0, -1.0], rtol=1e-6)


def test_stddev_is_about_the_mean():
    tx, state = fnopt.scale_by_stddev(0.5, eps=0.0), None
    state = tx.init(G)
    for g in (1.0, 3.0):
        updates, state = tx.update({"w": jnp.asarray([g, -g])}, state)
    mean, square = 0.25 * 1 + 0.5 * 3, 0.25 * 1 + 0.5 * 9
    expected = 3.0 / np.sqrt(square - mean**2)
    np.testing.assert_allclose(updates["w"], [expected, -expected], rtol=1e-6)


def test_a_constant_gradient_does_not_make_the_variance_negative():
    """The two averages agree up to rounding, and the difference may come out below zero."""
    g = {"w": jnp.asarray(np.random.default_rng(0).standard_normal(200), jnp.float32)}
    tx = fnopt.scale_by_stddev(0.5, eps=1e-12, bias_correction=True)

    def body(state, _):
        updates, state = tx.update(g, state)
        return state, updates["w"]

    seen = jax.jit(lambda: jax.lax.scan(body, tx.init(g), length=60)[1])()
    assert bool(jnp.isfinite(seen).all())
