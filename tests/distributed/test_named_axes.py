"""What is summed over devices by name: least squares, and the health of divided leaves."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import monitor

RNG = np.random.RandomState(0)
STATISTICS = ("norm", "max", "mean", "rms", "ratio", "zeros", "nonfinite", "histogram")
START = {"rate": np.asarray([0.7, 1.9], "f"), "offset": np.float32(0.1)}
X = np.linspace(0, 2, 12, dtype=np.float32)
Y = np.exp(-X) + 0.5 * np.exp(-2.5 * X) + 0.01 * RNG.randn(12).astype("f")


def residuals(p, x, y):
    return jnp.exp(-p["rate"][0] * x) + 0.5 * jnp.exp(-p["rate"][1] * x) + p["offset"] - y


def on_all_devices(residual_fn):
    """The residuals of all devices from those of each, with their derivatives."""
    return lambda p: jax.lax.all_gather(residual_fn(jax.lax.pmean(p, "data")), "data", tiled=True)


def over_devices(fn, in_specs, out_specs, **options):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options))


@pytest.mark.parametrize("solver", ["auto", "cg"])
def test_least_squares_of_residuals_that_are_divided(solver):
    tx = fnopt.levenberg_marquardt(linear_solver=solver)

    def steps(residual_fn, p):
        def body(carry, _):
            p, state = carry
            updates, state = tx.update(None, state, p, residual_fn=residual_fn)
            return (fnopt.apply_updates(p, updates), state), None

        return jax.lax.scan(body, (p, tx.init(p)), length=3)[0][0]

    def mine(p, x, y):
        return steps(on_all_devices(lambda p: residuals(p, x, y)), p)

    start = jax.tree.map(jnp.asarray, START)
    found = over_devices(mine, (P(), P("data"), P("data")), P(), check_vma=False)(start, X, Y)
    expected = jax.jit(functools.partial(steps, lambda p: residuals(p, X, Y)))(start)
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


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
