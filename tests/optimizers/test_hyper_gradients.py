"""Derivatives of a training run by hyper-parameters, where a param sits at its minimum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.optimizers import _matrix_factors, _psgd_kron

STEPS = 20
NAMES = ["adam", "amsgrad", "rmsprop", "lamb", "adafactor", "came", "adagrad", "adan", "adamax"]


def validation_loss(name, dtype):
    """The loss after training with a learning rate; the first param sits at its minimum."""
    start = jnp.asarray([0.0, 1.5, -2.0], dtype)

    def loss(rate):
        tx = getattr(fnopt, name)(rate)

        def body(carry, _):
            params, state = carry
            updates, state = tx.update(2 * params, state, params)
            return (fnopt.apply_updates(params, updates), state), None

        (end, _), _ = jax.lax.scan(body, (start, tx.init(start)), length=STEPS)
        return jnp.sum((end - 1) ** 2)

    return jax.jit(loss)


@pytest.mark.parametrize("name", NAMES)
def test_reverse_mode_agrees_with_a_difference_quotient_in_float64(name):
    rate, width = 0.01, 1e-6
    slope = jax.grad(validation_loss(name, jnp.float32))(jnp.float32(rate))
    with jax.enable_x64(True):
        loss = validation_loss(name, jnp.float64)
        ends = [float(loss(jnp.float64(rate + w))) for w in (-width, width)]
    # The error of the quotient is some 1e-16 / width, far below float32's of 20 steps.
    np.testing.assert_allclose(slope, (ends[1] - ends[0]) / (2 * width), rtol=1e-4)


def test_only_the_slope_at_zero_changes():
    x = jnp.asarray([0.0, -0.0, 1e-30, -2.0, jnp.nan])
    y, slope = jax.jvp(fnopt.numerics.zero_slope_at_zero, (x,), (jnp.ones(5),))
    np.testing.assert_array_equal(y, x)
    assert slope.tolist() == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    "measure", [_psgd_kron._spectral_norm_bound, _matrix_factors.root_mean_square]
)
def test_slopes_of_a_measure_that_is_scaled_by_its_largest_element(measure):
    """XLA computes a sum of products again beside its maximum, and may round it otherwise."""

    @jax.jit
    def slope(x):
        def loss(x):
            a, b = x
            return jnp.sum(measure(jnp.swapaxes(a, 1, 2) @ a + jnp.swapaxes(b, 1, 2) @ b))

        return jax.value_and_grad(loss)(x)

    for x in np.random.default_rng(0).standard_normal((100, 2, 1, 1, 2)).astype(np.float32):
        value, (da, db) = slope((x[0], x[1]))
        # Euler: the measure of a product is homogeneous of degree two.
        np.testing.assert_allclose(np.sum(x[0] * da + x[1] * db), 2 * value, rtol=1e-5)
