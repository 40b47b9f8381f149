"""Dimension numbers that are given by pattern: three stacked kernels are three kernels."""

from __future__ import annotations

import inspect
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import MatrixDimensionNumbers as Numbers
from fnopt.optimizers import matrix_labels

STACK = jnp.asarray(np.random.default_rng(0).standard_normal((3, 8, 6)), jnp.float32)
PARAMS = {"block": {"kernel": STACK, "bias": jnp.ones((3, 6))}, "head": jnp.ones((2, 2))}
LAYERS = {f"{i}": {"kernel": x, "bias": jnp.ones(6)} for i, x in enumerate(STACK)}
PATTERN = fnopt.by_pattern({"*kernel": Numbers(1, 2)}, default=False)


# Functions of a learning rate; the classes are parts, without another method for other leaves.
RECIPES = [
    name
    for name in fnopt.optimizers.__all__
    if inspect.isfunction(getattr(fnopt.optimizers, name))
    and {"weight_dimension_numbers", "learning_rate"}
    <= {*inspect.signature(getattr(fnopt.optimizers, name)).parameters}
]
REQUIRED = {"galore": {"rank": 2}}


def make(name, rule):
    recipe = getattr(fnopt.optimizers, name)
    return recipe(1.0, weight_dimension_numbers=rule, **REQUIRED.get(name, {}))


def stepped(tx, tree):
    state = tx.init(tree)
    for scale in (1.0, -0.5):
        updates, state = jax.jit(tx.update)(fnopt.tree.scale(scale, tree), state, tree)
    return updates


def test_the_recipes_are_all_here():
    assert {"muon", "normuon", "soap", "shampoo", "kl_shampoo", "psgd_kron", "galore"} <= {*RECIPES}


@pytest.mark.parametrize("name", ["muon", "normuon", "soap", "shampoo", "kl_shampoo", "galore"])
def test_stacked_kernels_by_pattern_are_single_kernels(name):
    found = stepped(make(name, PATTERN), PARAMS)
    expected = stepped(make(name, None), LAYERS)
    for i, x in enumerate(found["block"]["kernel"]):
        np.testing.assert_allclose(x, expected[f"{i}"]["kernel"], rtol=2e-4, atol=2e-5)
    by_tree = {"block": {"kernel": Numbers(1, 2), "bias": None}, "head": None}
    jax.tree.map(np.testing.assert_array_equal, found, stepped(make(name, by_tree), PARAMS))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_them_by_pattern_as_by_function(name):
    by_path = fnopt.by_path(lambda path, leaf: Numbers(1, 2) if "kernel" in path else False)
    shapes = [jax.eval_shape(make(name, rule).init, PARAMS) for rule in (PATTERN, by_path)]
    assert jax.tree.map(lambda x: x.shape, shapes[0]) == jax.tree.map(lambda x: x.shape, shapes[1])


def test_parts_and_labels_take_them_by_pattern():
    labels = fnopt.select(matrix_labels("muon", PATTERN), PARAMS)
    assert labels == {"block": {"bias": "adam", "kernel": "muon"}, "head": "adam"}
    only = {"kernel": STACK}
    for part in (fnopt.orthogonalize, fnopt.optimizers.scale_by_matrix_shape):
        found = stepped(part(weight_dimension_numbers=PATTERN), only)
        expected = stepped(part(weight_dimension_numbers=Numbers(1, 2)), only)
        np.testing.assert_array_equal(found["kernel"], expected["kernel"])


def test_numbers_of_the_default_are_taken_too():
    rule = fnopt.by_pattern({"*bias": False, "head": False}, default=Numbers(1, 2))
    jax.tree.map(
        np.testing.assert_array_equal,
        stepped(make("muon", rule), PARAMS),
        stepped(make("muon", PATTERN), PARAMS),
    )


def test_a_pattern_with_numbers_is_a_value():
    assert fnopt.by_pattern({"*kernel": Numbers(1, 2)}, default=False) == PATTERN
    assert hash(PATTERN) == hash(pickle.loads(pickle.dumps(PATTERN)))
    tx = make("muon", PATTERN)
    config = json.loads(json.dumps(fnopt.to_config(tx)))
    assert fnopt.from_config(config) == tx


def test_numbers_of_optax_are_taken_as_such():
    optax = pytest.importorskip("optax")
    theirs = optax.contrib.MuonDimensionNumbers(1, 2)
    rule = fnopt.by_pattern({"*kernel": theirs}, default=False)
    found, expected = (stepped(make("muon", r), PARAMS) for r in (rule, PATTERN))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
