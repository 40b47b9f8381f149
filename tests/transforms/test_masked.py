"""Transforms for selected leaves, and frozen parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

PARAMS = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "scale": jnp.ones(())}
GRADS = jax.tree.map(lambda p: 3 * p, PARAMS)
EMPTY = fnopt.core.EmptyState()


class needs_value(fnopt.Transformation):
    """Scales by an extra argument that it can't do without."""

    needs_params = True

    def update(self, updates, state, params, *, value, **extra_args):
        return jax.tree.map(lambda g: g * value, updates), state


def test_the_others_pass_through_as_they_are():
    tx = fnopt.masked(fnopt.clip(1.0), "*/bias")
    updates, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    np.testing.assert_array_equal(updates["dense"]["bias"], [1, 1])
    assert updates["dense"]["kernel"] is GRADS["dense"]["kernel"]
    assert updates["scale"] is GRADS["scale"]


def test_the_others_have_no_state():
    tx = fnopt.masked(fnopt.adam(0.1), {"dense": True, "scale": False})
    state = tx.init(PARAMS)
    assert fnopt.slots(state)["mu"]["scale"] is None
    sizes = [x.size for x in jax.tree.leaves(fnopt.slots(state))]
    assert sum(sizes) == 2 * (4 + 2)


def test_equals_the_inner_transform_on_a_smaller_tree():
    tx, alone = fnopt.masked(fnopt.adam(0.1), {"dense": True, "scale": False}), fnopt.adam(0.1)
    state, alone_state = tx.init(PARAMS), alone.init(PARAMS["dense"])
    for _ in range(3):
        updates, state = tx.update(GRADS, state, PARAMS)
        expected, alone_state = alone.update(GRADS["dense"], alone_state, PARAMS["dense"])
        jax.tree.map(np.testing.assert_array_equal, updates["dense"], expected)


def test_nothing_and_everything():
    everything = fnopt.masked(fnopt.sgd(1.0), "*")
    nothing = fnopt.masked(fnopt.sgd(1.0), False)
    for tx, factor in ((everything, -3.0), (nothing, 3.0)):
        updates, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
        jax.tree.map(lambda u, f=factor: np.testing.assert_array_equal(u, f), updates)


def test_extra_arguments_reach_the_inner_transform():
    tx = fnopt.masked(needs_value(), "scale")
    updates, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS, value=jnp.asarray(2.0))
    assert (float(updates["scale"]), float(updates["dense"]["bias"][0])) == (6.0, 3.0)


def test_a_function_sees_the_params_not_the_gradients():
    # a mask by dtype must be the same in init and update, although the gradients are float32
    is_low = fnopt.by_path(lambda path, leaf: leaf.dtype == jnp.bfloat16)
    tx = fnopt.masked(fnopt.sgd(1.0), is_low)
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2)}
    grads = {"a": jnp.ones(2), "b": jnp.ones(2)}
    updates, _ = tx.update(grads, tx.init(params), params)
    assert (float(updates["a"][0]), float(updates["b"][0])) == (-1.0, 1.0)


def test_masks_may_be_nested():
    # the inner mask was written for the whole tree, and some of its leaves are gone inside
    inner = fnopt.masked(
        fnopt.set_to_zero(), {"dense": {"kernel": False, "bias": True}, "scale": True}
    )
    tx = fnopt.masked(inner, "dense/*")
    updates, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert [float(x.max()) for x in jax.tree.leaves(updates)] == [0.0, 3.0, 3.0]


def test_names_inside():
    tx = fnopt.chain(fnopt.masked(fnopt.adam(0.1), "*"), fnopt.identity())
    state = tx.init(PARAMS)
    assert {"masked", "scale_by_adam", "identity"} <= set(fnopt.named(tx, state))
    assert float(fnopt.hyperparams(tx, state)["learning_rate"]) == np.float32(0.1)
    assert fnopt.slot_names(tx, PARAMS) == ("mu", "nu")


def test_a_foreign_inner_transform():
    optax = pytest.importorskip("optax")
    tx = fnopt.masked(optax.sgd(0.5, momentum=0.9), "*/bias")
    updates, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    np.testing.assert_array_equal(updates["dense"]["bias"], [-1.5, -1.5])
    assert updates["scale"] is GRADS["scale"]
    assert len(jax.tree.leaves(state)) == 1


