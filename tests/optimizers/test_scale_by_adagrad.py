from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import fnopt


def test_steps_shrink_with_the_root_of_time():
    tx = fnopt.scale_by_rss(initial_accumulator_value=0.0, eps=0.0)
    g = {"w": jnp.asarray([2.0, -7.0])}
    state = tx.init(g)
    for t in range(1, 6):
        updates, state = tx.update(g, state)
        np.testing.assert_allclose(updates["w"], [t**-0.5, -(t**-0.5)], rtol=1e-6)


def test_the_sum_is_kept_in_float32_for_bfloat16_params():
    """In bfloat16 256 + 1 is 256, and small gradients would never count."""
    tx = fnopt.scale_by_rss(initial_accumulator_value=256.0)
    g = {"w": jnp.ones((), jnp.bfloat16)}
    state = tx.init(g)
    for _ in range(4):
        _, state = tx.update(g, state)
    assert float(state.sum_of_squares["w"]) == 260.0
