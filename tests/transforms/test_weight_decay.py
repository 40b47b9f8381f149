"""Weight decay: towards zero, and towards the initial parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.optimizers.written_out import START, assert_same, by_hand, path

PARAMS = {"dense": {"kernel": jnp.full((2, 2), 4.0), "bias": jnp.full(2, 4.0)}}
G = jax.tree.map(jnp.ones_like, PARAMS)


def decayed(mask, params=PARAMS):
    tx = fnopt.add_decayed_weights(0.5, mask)
    updates, _ = tx.update(G, tx.init(params), params)
    return float(updates["dense"]["kernel"].mean()), float(updates["dense"]["bias"].mean())


@pytest.mark.parametrize(
    "mask",
    [
        "*/kernel",
        fnopt.by_pattern("*/kernel"),
        fnopt.by_path(lambda path, leaf: leaf.ndim > 1),
        {"dense": {"kernel": True, "bias": False}},
    ],
    ids=["string", "pattern", "function", "tree"],
)
def test_masks_in_every_form(mask):
    assert decayed(mask) == (3.0, 1.0)


def test_all_leaves_without_a_mask():
    assert decayed(None) == decayed(True) == (3.0, 3.0)


def test_the_schedule_counts_steps():
    tx = fnopt.add_decayed_weights(fnopt.linear_schedule(1.0, 0.0, 2))
    state, seen = tx.init(PARAMS), []
    for _ in range(3):
        updates, state = tx.update(G, state, PARAMS)
        seen.append(float(updates["dense"]["bias"][0]))
    assert seen == [5.0, 3.0, 1.0]


def test_params_are_needed():
    tx = fnopt.adamw(0.1)
    with pytest.raises(ValueError, match=r"chain\[1\] > add_decayed_weights: update needs the par"):
        tx.update(G, tx.init(PARAMS))


def test_a_mask_that_fits_nothing_is_refused_by_init():
    with pytest.raises(ValueError, match=r"add_decayed_weights: .*'\*/gamma'.* match no leaf"):
        fnopt.add_decayed_weights(0.1, "*/gamma").init(PARAMS)


def test_a_bare_function_as_mask_is_refused_with_advice():
    with pytest.raises(TypeError, match=r"Write fnopt\.by_path\(fn\)"):
        fnopt.adamw(0.1, mask=lambda params: params)


def test_the_mask_is_part_of_the_value():
    tx = fnopt.adamw(0.1, mask="*/kernel")
    assert fnopt.from_config(fnopt.to_config(tx)) == tx
    assert tx != fnopt.adamw(0.1)


def test_inside_a_masked_transform():
    tx = fnopt.masked(fnopt.add_decayed_weights(0.5), "*/kernel")
    updates, _ = tx.update(G, tx.init(PARAMS), PARAMS)
    assert float(updates["dense"]["kernel"].mean()) == 3.0
    assert float(updates["dense"]["bias"].mean()) == 1.0


def test_updates_have_the_params_dtype():
    tx = fnopt.add_decayed_weights(0.5)
    g = jax.tree.map(lambda x: x.astype(jnp.bfloat16), G)
    updates, _ = tx.update(g, tx.init(PARAMS), PARAMS)
    assert {x.dtype for x in jax.tree.leaves(updates)} == {jnp.dtype(jnp.float32)}


def test_decay_is_not_rounded_away_by_bfloat16_gradients():
    # 1e-3 beside 1 is below bfloat16's rounding: between members the updates are float32
    params, g = {"w": jnp.ones(4)}, {"w": jnp.ones(4, jnp.bfloat16)}
    with_decay, without = fnopt.adamw(0.1, weight_decay=1e-3), fnopt.adamw(0.1, weight_decay=0.0)
    a, _ = with_decay.update(g, with_decay.init(params), params)
    b, _ = without.update(g, without.init(params), params)
    np.testing.assert_allclose(a["w"] - b["w"], -1e-4, rtol=1e-3)


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
