"""Inverses that the devices of a mesh share out, against NumPy's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from fnopt.curvature._kronecker_inverse import divide_work, invert_batches
from fnopt.programs import jaxprs
from tests.distributed import messages

SHAPES = [(3, 4, 4), (1, 7, 7), (2, 4, 4), (1, 2, 2)]


def stacks():
    rng = np.random.RandomState(0)
    roots = [rng.randn(*shape) for shape in SHAPES]
    return [(r @ np.swapaxes(r, 1, 2) + np.eye(r.shape[-1])).astype("f") for r in roots]


def numbers_of_matrices(fn, args):
    """By branch of the choice between devices: how many matrices it factorizes."""
    found = []

    def count(jaxpr):
        own = [e.invars[0].aval.shape[0] for e in jaxpr.eqns if e.primitive.name == "cholesky"]
        return sum(own) + sum(count(sub.jaxpr) for e in jaxpr.eqns for sub in jaxprs.sub_jaxprs(e))

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            inside = jaxprs.sub_jaxprs(eqn)
            if eqn.primitive.name == "cond":
                found.extend(count(sub.jaxpr) for sub in inside)
            else:
                for sub in inside:
                    look(sub.jaxpr)

    look(jax.make_jaxpr(fn)(args).jaxpr)
    return found


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_each_device_inverts_its_share(kind):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(getattr(AxisType, kind),))
    given = jax.device_put([jnp.asarray(x) for x in stacks()], NamedSharding(mesh, P()))
    assert sorted(numbers_of_matrices(invert_batches, given)) == [1, 6]  # 7^3 = 343, 5 4^3 + 2^3
    program = jax.jit(invert_batches).lower(given).compile()
    assert [kind for kind, _, _ in messages.results(program.as_text())] == ["all-gather"]
    for x, y in zip(program(given), stacks(), strict=True):
        np.testing.assert_allclose(x, np.linalg.inv(y), rtol=1e-4, atol=1e-5)


def test_devices_of_a_named_axis_share_them_out():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))

    def device(given):
        return invert_batches(given, "d")

    run = jax.shard_map(device, mesh=mesh, in_specs=P(), out_specs=P())
    assert sorted(numbers_of_matrices(run, stacks())) == [1, 6]
    for x, y in zip(jax.jit(run)(stacks()), stacks(), strict=True):
        np.testing.assert_allclose(x, np.linalg.inv(y), rtol=1e-4, atol=1e-5)


def test_shares_are_even():
    owned = divide_work([24, 3, 1], [8, 16, 32], 4)
    work = [sum(len(g) * n**3 for g, n in zip(own, (8, 16, 32), strict=True)) for own in owned]
    assert sorted(work) == [8192, 8192, 8192, 32**3]
    for group, count in enumerate([24, 3, 1]):
        assert sorted(i for own in owned for i in own[group]) == list(range(count))
