"""Parts of saved trees in fresh ones: what is taken, what isn't, and that the report says so."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import tree

PARAMS = {"head": {"w": jnp.ones((2, 2))}, "trunk": [jnp.full(3, 2.0), jnp.full(3, 3.0)]}


def after_a_step(tx, params=PARAMS):
    return tx.update(params, tx.init(params), params)[1]


def test_everything_fits_into_itself():
    state = after_a_step(fnopt.adam(1e-3))
    back, report = tree.restore(fnopt.adam(1e-3).init(PARAMS), state)
    assert report.complete
    assert "fresh" not in str(report)
    jax.tree.map(np.testing.assert_array_equal, back, state)


def test_leaves_without_numbers_stay_and_are_not_reported():
    fresh = {"activation": jnp.tanh, "w": jnp.zeros(2)}
    back, report = tree.restore(fresh, {"activation": jax.nn.relu, "w": jnp.ones(2)})
    assert report.complete
    assert report.taken == ("w",)
    assert back["activation"] is jnp.tanh
    np.testing.assert_array_equal(back["w"], jnp.ones(2))


def test_renamed_dropped_and_reshaped_parts():
    saved = {"encoder": {"0": np.full(3, 5.0), "9": np.ones(1)}, "head": {"w": np.ones((2, 7))}}
    new, report = tree.restore(PARAMS, saved, rename={"encoder": "trunk"})
    assert report.taken == ("trunk/0",)
    assert report.fresh == ("trunk/1",)
    assert report.left_over == ("trunk/9",)
    assert list(report.reshaped) == ["head/w"]
    np.testing.assert_array_equal(new["trunk"][0], np.full(3, 5.0))
    assert new["trunk"][0].dtype == jnp.float32
    assert new["trunk"][1] is PARAMS["trunk"][1]
    assert str(report).splitlines()[2].startswith("'head/w' not restored: saved as")


def test_the_optimizer_changes_in_mid_run():
    old = after_a_step(fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adam(1e-3)))
    new, report = tree.restore(fnopt.adamw(1e-3).init(PARAMS), old)
    for slot in ("mu", "nu"):
        jax.tree.map(np.testing.assert_array_equal, fnopt.slots(new)[slot], fnopt.slots(old)[slot])
    assert {"mu/head/w", "nu/trunk/1"} <= {*report.taken}
    assert not report.reshaped
    # what stands elsewhere and is no slot stays fresh, and is said
    assert all("count" in name for name in (*report.fresh, *report.left_over))


def test_a_tree_of_slots_goes_into_a_vector_and_back():
    plain, packed = fnopt.adam(1e-2), fnopt.flatten(fnopt.adam(1e-2))
    old = after_a_step(plain)
    there = {i: f"inner_state/{i}" for i in "01"}
    new, report = tree.restore(packed.init(PARAMS), old, rename=there)
    assert report.complete
    assert {"mu", "nu"} <= {*report.taken}
    back, report = tree.restore(plain.init(PARAMS), new, rename={v: k for k, v in there.items()})
    assert report.complete
    jax.tree.map(np.testing.assert_array_equal, back, old)
    # and it goes on as if nothing had happened
    expected = plain.update(PARAMS, old, PARAMS)[0]
    jax.tree.map(np.testing.assert_array_equal, packed.update(PARAMS, new, PARAMS)[0], expected)
    bigger = {**PARAMS, "adapter": jnp.ones(4)}
    _, report = tree.restore(packed.init(bigger), old)
    assert {"mu", "nu"} <= {*report.fresh}
    assert {"mu/head/w", "nu/trunk/0"} <= {*report.left_over}


def test_a_leaf_more_in_mid_run():
    old = after_a_step(fnopt.adam(1e-3))
    bigger = {**PARAMS, "adapter": jnp.ones(4)}
    new, report = tree.restore(fnopt.adam(1e-3).init(bigger), old)
    assert report.fresh == ("mu/adapter", "nu/adapter")
    assert int(new[0].count) == 1


def test_values_go_where_the_fresh_ones_are():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    fresh = {"w": jax.device_put(jnp.zeros((4, 2), jnp.bfloat16), NamedSharding(mesh, P("d")))}
    new, _ = tree.restore(fresh, {"w": np.ones((4, 2))})
    assert new["w"].sharding == fresh["w"].sharding
    assert new["w"].dtype == jnp.bfloat16


def test_refuses_what_is_ambiguous_and_what_is_no_number_of_its_kind():
    with pytest.raises(ValueError, match="2 saved leaves have the name 'b' after renaming"):
        tree.restore({"b": 1.0}, {"a": 1.0, "b": 2.0}, rename={"a": "b"})
    new, report = tree.restore({"n": jnp.asarray(1)}, {"n": np.float32(2.5)})
    assert report.reshaped == {"n": ("int32[]", "float32[]")}
    assert int(new["n"]) == 1


LINE = fnopt.linear_schedule(1.0, 0.0, transition_steps=10)


def old_state(tx, steps=4):
    """A state as it was saved when every member counted: plain dicts, a count for each."""
    names = [str(i) for i in range(len(tx.init(PARAMS)))]
    state = after_a_step(tx)
    return {
        i: {k: v for k, v in part._asdict().items() if k != "count"} | {"count": np.int32(steps)}
        for i, part in zip(names, state, strict=True)
    }


def test_old_states_with_a_count_for_every_member():
    tx = fnopt.adamw(1e-3)
    state, report = tree.restore(tx.init(PARAMS), old_state(tx))
    assert report.complete
    assert report.dropped == ("1/count", "2/count")
    assert int(tree.get(state, "count")) == 4
    jax.tree.map(np.testing.assert_array_equal, state[0].mu, after_a_step(tx)[0].mu)
    state, report = tree.restore(fnopt.adamw(LINE).init(PARAMS), old_state(tx))
    assert report.complete
    assert int(state[2].count) == 4
    # where nothing counts any more the number is left over, and said
    _, report = tree.restore(fnopt.sgd(0.1).init(PARAMS), old_state(fnopt.sgd(0.1)))
    assert report.left_over == ("0/count",)


def test_counts_follow_a_chain_that_grew():
    old = after_a_step(fnopt.adamw(LINE))
    tx = fnopt.chain(fnopt.clip(1.0), fnopt.reduce_on_plateau(), fnopt.adamw(LINE))
    new, report = tree.restore(tx.init(PARAMS), old)
    assert [int(new[2][0].count), int(new[2][2].count)] == [1, 1]
    assert int(new[1].count) == 0  # which counts losses
    assert "1/count" in report.fresh


def test_counts_of_another_pace_are_not_taken():
    """In a partition the nearest count is that of the same group; where they differ, none is."""
    labels = {"head": "a", "trunk": "b"}
    old_tx = fnopt.partition({"a": fnopt.adamw(0.1), "b": fnopt.adamw(0.1)}, labels)
    new_tx = fnopt.partition({"a": fnopt.adamw(LINE), "b": fnopt.sgd(LINE)}, labels)
    old = after_a_step(old_tx)
    old = {**old, "b": tree.set(old["b"], count=9)}
    new, _ = tree.restore(new_tx.init(PARAMS), old)
    assert [int(x) for _, x in tree.get_all_with_path(new, "count")] == [1, 1, 9]
    _, report = tree.restore({"c": fnopt.sgd(LINE).init(PARAMS)}, old)
    assert report.fresh == ("c/0/count",)


def test_steps_of_an_accumulation_are_not_its_calls():
    def make(inner, outer):
        return fnopt.chain(fnopt.accumulate(inner, 2), outer)

    tx = make(fnopt.sgd(0.1), fnopt.identity())
    state = tx.init(PARAMS)
    for _ in range(6):
        state = tx.update(PARAMS, state, PARAMS)[1]
    new, report = tree.restore(make(fnopt.sgd(LINE), fnopt.scale(1.0)).init(PARAMS), state)
    assert report.complete
    assert report.counted == {"0/inner_state/0/count": "0/gradient_step"}
    assert int(tree.get(new, "count")) == 3
    # what stands outside is called more often: its number is in none of the counts
    fresh = make(fnopt.sgd(LINE), fnopt.scale_by_schedule(LINE)).init(PARAMS)
    _, report = tree.restore(fresh, new)
    assert report.fresh == ("1/count",)
    # without the accumulation, the steps are the calls
    new, report = tree.restore(fnopt.sgd(LINE).init(PARAMS), state)
    assert int(tree.get(new, "count")) == 3


def test_the_number_of_steps_as_an_argument():
    saved = after_a_step(fnopt.sgd(0.1))
    fresh = fnopt.sgd(LINE).init(PARAMS)
    _, report = tree.restore(fresh, saved)
    assert report.fresh == ("0/count",)
    new, report = tree.restore(fresh, saved, count=5)
    assert report.complete
    assert report.counted == {"0/count": "count="}
    assert int(new[0].count) == 5
    assert new[0].count.dtype == jnp.int32


def test_codes_in_other_blocks_are_not_taken_without_their_scales():
    params = {"w": jnp.arange(16.0)}

    def stepped(block_size):
        tx = fnopt.quantized_state(fnopt.adam(0.1), block_size=block_size, min_size=4)
        return tx, tx.update(params, tx.init(params), params)[1]

    (tx, saved), (other, _) = stepped(8), stepped(4)
    found, report = tree.restore(other.init(params), saved)
    assert {"mu/w/0", "mu/w/1", "nu/w/0", "nu/w/1"} == {*report.reshaped}
    assert not fnopt.slots(found)["mu"]["w"][0].any()
    assert tree.restore(tx.init(params), saved)[1].complete


def test_codes_of_other_bits_are_not_taken():
    params = {"w": jnp.arange(16.0)}
    wide, narrow = (
        fnopt.quantized_state(fnopt.adam(0.1), block_size=8, min_size=4, bits=bits)
        for bits in (8, 4)
    )
    for tx, other in ((wide, narrow), (narrow, wide)):
        saved = tx.update(params, tx.init(params), params)[1]
        found, _ = tree.restore(other.init(params), saved)
        assert not fnopt.slots(found)["mu"]["w"][1].any()
