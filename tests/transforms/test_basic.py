"""Scaling of updates, and the learning rate."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt

G = {"w": jnp.asarray([3.0, -4.0])}


def update(tx, g=G):
    return tx.update(g, tx.init(g), g)[0]["w"].tolist()


def test_identity_passes_on_the_same_arrays():
    tx = fnopt.identity()
    assert tx.update(G, tx.init(G))[0] is G


def test_scale_keeps_the_sign():
    assert update(fnopt.scale(2.0)) == [6.0, -8.0]


def test_scale_can_be_swept():
    stacked = jax.vmap(fnopt.scale)(jnp.asarray([1.0, 10.0]))
    out = jax.vmap(lambda tx: tx.update(G, tx.init(G))[0]["w"])(stacked)
    assert out.tolist() == [[3.0, -4.0], [30.0, -40.0]]


def test_set_to_zero_keeps_shapes_and_dtypes():
    g = {"w": jnp.ones((2, 1), jnp.bfloat16), "n": None}
    out = fnopt.set_to_zero().update(g, fnopt.core.EmptyState())[0]
    assert out["n"] is None
    assert (out["w"].shape, out["w"].dtype, float(out["w"].sum())) == ((2, 1), jnp.bfloat16, 0.0)


def test_stateless_sees_the_params():
    def towards_zero(updates, params):
        return jax.tree.map(lambda g, p: g + 0.5 * p, updates, params)

    assert update(fnopt.stateless(towards_zero)) == [4.5, -6.0]


GRADS = {"w": jnp.asarray([2.0])}


def test_it_carries_the_minus_sign():
    tx = fnopt.scale_by_learning_rate(0.5)
    assert tx.update(GRADS, tx.init(GRADS))[0]["w"].tolist() == [-1.0]


def test_the_first_update_sees_step_zero():
    tx = fnopt.scale_by_learning_rate(fnopt.linear_schedule(1.0, 0.0, 2))
    state, seen = tx.init(GRADS), []
    for _ in range(3):
        updates, state = tx.update(GRADS, state)
        seen.append(float(updates["w"][0]))
    assert seen == [-2.0, -1.0, 0.0]
    assert int(state.count) == 3


def test_the_count_stays_at_its_largest_value():
    tx = fnopt.scale_by_learning_rate(0.5)
    top = jnp.asarray(2**31 - 1, jnp.int32)
    _, state = tx.update(GRADS, fnopt.transforms.states.ScaleByLearningRateState(top))
    assert int(state.count) == 2**31 - 1


def test_bfloat16_gradients_are_scaled_in_float32():
    """In bfloat16 the product would be rounded twice."""
    g = {"w": jnp.asarray([1.0078125], jnp.bfloat16)}
    tx = fnopt.scale_by_learning_rate(0.001)
    expected = jnp.asarray(-1.0078125 * 0.001, jnp.bfloat16)
    assert tx.update(g, tx.init(g))[0]["w"][0] == expected


def test_a_stacked_rate_sweeps():
    stacked = jax.vmap(fnopt.scale_by_learning_rate)(jnp.asarray([1.0, 2.0]))
    out = jax.vmap(lambda tx: tx.update(GRADS, tx.init(GRADS))[0]["w"])(stacked)
    assert out.tolist() == [[-2.0], [-4.0]]


def test_integer_gradients_are_refused():
    tx = fnopt.scale_by_learning_rate(0.1)
    with pytest.raises(TypeError, match=r"leaf 'n' is int32\[2\], expected a floating array"):
        tx.update({"n": jnp.ones(2, jnp.int32)}, tx.init(GRADS))
