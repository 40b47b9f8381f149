"""Finding and replacing things by name, in our states and in optax's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import tree

PARAMS = {"w": jnp.ones(2), "b": jnp.zeros(())}
TX = fnopt.chain(fnopt.clip(1.0), fnopt.adamw(fnopt.linear_schedule(0.1, 0.0, 10)))
STATE = TX.init(PARAMS)


def peer():
    optax = pytest.importorskip("optax")
    tx = optax.inject_hyperparams(optax.adamw)(learning_rate=0.1)
    return optax, tx, tx.init(PARAMS)


def test_the_same_things_are_found_as_by_optax():
    optax, _, state = peer()
    for key in ("mu", "count", "learning_rate", "ScaleByAdamState", "nothing", "w"):
        ours = tree.get_all_with_path(state, key)
        theirs = optax.tree.get_all_with_path(state, key)
        assert len(ours) == len(theirs)
        for (_, a), (_, b) in zip(ours, theirs, strict=True):
            assert jax.tree.structure(a) == jax.tree.structure(b)
    assert float(tree.get(state, "learning_rate")) == float(jnp.float32(0.1))


def test_values_of_optax_states_are_replaced():
    _, tx, state = peer()
    state = tree.set(state, learning_rate=0.5)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = tx.update(PARAMS, state, PARAMS)
    np.testing.assert_allclose(updates["b"], 0.0)
    np.testing.assert_allclose(updates["w"], -0.5, rtol=1e-3)
    assert tree.get(state, "learning_rate").dtype == jnp.float32


def test_states_are_found_by_field_class_and_filter():
    assert tree.get(STATE, "mu") is fnopt.slots(STATE)["mu"]
    adam = tree.get(STATE, "ScaleByAdamState")
    assert adam.mu is tree.get(STATE, "mu")

    def in_adam(path, value):
        return getattr(path[-1], "tuple_name", "") == "ScaleByAdamState"

    assert tree.get(STATE, "count", filtering=in_adam) is adam.count
    assert tree.get(STATE, "nothing", default=3) == 3


def test_names_that_are_not_unique_are_listed():
    twice = {"a": {"count": 1}, "b": {"count": 2}}
    with pytest.raises(KeyError, match="got 2 values for 'count', at 'a/count', 'b/count'"):
        tree.get(twice, "count")
    assert tree.set(twice, count=5) == {"a": {"count": 5}, "b": {"count": 5}}
    only_b = tree.set(twice, lambda path, value: path[0].key == "b", count=5)
    assert only_b == {"a": {"count": 1}, "b": {"count": 5}}


def test_replacing_keeps_the_rest_and_the_types():
    state = tree.set(STATE, lambda path, value: "Adam" in str(path[-1]), count=7)
    found = tree.get(state, "ScaleByAdamState").count
    assert (int(found), found.dtype, found.weak_type) == (7, jnp.int32, False)
    assert tree.get(state, "mu") is tree.get(STATE, "mu")
    assert jax.tree.structure(state) == jax.tree.structure(STATE)


def test_hyper_parameters_of_an_optimizer_are_read_and_changed():
    assert tree.get(TX, "b1") == 0.9
    changed = tree.set(TX, b1=0.8, learning_rate=0.5)
    assert tree.get(changed, "learning_rate") == 0.5
    assert tree.get(changed, "scale_by_adam").b1 == 0.8
    with pytest.raises(ValueError, match=r"b1 = 2.0, expected b1 >= 0 and b1 < 1"):
        tree.set(TX, b1=2.0)


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(KeyError, match=r"the name 'learning_rat'.*mean 'learning_rate'"):
        tree.set(TX, learning_rat=0.1)


def test_map_params_meets_the_slots_only():
    mapped = tree.map_params(
        TX, lambda x, path: path, STATE, fnopt.leaf_paths(PARAMS), transform_non_params=lambda x: 0
    )
    assert tree.get(mapped, "mu") == tree.get(mapped, "nu") == {"w": "w", "b": "b"}
    adam = tree.get(mapped, "ScaleByAdamState")
    assert adam.count == 0


@pytest.mark.parametrize(
    "tx",
    [
        fnopt.masked(fnopt.adam(0.1), {"w": True, "b": False}),
        fnopt.partition({"a": fnopt.adam(0.1), "s": fnopt.sgd(0.1)}, {"w": "a", "b": "s"}),
    ],
    ids=["masked", "partition"],
)
def test_map_params_passes_over_what_a_mask_leaves_out(tx):
    names = fnopt.leaf_paths(PARAMS)
    mapped = tree.map_params(tx, lambda x, path: path, tx.init(PARAMS), names)
    assert tree.get(mapped, "mu") == {"w": "w", "b": None}


def test_map_params_agrees_with_optax_on_its_states():
    optax, tx, state = peer()
    ours = tree.map_params(tx, lambda x: x + 1, state)
    theirs = optax.tree.map_params(tx, lambda x: x + 1, state)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    assert bool(tree.allclose(ours, theirs))
    assert jax.tree.structure(tree.map_params(tx.init, jnp.zeros_like, state)) is not None
