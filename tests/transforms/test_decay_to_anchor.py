"""Decay towards the start, and decay apart from the learning rate, written out."""

import jax.numpy as jnp
import numpy as np

import fnopt
from tests.optimizers.written_out import START, assert_same, by_hand, path


def test_pull_to_the_start():
    """In front of momentum it is the gradient of a penalty; masked, of some leaves."""

    def step(name, t, p, g, s):
        pull = 0.3 * (p - START[name]) if name == "kernel" else 0.2 * p
        s["m"] = 0.9 * s.get("m", 0.0) + g + pull
        return -0.05 * s["m"]

    tx = fnopt.chain(
        fnopt.masked(fnopt.decay_to_anchor(0.3), "kernel"),
        fnopt.add_decayed_weights(0.2, fnopt.by_pattern({"kernel": False}, default=True)),
        fnopt.sgd(0.05, momentum=0.9),
    )
    assert_same(path(tx), by_hand(step))


def test_decay_apart_from_the_rate():
    def step(name, t, p, g, s):
        return -0.05 * g - (0.01 * (1 - (t - 1) / 10 if t < 11 else 0.0) * p if t else 0.0)

    decay = fnopt.linear_schedule(0.01, 0.0, 10)
    tx = fnopt.chain(fnopt.sgd(0.05), fnopt.independent_weight_decay(decay))
    assert_same(path(tx), by_hand(step))


def test_the_mask_of_the_decay():
    tx = fnopt.independent_weight_decay(0.5, "kernel")
    params = {"kernel": jnp.ones(1), "bias": jnp.ones(1)}
    updates, _ = tx.update(params, tx.init(params), params)
    assert [float(updates[k][0]) for k in params] == [0.5, 1.0]
    assert np.isfinite(tx.weight_decay)
