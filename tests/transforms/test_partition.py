import enum
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.transforms.test_masked import needs_value

PARAMS = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "scale": jnp.ones(())}
GRADS = jax.tree.map(lambda p: 3 * p, PARAMS)
LABELS = {"dense": {"kernel": "slow", "bias": "fast"}, "scale": "fast"}


def make(labels=LABELS, **transforms):
    transforms = {"slow": fnopt.sgd(0.1), "fast": fnopt.adam(1.0)} | transforms
    return fnopt.partition(transforms, labels)


def by_name(path, leaf):
    return "slow" if path.endswith("kernel") else "fast"


@pytest.mark.parametrize(
    "labels",
    [LABELS, fnopt.by_pattern({"*/kernel": "slow"}, default="fast"), fnopt.by_path(by_name)],
    ids=repr,
)
def test_every_leaf_has_the_step_of_its_label(labels):
    tx = make(labels)
    updates, state = jax.jit(tx.update)(GRADS, tx.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["dense"]["kernel"], -0.3, rtol=1e-6)
    np.testing.assert_allclose(updates["dense"]["bias"], -1.0, rtol=1e-5)
    np.testing.assert_allclose(updates["scale"], -1.0, rtol=1e-5)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(PARAMS))


def test_state_is_a_dict_by_label_without_the_others_leaves():
    state = make().init(PARAMS)
    assert set(state) == {"slow", "fast"}
    assert fnopt.slots(state)["mu"]["dense"]["kernel"] is None
    assert fnopt.slots(state)["mu"]["dense"]["bias"].shape == (2,)


def test_names_are_the_labels():
    tx = make()
    names = fnopt.named(tx, tx.init(PARAMS))
    assert {"slow", "fast", "scale_by_adam"} <= set(names)
    assert names["scale_by_adam"].mu["dense"]["kernel"] is None
    rates = fnopt.hyperparams(tx, tx.init(PARAMS))
    assert float(rates["slow/scale_by_learning_rate/learning_rate"]) == np.float32(0.1)
    assert float(rates["fast/scale_by_learning_rate/learning_rate"]) == 1.0


def test_a_label_that_no_leaf_has_is_fine():
    tx = make(unused=fnopt.adam(0.1))
    updates, state = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    assert set(state) == {"slow", "fast", "unused"}
    assert jax.tree.structure(updates) == jax.tree.structure(GRADS)


def test_extra_arguments_reach_every_transform():
    tx = make(slow=needs_value())
    updates, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS, value=jnp.asarray(2.0))
    np.testing.assert_array_equal(updates["dense"]["kernel"], 6)


def test_foreign_members():
    optax = pytest.importorskip("optax")
    tx = make(slow=optax.sgd(0.1, momentum=0.9))
    updates, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["dense"]["kernel"], -0.3, rtol=1e-6)


def test_agrees_with_its_peer():
    # around the same members, so that every bit is compared
    optax = pytest.importorskip("optax")
    members = {"slow": optax.sgd(0.1), "fast": optax.adam(1.0)}
    ours, theirs = make(**members), optax.multi_transform(members, LABELS)
    state, their_state = ours.init(PARAMS), theirs.init(PARAMS)
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(5):
            updates, state = ours.update(GRADS, state, PARAMS)
            expected, their_state = theirs.update(GRADS, their_state, PARAMS)
            jax.tree.map(np.testing.assert_array_equal, updates, expected)


def test_an_equinox_module_is_a_label_tree_although_it_can_be_called():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    params = eqx.filter(model, eqx.is_inexact_array)
    labels = jax.tree.map(lambda p: "slow" if p.ndim > 1 else "fast", params)
    assert callable(labels)
    tx = make(labels)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_allclose(
        updates.layers[0].weight, -np.float32(0.1) * model.layers[0].weight, rtol=1e-6
    )
    np.testing.assert_allclose(jnp.abs(updates.layers[0].bias), 1.0, rtol=1e-4)


def test_is_a_value():
    tx = make()
    assert fnopt.from_config(json.loads(json.dumps(fnopt.to_config(tx)))) == tx
    transforms = {"fast": fnopt.adam(1.0), "slow": fnopt.sgd(0.1)}
    assert fnopt.partition(transforms, LABELS) == tx
    transforms["slow"] = fnopt.sgd(0.2)
    assert tx.transforms["slow"] == fnopt.sgd(0.1)
    assert fnopt.partition(transforms, LABELS) != tx


