from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from tests.contract.trees import assert_identical

TX = fnopt.dynamic_loss_scale(fnopt.adam(1e-2), 8.0, growth_interval=2, max_scale=32.0)
PARAMS = {"w": jnp.asarray([1.0, -2.0]), "h": jnp.ones(3, jnp.float16)}
BAD = [2, 3, 4, 5]
STEPS = 20


@functools.lru_cache
def run():
    """Params and state after every step of a scan; some gradients are infinite or NaN."""
    bad = np.zeros((STEPS, 1), np.float32)
    bad[BAD] = [[np.inf], [np.nan], [-np.inf], [np.nan]]

    def body(carry, bad):
        params, state = carry
        scale = fnopt.loss_scale(state)
        grads = jax.tree.map(
            lambda p: (p.astype(jnp.float32) * scale + bad).astype(p.dtype), params
        )
        updates, state = TX.update(grads, state, params)
        params = fnopt.apply_updates(params, updates)
        return (params, state), (params, state)

    return jax.jit(lambda: jax.lax.scan(body, (PARAMS, TX.init(PARAMS)), jnp.asarray(bad))[1])()


def at(i):
    return jax.tree.map(lambda x: x[i], run())


def test_the_scale_grows_and_falls():
    expected, scale, good = [], 8.0, 0
    for i in range(STEPS):
        if i in BAD:
            scale, good = max(scale / 2, 1.0), 0
        else:
            good += 1
            if good == 2:
                scale, good = min(scale * 2, 32.0), 0
        expected.append(scale)
    np.testing.assert_array_equal(run()[1].scale, expected)
    assert max(expected) == 32
    assert 1.0 in expected
    assert run()[1].total_skipped[-1] == len(BAD)


def test_a_bad_step_changes_no_bit_of_params_and_inner_state():
    for i in BAD:
        (params, state), (before, last) = at(i), at(i - 1)
        assert_identical(params, before)
        assert_identical(state.inner_state, last.inner_state)


def test_good_steps_are_those_without_a_scale():
    plain, params = fnopt.adam(1e-2), PARAMS

    def body(carry, _):
        params, state = carry
        updates, state = plain.update(params, state, params)
        params = fnopt.apply_updates(params, updates)
        return (params, state), None

    n = STEPS - len(BAD)
    end = jax.jit(lambda: jax.lax.scan(body, (params, plain.init(params)), length=n)[0][0])()
    np.testing.assert_allclose(run()[0]["w"][-1], end["w"], rtol=1e-6)  # powers of two are exact
    np.testing.assert_allclose(run()[0]["h"][-1], end["h"], rtol=2e-3)


def test_float16_gradients_that_would_vanish():
    tx, w = fnopt.dynamic_loss_scale(fnopt.sgd(1.0)), jnp.ones(2, jnp.float16)
    state = tx.init(w)
    updates, _ = tx.update(jnp.full(2, 1e-4, jnp.float16), state, w.astype(jnp.float32))
    np.testing.assert_allclose(updates, -1e-4 / 2.0**15, rtol=1e-3)


def test_frozen_counters_and_lanes_of_vmap():
    tx = fnopt.dynamic_loss_scale(fnopt.freeze(fnopt.sgd(1.0), "n"), 4.0)
    params = {"n": jnp.asarray(3), "w": jnp.ones(2)}

    def step(w):
        grads = {"n": np.zeros((), jax.dtypes.float0), "w": w}
        updates, state = tx.update(grads, tx.init(params), params)
        return fnopt.apply_updates(params, updates), state.scale

    lanes = jnp.asarray([[1.0, 2.0], [jnp.nan, 1.0]])
    new, scale = jax.vmap(step)(lanes)
    np.testing.assert_array_equal(new["w"], [[0.75, 0.5], [1.0, 1.0]])
    np.testing.assert_array_equal(scale, [4.0, 2.0])
    np.testing.assert_array_equal(new["n"], [3, 3])
