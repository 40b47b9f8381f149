"""The same names for the same leaves, whatever holds them."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fnopt

NAMES = {"dense/kernel", "dense/bias"}


class Layer(NamedTuple):
    kernel: Any
    bias: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class DataLayer:
    kernel: Any
    bias: Any


def leaves():
    return {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}


def plain_dict():
    return {"dense": leaves()}


def named_tuple():
    return {"dense": Layer(**leaves())}


def dataclass():
    return {"dense": DataLayer(**leaves())}


def frozen_dict():
    return pytest.importorskip("flax.core").FrozenDict(plain_dict())


def nnx_state():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self):
            self.dense = nnx.Linear(2, 3, rngs=nnx.Rngs(0))

    return nnx.state(Net(), nnx.Param)


def nnx_pure_dict():
    return pytest.importorskip("flax.nnx").to_pure_dict(nnx_state())


def linen_boxes():
    linen = pytest.importorskip("flax.linen")
    boxed = {k: linen.Partitioned(v, names=(None,) * v.ndim) for k, v in leaves().items()}
    return {"dense": boxed}


def equinox_module():
    eqx = pytest.importorskip("equinox")

    class Dense(eqx.Module):
        kernel: jax.Array
        bias: jax.Array

    class Net(eqx.Module):
        dense: Dense

    return Net(Dense(**leaves()))


CONTAINERS = [
    *(plain_dict, named_tuple, dataclass, frozen_dict),
    *(nnx_state, nnx_pure_dict, linen_boxes, equinox_module),
]


@pytest.mark.parametrize("make", CONTAINERS, ids=lambda f: f.__name__)
class TestContainer:
    def test_names(self, make):
        assert set(jax.tree.leaves(fnopt.leaf_paths(make()))) == NAMES

    def test_labels_of_a_plain_dict_fit(self, make):
        params, labels = make(), {"dense": {"kernel": "a", "bias": "b"}}
        chosen = fnopt.errors.leaves_with_names(fnopt.select(labels, params))[0]
        assert dict(chosen) == {"dense/kernel": "a", "dense/bias": "b"}
        assert jax.tree.structure(fnopt.select(labels, params)) == jax.tree.structure(params)

    def test_its_own_labels_are_those_of_a_plain_dict(self, make):
        params, plain = make(), plain_dict()
        mask = fnopt.masked(fnopt.identity(), jax.tree.map(lambda x: x.ndim > 1, params)).mask
        expected = jax.tree.map(lambda x: x.ndim > 1, plain)
        assert mask == fnopt.masked(fnopt.identity(), expected).mask

    def test_freeze_by_pattern(self, make):
        params = make()
        tx = fnopt.freeze(fnopt.adam(0.1), "*/bias")
        updates, state = tx.update(params, tx.init(params), params)
        named = dict(fnopt.errors.leaves_with_names(updates)[0])
        assert not named["dense/bias"].any()
        assert named["dense/kernel"].all()
        mu = fnopt.errors.leaves_with_names(fnopt.slots(state)["mu"])[0]
        assert [name for name, _ in mu] == ["dense/kernel"]
        assert jax.tree.structure(fnopt.apply_updates(params, updates)) == jax.tree.structure(
            params
        )
