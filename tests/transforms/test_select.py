import dataclasses
import json
import pickle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fnopt
from fnopt.transforms._select import as_labels, as_mask, select_mask


def is_matrix(path: str, leaf: Any) -> bool:
    return leaf.ndim > 1


PARAMS = {
    "dense": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)},
    "norm": [jnp.ones(3), jnp.ones(())],
    "bias": jnp.ones(1),
}


def paths_where(selector: Any, label: Any = True, tree: Any = PARAMS) -> set[str]:
    labels = fnopt.errors.leaves_with_names(fnopt.select(selector, tree))[0]
    return {path for path, found in labels if found == label}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*/bias", {"bias", "dense/bias"}),
        ("/bias", {"bias"}),
        ("bias", {"bias"}),
        ("dense/*", {"dense/kernel", "dense/bias"}),
        ("norm/?", {"norm/0", "norm/1"}),
        ("norm/[1-9]", {"norm/1"}),
        ("*", {"bias", "dense/bias", "dense/kernel", "norm/0", "norm/1"}),
        (("*/kernel", "norm/0"), {"dense/kernel", "norm/0"}),
    ],
)
def test_patterns(pattern, expected):
    assert paths_where(fnopt.by_pattern(pattern)) == expected


def test_the_first_pattern_that_matches_decides():
    selector = fnopt.by_pattern({"dense/bias": "a", "*/bias": "b", "*": "c"})
    assert paths_where(selector, "a") == {"dense/bias"}
    assert paths_where(selector, "b") == {"bias"}
    assert paths_where(selector, "c") == {"dense/kernel", "norm/0", "norm/1"}


def test_everything_but():
    assert paths_where(fnopt.by_pattern({"*/bias": False}, default=True)) == {
        *("dense/kernel", "norm/0", "norm/1")
    }


def test_a_function_sees_path_and_leaf():
    seen = {}

    def record(path, leaf):
        seen[path] = leaf.shape
        return True

    fnopt.select(fnopt.by_path(record), jax.eval_shape(lambda: PARAMS))
    assert seen["dense/kernel"] == (2, 3)
    assert paths_where(fnopt.by_path(is_matrix)) == {"dense/kernel"}


def test_a_tree_may_be_a_prefix():
    tree = {"dense": "a", "norm": ["b", "c"], "bias": "d"}
    labels = fnopt.select(tree, PARAMS)
    assert labels == {"dense": {"bias": "a", "kernel": "a"}, "norm": ["b", "c"], "bias": "d"}
    assert set(jax.tree.leaves(fnopt.select(True, PARAMS))) == {True}


def test_the_nearest_branch_decides():
    # an nnx or Equinox user sets a whole branch first, and one leaf of it then
    selector = fnopt.transforms.Labels(("", "dense", "dense/bias"), ("a", "b", "c"))
    assert paths_where(selector, "b") == {"dense/kernel"}
    assert paths_where(selector, "c") == {"dense/bias"}
    assert paths_where(selector, "a") == {"norm/0", "norm/1", "bias"}


def test_single_booleans_of_numpy_and_jax_are_labels():
    labels = fnopt.select({"a": np.bool_(True), "b": jnp.asarray(False)}, {"a": 1.0, "b": 2.0})
    assert labels == {"a": True, "b": False}
    assert all(type(x) is bool for x in labels.values())


class Pair(NamedTuple):
    kernel: Any
    bias: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    kernel: Any
    bias: Any


@pytest.mark.parametrize("container", [Pair, Layer, dict], ids=lambda c: c.__name__)
def test_labels_of_one_container_fit_another(container):
    tree = {"dense": container(kernel=jnp.ones(2), bias=jnp.ones(1))}
    labels = fnopt.select({"dense": {"bias": "fast", "kernel": "slow"}}, tree)
    assert labels == {"dense": container(kernel="slow", bias="fast")}
    given = {"dense": container(kernel="slow", bias="fast")}
    assert as_labels(given) == as_labels({"dense": {"kernel": "slow", "bias": "fast"}})


def test_leaves_that_a_wrapper_took_out_need_no_label_and_may_have_one():
    tree = {"a": None, "b": jnp.ones(2), "c": (), "d": {}}
    labels = {"a": {"x": True}, "b": False, "c": True, "d": True}
    assert fnopt.select(labels, tree) == {"a": None, "b": False, "c": (), "d": {}}
    assert fnopt.select({"b": True}, tree)["b"] is True
    assert fnopt.select(fnopt.by_pattern("*/kernel"), {}) == {}


SELECTORS = [
    fnopt.by_path(is_matrix),
    fnopt.by_pattern("*/bias"),
    fnopt.by_pattern(("*/bias", "norm/*")),
    fnopt.by_pattern({"*/bias": "a", "*": "b"}),
    fnopt.by_pattern({"*/bias": False}, default=True),
    as_mask({"dense": True, "norm": [False, True], "bias": False}),
    as_labels({"dense": "a", "norm": "b", "bias": "b"}),
]


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_a_selector_is_a_value(selector):
    config = json.loads(json.dumps(fnopt.to_config(selector)))
    copies = [fnopt.from_config(config), pickle.loads(pickle.dumps(selector))]
    for copy in [*copies, dataclasses.replace(selector)]:
        assert copy == selector
        assert hash(copy) == hash(selector)
        assert fnopt.select(copy, PARAMS) == fnopt.select(selector, PARAMS)
    assert type(selector).__name__ in repr(selector)
    assert jax.tree.leaves(selector) == []
    assert selector != fnopt.by_pattern("other")


