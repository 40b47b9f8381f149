import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def test_params_stay_nonnegative():
    tx = fnopt.chain(fnopt.sgd(1.0), fnopt.keep_params_nonnegative())
    params = {"w": jnp.asarray([0.5, 3.0, -1.0])}
    updates, _ = tx.update({"w": jnp.asarray([1.0, 1.0, 0.0])}, tx.init(params), params)
    np.testing.assert_array_equal(fnopt.apply_updates(params, updates)["w"], [0.0, 2.0, 0.0])


def test_complex_params_have_no_sign():
    tx, params = fnopt.keep_params_nonnegative(), {"w": jnp.ones(2, jnp.complex64)}
    with pytest.raises(TypeError, match="complex params have no sign"):
        tx.update(params, tx.init(params), params)


def test_nan_becomes_zero_and_is_reported():
    tx = fnopt.zero_nans()
    g = {"a": jnp.asarray([jnp.nan, 1.0]), "b": jnp.asarray([jnp.inf, 1.0]), "c": jnp.arange(2)}
    updates, state = tx.update(g, tx.init(g))
    np.testing.assert_array_equal(updates["a"], [0.0, 1.0])
    assert bool(jnp.isinf(updates["b"][0]))  # an infinity is no NaN
    assert [bool(state.found_nan[k]) for k in "abc"] == [True, False, False]
    assert updates["c"].dtype == g["c"].dtype


def test_gradients_are_centred_over_inputs():
    g = {"kernel": jnp.asarray([[[1.0, 4.0]], [[3.0, 4.0]]]), "bias": jnp.asarray([1.0, 2.0])}
    updates, _ = fnopt.centralize().update(g, fnopt.centralize().init(g))
    np.testing.assert_array_equal(updates["kernel"], [[[-1.0, 0.0]], [[1.0, 0.0]]])
    assert updates["bias"] is g["bias"] or bool((updates["bias"] == g["bias"]).all())
