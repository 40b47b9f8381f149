"""Jacobians inside `jax.shard_map`: every device has the rows of its own outputs, unmixed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fnopt

X = np.random.RandomState(0).randn(6, 3).astype("f")
PARAMS = np.asarray([0.3, -0.7, 0.2], "f")
EXPECTED = (1 - np.tanh(X @ PARAMS) ** 2)[:, None] * X


def outputs(p, x):
    return jnp.tanh(x @ p)


MAKERS = {
    "matrix": lambda m: lambda p, x: fnopt.jacobian(outputs, form="matrix", mode=m)(p, x),
    "operator": lambda m: (
        lambda p, x: jax.vmap(fnopt.jacobian(outputs, form="operator")(p, x).rmv)(jnp.eye(len(x)))
    ),
    "sparse": lambda m: lambda p, x: fnopt.sparse_jacobian(outputs, mode=m)(p, x).matrix(),
    "per_example": lambda m: lambda p, x: fnopt.per_example_jacobian(outputs, mode=m)(p, x),
}


@pytest.mark.parametrize("check_vma", [True, False])
def test_rows_are_those_of_one_device(check_vma):
    # Types say that params are the same on all devices, and JAX would sum derivatives by them.
    makers = [make(mode) for make in MAKERS.values() for mode in ("forward", "reverse")]
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    run = jax.shard_map(
        lambda p, x: [make(p, x) for make in makers],
        mesh=mesh,
        in_specs=(P(), P("d")),
        out_specs=P("d"),
        check_vma=check_vma,
    )
    for J in jax.jit(run)(PARAMS, X):
        np.testing.assert_allclose(J, EXPECTED, rtol=1e-5, atol=1e-6)
