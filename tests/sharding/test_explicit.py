"""Shardings on explicit meshes, where JAX leaves them open."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from fnopt.core import global_norm
from fnopt.numerics import (
    floor_power_of_two,
    joint_norm,
    nonzero,
    safe_divide,
    safe_norms,
    safe_sqrt,
)
from fnopt.sharding import concatenate, replicate_for_batch, reshape

MESH = ((1, 2), ("d", "m"))


def put(x, *axes):
    mesh = jax.make_mesh(*MESH, axis_types=(AxisType.Explicit,) * 2)
    return jax.device_put(x, NamedSharding(mesh, P(*axes)))


@pytest.mark.parametrize(
    ("first", "second", "axis", "together"),
    [
        (("d", None), (None, None), 1, ("d", None)),  # nothing is gathered
        (("d", None), (None, None), 0, (None, None)),
        ((None, "m"), ("d", "m"), 0, (None, "m")),
        (("d", None), ("m", None), 1, (None, None)),
        (("d", None), (None, "d"), 0, (None, "d")),
        (("m", None, None), (None, "m", None), 2, (None, None, None)),
        (("m", "d"), ("m", "d"), -1, ("m", "d")),
    ],
)
def test_parts_that_are_joined_lie_alike(first, second, axis, together):
    x, y = (np.arange(2.0 ** len(first), dtype="f").reshape(*[2] * len(first)) for _ in range(2))
    found = jax.jit(lambda x, y: concatenate([x, y], axis))(put(x, *first), put(y, *second))
    np.testing.assert_array_equal(found, np.concatenate([x, y], axis))
    assert found.sharding.spec == P(*together)


@pytest.mark.parametrize(
    ("axes", "shape", "spec"),
    [
        (("d", None), (2, 1, 2), ("d", None, None)),  # JAX knows it
        ((None, "m"), (4,), (None,)),
        (("d", "m"), (1, 4), (None, None)),
    ],
)
def test_reshape_replicates_where_the_sharding_is_ambiguous(axes, shape, spec):
    x = np.arange(4.0, dtype="f").reshape(2, 2)
    found = jax.jit(lambda x: reshape(x, *shape))(put(x, *axes))
    np.testing.assert_array_equal(found, x.reshape(shape))
    # Which reshapes are ambiguous depends on the release of JAX: 0.12 keeps the last sharding.
    assert found.sharding.spec in (P(*spec), P(None, axes))


def test_reshape_refuses_a_wrong_size():
    with pytest.raises(TypeError, match="cannot reshape array of shape"):
        reshape(put(np.ones((2, 2), "f"), "d"), 3)


def test_what_examples_share_is_whole_over_their_axes_alone():
    shared = {"w": put(np.ones((2, 2), "f"), "d", "m"), "name": "linear", "scale": 2.0}
    batch = put(np.ones((4, 2), "f"), "d")
    found = jax.eval_shape(
        lambda w, x: replicate_for_batch({**shared, "w": w}, x)["w"], shared["w"], batch
    )
    assert found.sharding.spec == P(None, "m")
    assert replicate_for_batch({**shared, "w": jnp.ones(2)}, batch)["name"] == "linear"


NUMBERS = {
    "root": safe_sqrt,
    "nonzero": nonzero,
    "power_of_two": floor_power_of_two,
    "quotient": lambda x: safe_divide(x, x),
    "joint_norm": lambda x: joint_norm([x, x]),
    "safe_norms": lambda x: safe_norms(lambda c: (x if c is None else x * c) ** 2),
    "global_norm": lambda x: global_norm([x]),
}


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="the caller has to set the mesh then")
@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_a_branch_closes_over_keep_their_sharding(name, is_set):
    fn, numbers = NUMBERS[name], np.array([0, 1, 4, 9e30], "f")
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(numbers, NamedSharding(mesh, P("d")))
    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        found = jax.lax.cond(jnp.any(x > 0), lambda: fn(x), lambda: fn(x))
    np.testing.assert_allclose(found, fn(jnp.asarray(numbers)), rtol=1e-6)
