"""How arrays lie on explicit meshes, where JAX leaves it open."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from fnopt.core import joined, whole_for

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
    found = jax.jit(lambda x, y: joined([x, y], axis))(put(x, *first), put(y, *second))
    np.testing.assert_array_equal(found, np.concatenate([x, y], axis))
    assert found.sharding.spec == P(*together)


def test_what_examples_share_is_whole_over_their_axes_alone():
    shared = {"w": put(np.ones((2, 2), "f"), "d", "m"), "name": "linear", "scale": 2.0}
    batch = put(np.ones((4, 2), "f"), "d")
    found = jax.eval_shape(lambda w, x: whole_for({**shared, "w": w}, x)["w"], shared["w"], batch)
    assert found.sharding.spec == P(None, "m")
    assert whole_for({**shared, "w": jnp.ones(2)}, batch)["name"] == "linear"
