"""What is summed over devices by name: the health of divided leaves."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from fnopt import monitor

RNG = np.random.RandomState(0)
STATISTICS = ("norm", "max", "mean", "rms", "ratio", "zeros", "nonfinite", "histogram")


def over_devices(fn, in_specs, out_specs, **options):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options))


def test_health_of_leaves_that_are_divided():
    tree = {"a": RNG.randn(4, 3).astype("f"), "b": RNG.randn(6).astype("f")}
    tree["b"][[1, 4]] = [0.0, np.inf]
    params = jax.tree.map(lambda x: 1 + np.abs(x[::-1]), tree)
    look = functools.partial(monitor.health, stats=STATISTICS)
    found = over_devices(
        functools.partial(look, axis_name="data"), (P("data"), P("data")), P(), check_vma=False
    )(tree, params)
    expected = jax.jit(look)(tree, params)
    assert found.sizes == expected.sizes == (12, 6)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
