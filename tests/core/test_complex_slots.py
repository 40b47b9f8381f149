"""Slots of complex params with a storage dtype that has no room for them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

MAKERS = {
    "adam": lambda dtype: fnopt.adam(0.1, mu_dtype=dtype),
    "sgd": lambda dtype: fnopt.sgd(0.1, momentum=0.9, accumulator_dtype=dtype),
    "lion": lambda dtype: fnopt.lion(0.1, mu_dtype=dtype),
}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("name", MAKERS)
def test_slots_of_complex_params_stay_complex(name, dtype):
    g = {"z": jnp.full(4, 1 + 2j), "w": jnp.ones(3)}
    found = {}
    for kind in (dtype, None):
        tx = MAKERS[name](kind)
        state = tx.init(g)
        for _ in range(2):
            u, state = tx.update(g, state, g)
        found[kind] = u
    np.testing.assert_allclose(found[dtype]["z"], found[None]["z"], rtol=1e-6)
    np.testing.assert_allclose(found[dtype]["w"], found[None]["w"], rtol=0.01)