def test_agrees_with_its_peer():
    # around the same inner transform, so that every bit is compared
    optax = pytest.importorskip("optax")
    mask = {"dense": {"kernel": True, "bias": False}, "scale": True}
    ours, theirs = fnopt.masked(optax.adam(0.1), mask), optax.masked(optax.adam(0.1), mask)
    state, their_state = ours.init(PARAMS), theirs.init(PARAMS)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(5):
            updates, state = ours.update(GRADS, state, PARAMS)
            expected, their_state = theirs.update(GRADS, their_state, PARAMS)
            jax.tree.map(np.testing.assert_array_equal, updates, expected)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: fnopt.masked(fnopt.sgd, "*"),
            TypeError,
            r"masked: inner is sgd, .*sgd\(\.\.\.\)\?",
        ),
        (lambda: fnopt.masked(fnopt.sgd(1.0), {"a": 2.0}), TypeError, "mask: leaf 'a' is 2.0"),
        (
            lambda: fnopt.masked(fnopt.sgd(1.0), bool),
            TypeError,
            "mask = bool is a function, expected a tree",
        ),
        (
            lambda: fnopt.masked(fnopt.sgd(1.0), {"dense": True}).init(PARAMS),
            ValueError,
            r"^masked: leaves without a label: \['scale'\]",
        ),
        (
            lambda: fnopt.chain(fnopt.masked(fnopt.sgd(1.0), "*/bia")).init(PARAMS),
            ValueError,
            r"^chain\[0\] > masked: by_pattern: the patterns \['\*/bia'\] match no leaf",
        ),
        (
            lambda: fnopt.masked(needs_value(), "*").update(
                GRADS, fnopt.transforms.states.MaskedState(fnopt.core.EmptyState()), PARAMS
            ),
            TypeError,
            "masked > needs_value: update needs the extra argument 'value'",
        ),
        (
            lambda: fnopt.masked(needs_value(), "*").update(
                GRADS, fnopt.transforms.states.MaskedState(fnopt.core.EmptyState())
            ),
            ValueError,
            "masked > needs_value: update needs the params",
        ),
        (
            lambda: fnopt.masked(fnopt.adam(1.0), "*").update(
                GRADS, fnopt.core.EmptyState(), PARAMS
            ),
            TypeError,
            "masked: the state is a EmptyState, expected MaskedState",
        ),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()


COUNT = 2**24 + 1  # not a float32


def make_params():
    return {
        "encoder": {"w": jnp.full((2,), 0.5, jnp.bfloat16), "steps": jnp.asarray(COUNT, jnp.int32)},
        "head": {"w": jnp.asarray([1.0, 2.0])},
    }


def loss(params):
    w = params["encoder"]["w"].astype(jnp.float32)
    return jnp.sum((w - params["head"]["w"]) ** 2)


def test_frozen_leaves_do_not_move():
    tx, params = fnopt.freeze(fnopt.adam(0.1), "encoder/*"), make_params()

    @jax.jit
    def step(params, state):
        grads = jax.grad(loss, allow_int=True)(params)
        updates, state = tx.update(grads, state, params)
        return fnopt.apply_updates(params, updates), state

    state, before = tx.init(params), make_params()
    for _ in range(50):
        params, state = step(params, state)
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], before["encoder"])
    assert params["encoder"]["steps"] == COUNT
    assert float(loss(params)) < 0.1 * float(loss(before))


def test_frozen_leaves_have_no_state():
    tx = fnopt.freeze(fnopt.adam(0.1), {"encoder": True, "head": False})
    slots = fnopt.slots(tx.init(make_params()))
    assert slots["mu"]["encoder"] == {"w": None, "steps": None}
    assert [x.shape for x in jax.tree.leaves(slots)] == [(2,), (2,)]


@pytest.mark.parametrize("with_params", [True, False])
def test_zeros_have_a_dtype_that_can_be_added(with_params):
    tx, params = fnopt.freeze(fnopt.sgd(0.1), "encoder/*"), make_params()
    grads = jax.grad(loss, allow_int=True)(params)
    given = params if with_params else None
    updates, _ = tx.update(grads, tx.init(params), given)
    assert updates["encoder"]["w"].dtype == jnp.bfloat16
    if with_params:
        assert updates["encoder"]["steps"].dtype == jnp.int32
    assert fnopt.apply_updates(params, updates)["encoder"]["steps"] == COUNT


