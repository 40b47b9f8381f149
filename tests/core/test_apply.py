import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fnopt


def test_casts_to_the_params_dtype():
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones((), jnp.float16)}
    updates = {"a": jnp.full(2, 0.5, jnp.float32), "b": jnp.ones((), jnp.bfloat16)}
    new = fnopt.apply_updates(params, updates)
    assert (new["a"].dtype, new["b"].dtype) == (jnp.bfloat16, jnp.float16)
    assert new["a"].tolist() == [1.5, 1.5]


def test_sums_in_the_wider_dtype():
    # 1 + 2^-9 + 2^-9 rounds to 1 in bfloat16 unless the update keeps its own precision
    params = jnp.ones((), jnp.bfloat16)
    assert float(fnopt.apply_updates(params, jnp.asarray(2.0**-7 * 0.75))) == 1.0078125


@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2", "float8_e4m3fn"])
def test_params_beyond_the_range_of_a_dtype_are_its_largest_number(dtype):
    largest = float(jnp.finfo(dtype).max)
    params, updates = jnp.full(4, largest, dtype), jnp.asarray([1e20, -3 * largest, 0, jnp.nan])
    expected = np.asarray([largest, -largest, largest, np.nan])
    found = fnopt.apply_updates(params, updates)
    assert found.dtype == dtype
    np.testing.assert_array_equal(np.asarray(found, np.float32), expected)
    rows = fnopt.core.Rows(jnp.arange(4), updates[:, None], 4)
    table = fnopt.apply_updates(params[:, None], rows)
    np.testing.assert_array_equal(np.asarray(table, np.float32)[:, 0], expected)


def test_none_updates_leave_params_alone():
    kept = jnp.ones(2)
    new = fnopt.apply_updates({"a": kept, "b": None}, {"a": None, "b": None})
    assert new["a"] is kept
    assert new["b"] is None


def test_integers_are_added_exactly():
    params = {"n": jnp.asarray(2**24 + 1, jnp.int32), "on": jnp.ones((), bool)}
    new = fnopt.apply_updates(params, jax.tree.map(jnp.zeros_like, params))
    assert (int(new["n"]), bool(new["on"])) == (2**24 + 1, True)
    assert (new["n"].dtype, new["on"].dtype) == (jnp.int32, jnp.bool_)
    zero = jax.grad(lambda p: p["n"].astype(float), allow_int=True)({"n": params["n"]})
    assert int(fnopt.apply_updates({"n": params["n"]}, zero)["n"]) == 2**24 + 1


def test_no_fraction_is_added_to_an_integer():
    text = "leaf 'n': params are int32, updates are float32, expected integer updates. Freeze"
    with pytest.raises(TypeError, match=text):
        fnopt.apply_updates({"n": jnp.ones((), jnp.int32)}, {"n": jnp.ones(())})


@pytest.mark.parametrize(
    ("params", "updates", "text"),
    [
        ({"w": jnp.ones(3)}, {"w": jnp.ones(1)}, r"leaf 'w': params have shape \(3,\), updates"),
        ({"w": jnp.ones(())}, {"w": jnp.ones(2)}, r"updates have shape \(2,\)"),
        (
            {"w": jnp.ones(3)},
            {"v": jnp.ones(3)},
            r"updates lack .'w'.; updates have .'v'., which params lack, exp",
        ),
        (None, {"w": jnp.ones(3)}, "params are None, expected equal structures"),
        ({"w": jnp.ones(3)}, None, "updates are None, expected equal structures"),
        ({"w": None}, {"w": jnp.ones(3)}, "leaf 'w' of params is None, but its update isn't"),
    ],
)
def test_nothing_is_broadcast(params, updates, text):
    with pytest.raises(ValueError, match=text):
        fnopt.apply_updates(params, updates)


shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
trees = st.recursive(
    shapes.map(lambda s: ("leaf", s)) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=5,
)


def _build(spec):
    if isinstance(spec, tuple) and spec and spec[0] == "leaf":
        return jnp.ones(spec[1])
    if isinstance(spec, list):
        return [_build(s) for s in spec]
    if isinstance(spec, dict):
        return {k: _build(s) for k, s in spec.items()}
    return None


@settings(max_examples=30, deadline=None)
@given(trees)
def test_any_tree(spec):
    params = _build(spec)
    tx = fnopt.chain(fnopt.clip(0.5), fnopt.scale_by_learning_rate(1.0))
    updates, _ = tx.update(params, tx.init(params), params)
    new = fnopt.apply_updates(params, updates)
    assert jax.tree.structure(new) == jax.tree.structure(params)
    for x in jax.tree.leaves(new):
        np.testing.assert_array_equal(x, 0.5)


@pytest.mark.parametrize("updates", [{"act": jnp.tanh, "w": jnp.ones(2)}, {"act": 1.0, "w": None}])
def test_a_leaf_without_numbers_is_named(updates):
    with pytest.raises(TypeError, match=r"act.*expected an array"):
        fnopt.apply_updates({"act": jnp.tanh, "w": jnp.ones(2)}, updates)


def test_a_leaf_without_numbers_stays_where_it_has_no_update():
    new = fnopt.apply_updates({"act": jnp.tanh, "w": jnp.ones(2)}, {"act": None, "w": jnp.ones(2)})
    assert new["act"] is jnp.tanh


def test_sums_are_strongly_typed():
    weak = jnp.asarray(1.0)
    assert weak.weak_type
    assert not fnopt.apply_updates({"w": weak}, {"w": weak})["w"].weak_type


def test_updates_with_their_state():
    params, tx = {"w": jnp.ones(2)}, fnopt.sgd(0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"updates, state = tx.update"):
        fnopt.apply_updates(params, tx.update(params, tx.init(params), params))
    pair = (jnp.ones(2), jnp.ones(()))  # params that are a pair of their own
    assert fnopt.apply_updates(pair, pair)[1] == 2
