import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt.errors import leaves_with_names


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Dense:
    kernel: Any
    bias: Any


class Pair(NamedTuple):
    query: Any
    value: Any


def names(tree):
    return sorted(name for name, _ in leaves_with_names(tree)[0])


EXPECTED = ["dense/bias", "dense/kernel"]


def test_dicts_dataclasses_and_sequences():
    assert names({"dense": {"kernel": 1.0, "bias": 2.0}}) == EXPECTED
    assert names({"dense": Dense(1.0, 2.0)}) == EXPECTED
    assert names([(1.0,), {"a": None, "b": 2.0}, {3: 1.0}]) == ["0/0", "1/b", "2/3"]
    assert names(1.0) == [""]


def test_a_field_called_value_keeps_its_name():
    assert names({"attn": Pair(1.0, 2.0)}) == ["attn/query", "attn/value"]


def test_flax():
    nnx = pytest.importorskip("flax.nnx")
    linen = pytest.importorskip("flax.linen")
    core = pytest.importorskip("flax.core")

    class Model(nnx.Module):
        def __init__(self):
            self.dense = nnx.Linear(2, 3, rngs=nnx.Rngs(0))

    assert names(nnx.state(Model(), nnx.Param)) == EXPECTED
    assert names(nnx.split(Model(), nnx.Param, ...)[1]) == EXPECTED
    assert names(core.FrozenDict({"dense": {"kernel": 1.0, "bias": 2.0}})) == EXPECTED
    boxed = linen.Partitioned(jnp.ones(2), names=("a",))
    assert names({"dense": {"kernel": boxed, "bias": 1.0}}) == EXPECTED


def test_equinox():
    eqx = pytest.importorskip("equinox")
    linear = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    assert names({"dense": linear}) == ["dense/bias", "dense/weight"]


def test_leaf_paths_keeps_the_structure():
    tree = {"a": [1.0, None], "b": Dense(1.0, 2.0)}
    assert fnopt.leaf_paths(tree) == {"a": ["a/0", None], "b": Dense("b/kernel", "b/bias")}