def test_the_dict_given_is_copied():
    transforms = {"slow": fnopt.sgd(0.1), "fast": fnopt.adam(1.0)}
    tx = fnopt.partition(transforms, LABELS)
    transforms.clear()
    assert tx == make()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: make({"dense": "slow", "scale": "quick"}).init(PARAMS),
            ValueError,
            r"^partition: leaves \['scale'\] have the labels \['quick'\], expected the "
            r"labels of the transforms: \['fast', 'slow'\]",
        ),
        (
            lambda: make({"dense": {"kernel": "slow"}}).init(PARAMS),
            ValueError,
            r"^partition: leaves without a label: \['dense/bias', 'scale'\]",
        ),
        (
            lambda: make(fnopt.by_pattern({"*/kernel": "slow"})).init(PARAMS),
            ValueError,
            r"^partition: leaves without a label: \['dense/bias', 'scale'\].*default=",
        ),
        (lambda: make(by_name), TypeError, r"labels = by_name is a function, .* fnopt.by_path"),
        (lambda: make("*"), TypeError, r"labels = '\*' looks like a pattern"),
        (
            lambda: make(True).init(PARAMS),
            ValueError,
            r"have the labels \[True\], expected the labels",
        ),
        (
            lambda: make(slow=fnopt.sgd),
            TypeError,
            r"partition: transforms\['slow'\] is sgd, .*Did you forget to call it",
        ),
        (
            lambda: fnopt.partition({1: fnopt.sgd(1.0), "1": fnopt.sgd(1.0)}, LABELS),
            ValueError,
            r"two of the labels \[1, '1'\] have the same text",
        ),
        (
            lambda: fnopt.partition([fnopt.sgd(1.0)], LABELS),
            TypeError,
            "expected a dict from label",
        ),
        (
            lambda: make().update(GRADS, fnopt.adam(1.0).init(PARAMS), PARAMS),
            TypeError,
            r"partition: the state is tuple, expected a dict with the keys \['fast', 'slow'\]",
        ),
        (
            lambda: make().update(GRADS, {"slow": None}, PARAMS),
            TypeError,
            r"partition: the state is a dict with the keys \['slow'\], expected a dict with",
        ),
        (
            lambda: make(slow=needs_value()).update(GRADS, make().init(PARAMS), PARAMS),
            TypeError,
            r"partition\[slow\] > needs_value: ",
        ),
    ],
)
def test_errors(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_one_label_for_the_whole_tree_and_labels_that_are_numbers():
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    parts = {0: fnopt.sgd(0.1), 1: fnopt.sgd(1.0)}
    for labels, want in ((1, {"w": -1.0, "b": -1.0}), ({"w": 0, "b": 1}, {"w": -0.1, "b": -1.0})):
        tx = fnopt.partition(parts, labels)
        updates, _ = tx.update(params, tx.init(params), params)
        assert {k: float(u[0]) for k, u in updates.items()} == pytest.approx(want)
        assert fnopt.from_config(json.loads(json.dumps(fnopt.to_config(tx)))) == tx


class Group(enum.Enum):
    SLOW = enum.auto()
    FAST = enum.auto()


@pytest.mark.parametrize("pair", [tuple(Group), (1, "fast"), (("a", 1), ("a", 2))])
def test_labels_may_be_anything_with_a_hash(pair):
    params = {"w": jnp.ones(2), "b": jnp.ones(2)}
    labels = dict(zip(params, pair, strict=True))
    for given in (fnopt.by_path(lambda path, leaf: labels[path]), fnopt.by_pattern(labels)):
        tx = fnopt.partition({pair[0]: fnopt.sgd(0.1), pair[1]: fnopt.sgd(1.0)}, given)
        updates, state = tx.update(params, tx.init(params), params)
        assert {k: float(u[0]) for k, u in updates.items()} == pytest.approx({"w": -0.1, "b": -1})
        assert set(state) == set(map(str, pair))


def test_the_transforms_of_a_partition_dont_change():
    tx = fnopt.partition({"a": fnopt.sgd(0.1)}, "a")
    with pytest.raises(TypeError, match="are immutable"):
        tx.transforms["a"] = fnopt.sgd(1.0)
    copied = pickle.loads(pickle.dumps(tx))
    assert copied == tx
    assert jax.tree.map(lambda x: x, tx) == tx
    assert hash(copied) == hash(tx)
