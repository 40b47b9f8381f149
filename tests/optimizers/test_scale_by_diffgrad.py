from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import fnopt


def ratio_to_adam(gs):
    """DiffGrad's direction over Adam's in the last step: the friction."""
    diffgrad, adam = fnopt.scale_by_diffgrad(), fnopt.scale_by_adam()
    params = {"w": jnp.zeros(())}
    states = diffgrad.init(params), adam.init(params)
    for g in gs:
        updates, state = diffgrad.update({"w": jnp.asarray(g)}, states[0])
        other, adam_state = adam.update({"w": jnp.asarray(g)}, states[1])
        states = state, adam_state
    return float(updates["w"] / other["w"])


def test_an_unchanged_gradient_halves_the_step():
    np.testing.assert_allclose(ratio_to_adam([2.0, 2.0, 2.0]), 0.5, rtol=1e-6)


def test_a_gradient_that_jumps_leaves_adam_as_it_is():
    np.testing.assert_allclose(ratio_to_adam([50.0, 90.0]), 1.0, rtol=1e-6)


def test_the_friction_is_a_sigmoid_of_the_change():
    np.testing.assert_allclose(ratio_to_adam([1.0, 1.5]), 1 / (1 + np.exp(-0.5)), rtol=1e-6)


def test_the_first_gradient_changed_from_zero():
    np.testing.assert_allclose(ratio_to_adam([1.0]), 1 / (1 + np.exp(-1.0)), rtol=1e-6)


def test_the_last_gradient_is_a_slot():
    tx, g = fnopt.scale_by_diffgrad(), {"w": jnp.asarray([1.0, -2.0])}
    _, state = tx.update(g, tx.init(g))
    assert fnopt.slots(state)["previous"]["w"].tolist() == [1.0, -2.0]
