from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def test_the_first_step_is_the_sign():
    """Bias correction makes the first mean the gradient itself, whatever the decays."""
    g = {"w": jnp.asarray([1e-3, -5.0, 2e4])}
    for tx in (fnopt.scale_by_adam(), fnopt.scale_by_adam(b1=0.5, b2=0.1)):
        updates, _ = tx.update(g, tx.init(g))
        np.testing.assert_allclose(updates["w"], [1.0, -1.0, 1.0], rtol=1e-4)


def directions(gs, dtype):
    tx, params = fnopt.scale_by_adam(), {"w": jnp.zeros(gs.shape[1:], dtype)}

    def body(state, g):
        updates, state = tx.update({"w": g}, state)
        return state, updates["w"]

    scanned = jax.jit(lambda gs: jax.lax.scan(body, tx.init(params), gs)[1])
    return np.asarray(scanned(jnp.asarray(gs, dtype)), np.float64)


def test_float32_stays_close_to_exact_arithmetic():
    """1 - b2^t cancels: both the average and its correction must use the same rounded b2."""
    gs = np.random.default_rng(0).standard_normal((20, 50))
    actual = directions(gs, jnp.float32)
    with jax.enable_x64(True):
        exact = directions(gs, jnp.float64)
    np.testing.assert_allclose(actual, exact, rtol=5e-6, atol=5e-6)


def test_the_second_moment_decays_for_bfloat16_params():
    """In bfloat16 0.999 rounds to 1 and nu would stay for ever."""
    tx, params = fnopt.scale_by_adam(), {"w": jnp.ones((), jnp.bfloat16)}
    _, state = tx.update(params, tx.init(params))
    nu = float(state.nu["w"])
    _, state = tx.update({"w": jnp.zeros((), jnp.bfloat16)}, state)
    assert float(state.nu["w"]) == pytest.approx(0.999 * nu, rel=1e-6)


def test_complex_second_moments_are_real():
    params = {"w": jnp.ones(2, jnp.complex64)}
    state = fnopt.scale_by_adam().init(params)
    assert (state.mu["w"].dtype, state.nu["w"].dtype) == (jnp.complex64, jnp.float32)
