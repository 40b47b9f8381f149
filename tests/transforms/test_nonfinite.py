"""Guards against invalid updates: NaN, infinities, and negative parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.contract.trees import assert_identical, make_tree, signature
from tests.transforms.test_accumulate import run
from tests.transforms.test_masked import needs_value


def spoiled(value, seed=1, leaf="scale"):
    return {**make_tree(seed), leaf: jnp.asarray(value)}


class reciprocal(fnopt.Transformation):
    """Has an infinite update for a zero gradient."""

    def update(self, updates, state, params=None, **extra_args):
        return jax.tree.map(lambda g: 1 / g, updates), state


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_a_bad_gradient_changes_nothing(bad):
    tx = fnopt.apply_if_finite(fnopt.adam(0.1))
    (_, before), (updates, after), (_, later) = run(tx, [make_tree(1), spoiled(bad), make_tree(2)])
    assert all(not np.any(u) for u in jax.tree.leaves(updates))
    assert_identical(after.inner_state, before.inner_state)
    assert (int(after.notfinite_count), bool(after.last_finite)) == (1, False)
    assert (int(later.notfinite_count), bool(later.last_finite)) == (0, True)
    assert int(later.total_notfinite) == 1


def test_good_steps_are_those_of_the_inner_transform():
    inner, good = fnopt.adam(0.1), [make_tree(i) for i in range(1, 5)]
    guarded = run(fnopt.apply_if_finite(inner), [*good[:2], spoiled(jnp.nan), *good[2:]])
    del guarded[2]
    for (updates, state), (expected, inner_state) in zip(guarded, run(inner, good), strict=True):
        close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
        jax.tree.map(close, updates, expected)
        jax.tree.map(close, state.inner_state, inner_state)


def test_a_bad_update_from_a_good_gradient_changes_nothing():
    seen = run(fnopt.apply_if_finite(reciprocal()), [spoiled(0.0), make_tree(1)])
    assert all(not np.any(u) for u in jax.tree.leaves(seen[0][0]))
    assert [bool(state.last_finite) for _, state in seen] == [False, True]


def test_a_state_that_would_overflow_is_kept():
    # Both gradients are finite, their momentum is not.
    tx = fnopt.apply_if_finite(fnopt.trace(0.9))
    _, (updates, state), (_, after) = run(tx, [spoiled(3e38), spoiled(3e38), make_tree(1)])
    assert not state.last_finite
    assert all(not np.any(u) for u in jax.tree.leaves(updates))
    assert after.last_finite
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(after))


def test_an_infinity_kept_on_purpose_is_no_error():
    optax = pytest.importorskip("optax")
    tx = fnopt.apply_if_finite(optax.contrib.reduce_on_plateau())
    assert any(np.isinf(x).any() for x in jax.tree.leaves(tx.init(make_tree(0))))
    with jax.numpy_dtype_promotion("standard"):
        (_, state), _ = run(tx, [make_tree(1)] * 2, value=jnp.asarray(1.0))
    assert bool(state.last_finite)


def test_no_bad_step_is_ever_taken_by_default():
    seen = run(fnopt.apply_if_finite(fnopt.sgd(0.1)), [spoiled(jnp.nan)] * 20)
    assert all(not np.any(u) for updates, _ in seen for u in jax.tree.leaves(updates))
    assert int(seen[-1][1].notfinite_count) == 20


@pytest.mark.parametrize("most", [0, 2])
def test_a_limit_is_that_of_the_peer(most):
    optax = pytest.importorskip("optax")
    nan, inf = spoiled(jnp.nan), spoiled(jnp.inf)
    grads = [make_tree(1), nan, make_tree(2), nan, inf, nan, make_tree(3)]
    inner = optax.sgd(0.1)
    ours = run(fnopt.apply_if_finite(inner, most), grads)
    theirs = run(optax.apply_if_finite(inner, most), grads)
    for (updates, state), (expected, peer_state) in zip(ours, theirs, strict=True):
        jax.tree.map(np.testing.assert_array_equal, updates, expected)
        assert state.notfinite_count == peer_state.notfinite_count
        assert state.last_finite == peer_state.last_finite
        assert state.total_notfinite == peer_state.total_notfinite


@pytest.mark.parametrize(("params", "grads"), [("f32", "f32"), ("mixed", "mixed"), ("bf16", "f32")])
def test_types_never_change(params, grads):
    tx = fnopt.apply_if_finite(fnopt.adam(0.1))
    for updates, state in run(tx, [make_tree(1, grads)] * 2, make_tree(0, params)):
        assert signature(state) == signature(tx.init(make_tree(0, params)))
        assert signature(updates) == signature(make_tree(1, params))


def test_the_derivative_through_a_bad_step_is_finite():
    grads = {"w": jnp.asarray([jnp.nan, 1.0])}

    def loss(rate):
        tx = fnopt.apply_if_finite(fnopt.adam(rate))
        params = {"w": jnp.ones(2)}
        state = tx.init(params)
        for g in (grads, params):
            updates, state = tx.update(g, state, params)
            params = fnopt.apply_updates(params, updates)
        return jnp.sum(params["w"])

    np.testing.assert_allclose(jax.grad(loss)(0.1), -2.0, rtol=1e-5)


def test_integers_may_be_frozen_inside():
    params = {"n": jnp.asarray(3, jnp.int32), "w": jnp.ones(2)}
    grads = jax.grad(lambda p: jnp.sum(p["w"]), allow_int=True)(params)
    tx = fnopt.apply_if_finite(fnopt.freeze(fnopt.sgd(1.0), "n"))
    updates, state = tx.update(grads, tx.init(params), params)
    new = fnopt.apply_updates(params, updates)
    assert (int(new["n"]), new["w"].tolist()) == (3, [0.0, 0.0])
    assert bool(state.last_finite)


def test_extra_arguments_reach_the_inner_transform():
    tx = fnopt.apply_if_finite(needs_value())
    (good, _), (bad, state) = [
        run(tx, [{"w": jnp.ones(2)}], {"w": jnp.ones(2)}, value=jnp.asarray(v))[0]
        for v in (5.0, jnp.nan)
    ]
    assert (float(good["w"][0]), float(bad["w"][0])) == (5.0, 0.0)
    assert not state.last_finite


def test_vmap_guards_every_member_by_itself():
    tx, params = fnopt.apply_if_finite(fnopt.sgd(1.0)), jnp.ones((2, 3))
    grads = params.at[0, 0].set(jnp.nan)
    updates, state = jax.vmap(tx.update)(grads, jax.vmap(tx.init)(params), params)
    np.testing.assert_array_equal(updates, [[0, 0, 0], [-1, -1, -1]])
    np.testing.assert_array_equal(state.last_finite, [False, True])


def test_the_state_is_not_copied():
    n, tx = 1 << 16, fnopt.apply_if_finite(fnopt.adam(0.1))
    params = {"w": jnp.ones(n)}

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return fnopt.apply_updates(params, updates), state

    memory = step.lower(params, tx.init(params), params).compile().memory_analysis()
    # the conditional hands its updates over in memory: one temporary of that size, no more
    assert memory.temp_size_in_bytes < 1.1 * 4 * n


def test_nothing_to_check_is_finite():
    tx = fnopt.apply_if_finite(fnopt.adam(0.1))
    assert bool(tx.update({}, tx.init({}))[1].last_finite)


def test_names_inside():
    tx, params = fnopt.apply_if_finite(fnopt.adam(0.1)), make_tree(0)
    state = tx.init(params)
    assert list(fnopt.named(tx, state)) == ["chain", "scale_by_adam", "scale_by_learning_rate"]
    assert fnopt.slot_names(tx, params) == ("mu", "nu")
    assert "max_consecutive_errors" not in fnopt.hyperparams(tx, state)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: fnopt.apply_if_finite(fnopt.sgd(1.0), -1),
            ValueError,
            "apply_if_finite: max_consecutive_errors = -1.0, expected max_consecutive_errors >= 0",
        ),
        (lambda: fnopt.apply_if_finite(3), TypeError, "apply_if_finite: inner is 3, expected an"),
        (
            lambda: run(fnopt.apply_if_finite(needs_value()), [make_tree(1)]),
            TypeError,
            "apply_if_finite > needs_value: update needs the extra argument 'value'",
        ),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_params_stay_nonnegative():
    tx = fnopt.chain(fnopt.sgd(1.0), fnopt.keep_params_nonnegative())
    params = {"w": jnp.asarray([0.5, 3.0, -1.0])}
    updates, _ = tx.update({"w": jnp.asarray([1.0, 1.0, 0.0])}, tx.init(params), params)
    np.testing.assert_array_equal(fnopt.apply_updates(params, updates)["w"], [0.0, 2.0, 0.0])


def test_complex_params_have_no_sign():
    tx, params = fnopt.keep_params_nonnegative(), {"w": jnp.ones(2, jnp.complex64)}
    with pytest.raises(TypeError, match="a param is complex, expected real params"):
        tx.update(params, tx.init(params), params)


def test_nan_becomes_zero_and_is_reported():
    tx = fnopt.zero_nans()
    g = {"a": jnp.asarray([jnp.nan, 1.0]), "b": jnp.asarray([jnp.inf, 1.0]), "c": jnp.arange(2)}
    updates, state = tx.update(g, tx.init(g))
    np.testing.assert_array_equal(updates["a"], [0.0, 1.0])
    assert bool(jnp.isinf(updates["b"][0]))  # an infinity is no NaN
    assert [bool(state.found_nan[k]) for k in "abc"] == [True, False, False]
    assert updates["c"].dtype == g["c"].dtype


def test_gradients_are_centred_over_inputs():
    g = {"kernel": jnp.asarray([[[1.0, 4.0]], [[3.0, 4.0]]]), "bias": jnp.asarray([1.0, 2.0])}
    updates, _ = fnopt.centralize().update(g, fnopt.centralize().init(g))
    np.testing.assert_array_equal(updates["kernel"], [[[-1.0, 0.0]], [[1.0, 0.0]]])
    assert updates["bias"] is g["bias"] or bool((updates["bias"] == g["bias"]).all())
