from __future__ import annotations

import jax.numpy as jnp
import pytest

import fnopt

G = {"w": jnp.asarray(1.0)}


def run(tx, n):
    state, seen = tx.init(G), []
    for _ in range(n):
        updates, state = tx.update(G, state)
        seen.append(float(updates["w"]))
    return seen, state


def test_a_constant_gradient_sums_to_a_geometric_series():
    seen, state = run(fnopt.trace(0.5), 4)
    assert seen == [1.0, 1.5, 1.75, 1.875]
    assert float(state.trace["w"]) == 1.875


def test_nesterov_is_one_step_ahead():
    """With a constant gradient the look-ahead is what plain momentum gives a step later."""
    assert run(fnopt.trace(0.5, nesterov=True), 3)[0] == run(fnopt.trace(0.5), 4)[0][1:]


def test_decay_zero_is_no_momentum():
    assert run(fnopt.trace(0.0), 3)[0] == [1.0, 1.0, 1.0]
    assert run(fnopt.trace(0.0, nesterov=True), 3)[0] == [1.0, 1.0, 1.0]


def test_small_gradients_reach_a_bfloat16_params_sum():
    """In bfloat16 1 + 0.001 is 1: the sum is kept in float32."""
    params = {"w": jnp.ones((), jnp.bfloat16)}
    tx = fnopt.trace(1.0)
    state = tx.init(params)
    for g in (1.0, 0.001, 0.001):
        _, state = tx.update({"w": jnp.asarray(g, jnp.bfloat16)}, state)
    assert float(state.trace["w"]) == pytest.approx(1.002, rel=1e-4)


def test_decay_above_one_is_refused():
    with pytest.raises(ValueError, match=r"trace: decay = 1\.5, expected decay >= 0 and"):
        fnopt.trace(1.5)
