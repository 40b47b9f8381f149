"""Derivatives of a training run by hyper-parameters, where a param sits at its minimum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

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
    y, slope = jax.jvp(fnopt.core.flat_at_zero, (x,), (jnp.ones(5),))
    np.testing.assert_array_equal(y, x)
    assert slope.tolist() == [0, 0, 1, 1, 1]
