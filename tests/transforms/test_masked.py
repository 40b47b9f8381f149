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
        (lambda: fnopt.masked(fnopt.sgd(1.0), bool), TypeError, "mask = bool is a function: write"),
        (
            lambda: fnopt.masked(fnopt.sgd(1.0), {"dense": True}).init(PARAMS),
            ValueError,
            r"^masked: leaves without a label: \['scale'\]",
        ),
        (
            lambda: fnopt.chain(fnopt.masked(fnopt.sgd(1.0), "*/bia")).init(PARAMS),
            ValueError,
            r"^chain\[0\] > masked: by_pattern: none of \['\*/bia'\] matches",
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
