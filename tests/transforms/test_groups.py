from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

PARAMS = {"body": {"w": jnp.ones(2), "bias": jnp.ones(2)}, "head": {"w": jnp.full(2, 2.0)}}


def updates(tx):
    return tx.update(PARAMS, tx.init(PARAMS), PARAMS)[0]


def test_a_group_is_the_optimizer_with_its_numbers():
    slow = fnopt.linear_schedule(1e-3, 0.0, 10)
    groups = {"*/bias": {"weight_decay": 0.0}, "head/*": {"learning_rate": slow, "b1": 0.5}}
    got = updates(fnopt.param_groups(fnopt.adamw, groups, 0.1, weight_decay=0.5))
    alone = {
        "w": fnopt.adamw(0.1, weight_decay=0.5),
        "bias": fnopt.adamw(0.1, weight_decay=0.0),
        "head": fnopt.adamw(slow, b1=0.5, weight_decay=0.5),
    }
    expected = {
        "body": {k: updates(alone[k])["body"][k] for k in ("w", "bias")},
        "head": updates(alone["head"])["head"],
    }
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_layer_decay_scales_the_whole_step():
    factors = fnopt.layer_decay(0.5, ["body/w", "head/*"])
    plain = updates(fnopt.adamw(0.1, weight_decay=0.5))
    got = updates(fnopt.chain(fnopt.adamw(0.1, weight_decay=0.5), fnopt.scale_by_group(factors)))
    np.testing.assert_allclose(got["body"]["w"], 0.5 * plain["body"]["w"])
    np.testing.assert_array_equal(got["body"]["bias"], plain["body"]["bias"])
    np.testing.assert_array_equal(got["head"]["w"], plain["head"]["w"])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"the groups .*match no leaf"):
        fnopt.scale_by_group({"haed/*": 0.1, "body/*": 1.0}).init(PARAMS)
    with pytest.raises(TypeError, match="expected a dict of arguments"):
        fnopt.param_groups(fnopt.adam, {"head/*": 1e-4}, 0.1)
    with pytest.raises(TypeError, match="expected a dict whose keys are patterns"):
        fnopt.scale_by_group([("head/*", 0.1)])
    with pytest.raises(ValueError, match="expected a list of different patterns"):
        fnopt.layer_decay(0.5, ["a", "a"])
    with pytest.raises(ValueError, match="expected a number > 0"):
        fnopt.layer_decay(0.0, ["a", "b"])
