"""Fromage's factors, against float64."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 0.01, 0.75, 100.0])
def test_params_shrink_by_a_small_rate(rate):
    # 1e-3: by 5e-7 of themselves, where 1 / sqrt(1 + rate^2) has a rounding error of 6e-8.
    tx, params = fnopt.scale_by_fromage(rate), {"w": jnp.asarray([3.0, -0.5])}
    zero = {"w": jnp.zeros(2)}
    updates, _ = tx.update(zero, tx.init(params), params)
    expected = np.asarray([3.0, -0.5]) * np.expm1(-0.5 * np.log1p(np.float64(rate) ** 2))
    np.testing.assert_allclose(updates["w"], expected, rtol=1e-6)