def test_equal_masks_of_different_containers_are_one_static_argument():
    traces = 0

    def update(tx, grads):
        nonlocal traces
        traces += 1
        return tx.update(grads, tx.init(grads))[0]

    step = jax.jit(update, static_argnums=0)
    for mask in ({"kernel": True, "bias": False}, Layer(True, False), Pair(True, False)):
        step(fnopt.masked(fnopt.clip(1.0), mask), {"kernel": jnp.ones(2), "bias": jnp.ones(2)})
    assert traces == 1


keys = st.text("abc", min_size=1, max_size=2)
trees = st.recursive(
    st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(trees)
def test_a_whole_tree_of_labels_labels_its_own_leaves(labels):
    tree = jax.tree.map(lambda _: jnp.zeros(()), labels)
    assert fnopt.select(labels, tree) == labels


def test_traced_leaves_can_be_labelled():
    @jax.jit
    def count(tree):
        return sum(jax.tree.leaves(fnopt.select(fnopt.by_path(is_matrix), tree)))

    assert int(count(PARAMS)) == 1


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: as_mask(is_matrix), TypeError, r"mask = is_matrix is a function, .*by_path\(fn\)"),
        (
            lambda: as_labels(is_matrix),
            TypeError,
            r"labels = is_matrix is a function, expected a tree",
        ),
        (
            lambda: fnopt.select(is_matrix, PARAMS),
            TypeError,
            "is_matrix is a function, expected a tree",
        ),
        (lambda: as_labels("*/bias"), TypeError, r"labels = '\*/bias' looks like a pattern"),
        (lambda: as_mask({"a": 1.5}), TypeError, "mask: leaf 'a' is 1.5, a float, expected a bool"),
        (lambda: as_mask({"a": "b"}), TypeError, "mask: leaf 'a' has the label 'b', expected True"),
        (lambda: as_mask(3), TypeError, "mask: the only leaf has the label 3, expected True"),
        (
            lambda: as_mask({"a": np.ones(3, bool)}),
            TypeError,
            r"mask: leaf 'a' is an array of shape \(3,\), expected one label for the whole leaf",
        ),
        (
            lambda: as_mask({"a": [True, lambda p: p]}),
            TypeError,
            "mask: leaf 'a/1' is <function .*, a function, expected a bool",
        ),
        (
            lambda: as_labels({"a/b": "x", "a": {"b": "y"}}),
            ValueError,
            "labels: leaf 'a/b' is listed twice, with different labels",
        ),
        (lambda: fnopt.by_pattern(3), TypeError, "3 is a int, expected patterns"),
        (lambda: fnopt.by_pattern([3]), TypeError, "3 is a int, expected patterns"),
        (
            lambda: fnopt.by_pattern({"*": 1.0}),
            TypeError,
            r"by_pattern: the label of '\*' is 1.0, a float, expected a bool, a string, an int",
        ),
        (
            lambda: fnopt.select(fnopt.by_pattern({"*/bias": "a"}), PARAMS),
            ValueError,
            r"leaves without a label: \['dense/kernel', 'norm/0', 'norm/1'\].*default",
        ),
        (
            lambda: fnopt.select({"dense": True, "norm": [True, None]}, PARAMS),
            ValueError,
            r"leaves without a label: \['bias', 'norm/1'\]",
        ),
        (
            lambda: fnopt.select({"dens": True, "norm": True, "bias": True}, PARAMS),
            ValueError,
            r"got labels for the paths \['dens'\], .* expected some of the paths .'bias'",
        ),
        (
            lambda: fnopt.select(fnopt.by_pattern("*/bais"), PARAMS),
            ValueError,
            r"\['\*/bais'\] match no leaf, expected .* \['bias', .*default=False",
        ),
        (
            lambda: fnopt.freeze(fnopt.sgd(1.0), ["dense", "nrom", "*/x"]).init(PARAMS),
            ValueError,
            r"freeze: by_pattern: .*\['nrom'\] match no leaf, .* \['bias', .*default=False",
        ),
        (
            lambda: jax.jit(lambda t: fnopt.select(fnopt.by_path(lambda p, x: x > 0), t))(PARAMS),
            TypeError,
            "the label of leaf 'bias' is a traced .*Compute labels from the path, shape and dtype",
        ),
        (
            lambda: fnopt.by_path(lambda path: True),
            TypeError,
            r"by_path: <lambda> can't be called as fn\(path, leaf\)",
        ),
        (
            lambda: select_mask(fnopt.by_path(lambda path, x: path), {"a": 1.0}),
            TypeError,
            "mask: leaf 'a' has the label 'a', expected True or False",
        ),
    ],
)
def test_errors(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_a_list_of_strings_as_a_mask_is_several_patterns():
    held = fnopt.freeze(fnopt.sgd(1.0), ["bias", "dense"])
    assert held == fnopt.freeze(fnopt.sgd(1.0), fnopt.by_pattern(["bias", "dense"]))