def test_other_libraries_can_add_the_zeros():
    optax = pytest.importorskip("optax")
    tx, params = fnopt.freeze(fnopt.sgd(0.1), "encoder/*"), make_params()
    updates, _ = tx.update(jax.grad(loss, allow_int=True)(params), tx.init(params), params)
    assert optax.apply_updates(params, updates)["encoder"]["steps"] == COUNT


def test_gradients_of_frozen_leaves_may_be_nan():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    grads = {"a": jnp.full(2, jnp.nan), "b": jnp.ones(2)}
    tx = fnopt.freeze(fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.sgd(1.0)), "a")
    updates, _ = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(updates["a"], 0)
    np.testing.assert_allclose(updates["b"], -(0.5**0.5), rtol=1e-6)  # the NaN is not in the norm


def test_zeros_have_the_params_dtype():
    params = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2, jnp.bfloat16)}
    grads = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    tx = fnopt.freeze(fnopt.sgd(1.0), "a")
    updates, _ = tx.update(grads, tx.init(params), params)
    assert {u.dtype for u in jax.tree.leaves(updates)} == {jnp.dtype("bfloat16")}


def test_freezing_everything_is_no_step():
    params = make_params()
    tx = fnopt.freeze(fnopt.adam(0.1), "*")
    updates, state = tx.update(params, tx.init(params), params)
    assert fnopt.apply_updates(params, updates)["encoder"]["steps"] == COUNT
    assert all(x.size == 1 for x in jax.tree.leaves(state))


def test_an_integer_that_is_not_frozen_is_named():
    text = r"freeze > chain\[0\] > scale_by_adam: params: leaf 'encoder/steps' is int32\[\].*freeze"
    with pytest.raises(TypeError, match=text):
        fnopt.freeze(fnopt.adam(0.1), "head/*").init(make_params())


def test_a_misspelled_name_freezes_nothing_silently():
    with pytest.raises(
        ValueError, match=r"^freeze: by_pattern: the patterns \['encodr/\*'\] match"
    ):
        fnopt.freeze(fnopt.adam(0.1), "encodr/*").init(make_params())


def test_names_inside_frozen():
    tx = fnopt.freeze(fnopt.adam(fnopt.constant_schedule(0.5)), "encoder/*")
    state = tx.init(make_params())
    assert list(fnopt.named(tx, state)) == ["chain", "scale_by_adam", "scale_by_learning_rate"]
    assert float(fnopt.hyperparams(tx, state)["learning_rate"]) == 0.5
    assert fnopt.slot_names(tx, make_params()) == ("mu", "nu")


WRAPPERS = [
    lambda tx: tx,
    fnopt.apply_if_finite,
    fnopt.dynamic_loss_scale,
    fnopt.kahan,
    fnopt.master_copy,
    fnopt.stochastic_rounding,
    lambda tx: fnopt.quantized_state(tx, min_size=1),
]
OTHERS = {"key": jax.random.key(3), "n": jnp.asarray(2), "flag": jnp.asarray(True)}


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda w: getattr(w, "__name__", "")[:20])
def test_keys_numbers_and_flags_are_frozen_under_every_wrapper(wrapper):
    tx = wrapper(fnopt.freeze(fnopt.adam(0.5), list(OTHERS)))
    params = {**OTHERS, "w": jnp.ones(2)}

    @jax.jit
    def step(params, state):
        grads = jax.grad(lambda p: jnp.sum(p["w"]), allow_int=True)(params)
        updates, state = tx.update(grads, state, params)
        return fnopt.apply_updates(params, updates), updates, state

    new, updates, _ = step(params, tx.init(params))
    assert float(new["w"][0]) < 1
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    assert (jax.random.key_data(new["key"]) == jax.random.key_data(OTHERS["key"])).all()
    assert (int(new["n"]), bool(new["flag"])) == (2, True)


