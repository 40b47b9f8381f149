"""What notebooks show for the last line of a cell."""

import jax.numpy as jnp
import pytest

import fnopt

pretty = pytest.importorskip("IPython.lib.pretty").pretty


def test_states_show_shapes_and_counts():
    tx = fnopt.lookahead(fnopt.adam(0.1), 5, 0.5)
    text = pretty(tx.init({"w": jnp.ones((3, 2), jnp.bfloat16)}))
    assert "ScaleByAdamState(count=0" in text
    assert "mu={'w': float32[3,2]}" in text
    assert "[[" not in text


def test_results_show_their_report():
    solution = fnopt.least_squares(lambda p: p - 1.0, jnp.zeros(2))
    assert pretty(solution) == str(solution)
    cost = fnopt.costs.cost(lambda x: x @ x)(jnp.ones((2, 2)))
    assert pretty(cost) == str(cost)


def test_optimizers_show_their_call():
    assert pretty(fnopt.sgd(0.1)) == "chain(scale_by_learning_rate(learning_rate=0.1))"
