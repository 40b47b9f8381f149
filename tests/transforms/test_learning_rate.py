from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt

G = {"w": jnp.asarray([2.0])}


def test_it_carries_the_minus_sign():
    tx = fnopt.scale_by_learning_rate(0.5)
    assert tx.update(G, tx.init(G))[0]["w"].tolist() == [-1.0]


def test_the_first_update_sees_step_zero():
    tx = fnopt.scale_by_learning_rate(fnopt.linear_schedule(1.0, 0.0, 2))
    state, seen = tx.init(G), []
    for _ in range(3):
        updates, state = tx.update(G, state)
        seen.append(float(updates["w"][0]))
    assert seen == [-2.0, -1.0, 0.0]
    assert int(state.count) == 3


def test_the_count_stays_at_its_largest_value():
    tx = fnopt.scale_by_learning_rate(0.5)
    top = jnp.asarray(2**31 - 1, jnp.int32)
    _, state = tx.update(G, fnopt.transforms.states.ScaleByLearningRateState(top))
    assert int(state.count) == 2**31 - 1


def test_bfloat16_gradients_are_scaled_in_float32():
    """In bfloat16 the product would be rounded twice."""
    g = {"w": jnp.asarray([1.0078125], jnp.bfloat16)}
    tx = fnopt.scale_by_learning_rate(0.001)
    expected = jnp.asarray(-1.0078125 * 0.001, jnp.bfloat16)
    assert tx.update(g, tx.init(g))[0]["w"][0] == expected


def test_a_stacked_rate_sweeps():
    stacked = jax.vmap(fnopt.scale_by_learning_rate)(jnp.asarray([1.0, 2.0]))
    out = jax.vmap(lambda tx: tx.update(G, tx.init(G))[0]["w"])(stacked)
    assert out.tolist() == [[-2.0], [-4.0]]


def test_integer_gradients_are_refused():
    tx = fnopt.scale_by_learning_rate(0.1)
    with pytest.raises(TypeError, match=r"leaf 'n' is int32\[2\], expected a floating array"):
        tx.update({"n": jnp.ones(2, jnp.int32)}, tx.init(G))