@pytest.mark.parametrize("name", list(OTHERS))
@pytest.mark.parametrize(
    "tx",
    [
        fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.sgd(0.1)),
        fnopt.chain(fnopt.sgd(0.1), fnopt.params_ema(0.9)),
        fnopt.prodigy(),
        fnopt.schedule_free_sgd(0.1),
        fnopt.skip_large_updates(fnopt.sgd(0.1), 1.0),
    ],
    ids=lambda tx: repr(tx)[:16],
)
def test_what_is_not_frozen_is_refused_by_name(tx, name):
    params = {"w": jnp.ones(2), name: OTHERS[name]}
    grads = jax.grad(lambda p: jnp.sum(p["w"]), allow_int=True)(params)
    with pytest.raises(TypeError, match=f"leaf '{name}' is .*fnopt.freeze"):
        tx.update(grads, tx.init(params), params)


@pytest.mark.parametrize(
    "make",
    [
        lambda mask: fnopt.freeze(fnopt.adamw(0.1), mask),
        lambda mask: fnopt.accumulate(fnopt.freeze(fnopt.adamw(0.1), mask), 1),
        lambda mask: fnopt.freeze(fnopt.accumulate(fnopt.adamw(0.1), 1), mask),
        lambda mask: fnopt.chain(fnopt.clip(1.0), fnopt.freeze(fnopt.adamw(0.1), mask)),
        lambda mask: fnopt.kahan(fnopt.freeze(fnopt.adamw(0.1), mask)),
    ],
)
@pytest.mark.parametrize(
    "other",
    [jnp.ones(2), jnp.asarray(3), jax.random.key(0), len],
    ids=["float", "int", "key", "function"],
)
def test_a_frozen_leaf_may_have_none_as_its_gradient(make, other):
    tx = make({"w": False, "other": True})
    params, grads = {"w": jnp.ones(2), "other": other}, {"w": jnp.ones(2), "other": None}
    state = tx.init(params)
    for _ in range(2):
        updates, state = tx.update(grads, state, params)
    assert updates["other"] is None
    alone = fnopt.adamw(0.1)
    expected, _ = alone.update(
        {"w": jnp.ones(2)}, alone.init({"w": jnp.ones(2)}), {"w": jnp.ones(2)}
    )
    np.testing.assert_allclose(updates["w"], expected["w"], rtol=1e-5)
    assert fnopt.apply_updates(params, updates)["other"] is other


@pytest.mark.parametrize(
    "make",
    [
        lambda inner: inner,
        lambda inner: fnopt.freeze(inner, "b"),
        lambda inner: fnopt.freeze(inner, {"w": False, "b": False, "fn": True}),
        lambda inner: fnopt.masked(inner, "b"),
        lambda inner: fnopt.masked(inner, "*"),
        lambda inner: fnopt.partition({"a": inner, "b": fnopt.set_to_zero()}, _LABELS),
        lambda inner: fnopt.chain(fnopt.clip(1.0), fnopt.freeze(inner, "b")),
        lambda inner: fnopt.accumulate(fnopt.freeze(inner, "b"), 2),
        lambda inner: fnopt.apply_if_finite(fnopt.freeze(inner, "b")),
    ],
)
@pytest.mark.parametrize("inner", [fnopt.adam(0.1), fnopt.sgd(0.1)], ids=["adam", "sgd"])
def test_a_leaf_that_is_not_frozen_needs_its_gradient(make, inner):
    tx, params = make(inner), {"w": jnp.ones(2), "b": jnp.ones(2), "fn": len}
    grads = {"w": None, "b": jnp.ones(2), "fn": None}
    state = tx.init({"w": jnp.ones(2), "b": jnp.ones(2), "fn": None})
    with pytest.raises(ValueError, match=r"gradients lack \['w'\]"):
        tx.update(grads, state, params)


_LABELS = fnopt.by_pattern({"fn": "b"}, default="a")


def test_what_set_to_zero_holds_may_go_without_a_gradient():
    tx = fnopt.partition({"a": fnopt.sgd(0.1), "b": fnopt.set_to_zero()}, {"w": "a", "b": "b"})
    params, grads = {"w": jnp.ones(2), "b": jnp.ones(2)}, {"w": jnp.ones(2), "b": None}
    updates, _ = tx.update(grads, tx.init(params), params)
    assert updates["b"] is None
    np.testing.assert_allclose(updates["w"], -0.1)


def test_a_partition_without_gradients_says_so():
    tx = fnopt.partition({"a": fnopt.adam(0.1)}, "a")
    with pytest.raises(ValueError, match=r"gradients are None, .* in fnopt.freeze"):
        tx.update(None, tx.init(jnp.ones(2)), jnp.ones(2))
