"""What is wrong with a mesh, an axis or a place is said with the leaf and its sharding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed

PARAMS = {"w": jnp.ones((8, 4)), "b": jnp.ones(5)}
TX = fnopt.adam(1e-2)


def mesh_of(count, kind="Auto"):
    devices, kinds = jax.devices()[:count], (getattr(AxisType, kind),)
    return jax.make_mesh((count,), ("data",), devices=devices, axis_types=kinds)


def on(mesh, *axes):
    return NamedSharding(mesh, P(*axes))


def example_loss(p, x):
    return jnp.sum(p["w"] @ x)


AXES = {
    "least_squares": lambda a: fnopt.least_squares(lambda p: p - 1, jnp.ones(2), axis_name=a),
    "curve_fit": lambda a: fnopt.curve_fit(
        lambda x, k: k * x, jnp.ones(4), jnp.ones(4), axis_name=a
    ),
    "clipped_grad": lambda a: fnopt.clipped_grad(example_loss, 1.0, axis_name=a)(
        PARAMS, jnp.ones((2, 4))
    ),
    "hvp": lambda a: fnopt.curvature.hvp(example_loss, axis_name=a)(
        PARAMS, PARAMS, jnp.ones((2, 4))
    ),
    "health": lambda a: fnopt.monitor.health(PARAMS, axis_name=a),
    "natural_gradient": lambda a: _step(fnopt.natural_gradient(_outputs, _square, axis_name=a)),
    "kfac": lambda a: _step(fnopt.kfac(_outputs, _square, jnp.ones((2, 4)), axis_name=a)),
    "diloco": lambda a: _step(distributed.diloco(TX, None, 2, a)),
    "sharded": lambda a: distributed.sharded(TX, axis=a).init(PARAMS),
    "state_sharding": lambda a: distributed.state_sharding(
        TX, jax.device_put(PARAMS, on(mesh_of(2))), axis=a
    ),
}


def _outputs(p, x):
    return p["w"] @ x


def _square(out, x):
    return jnp.sum(out**2)


def _step(tx):
    return jax.eval_shape(lambda p: tx.update(p, tx.init(p), p, batch=jnp.ones((2, 4)))[0], PARAMS)


@pytest.mark.parametrize("name", AXES)
def test_an_axis_that_does_not_exist(name):
    with pytest.raises(ValueError, match="nope") as caught:
        AXES[name]("nope")
    assert any(word in str(caught.value) for word in ("shard_map", "expected an axis"))


def test_params_and_slots_that_are_elsewhere():
    params = jax.device_put(PARAMS, on(mesh_of(2)))
    state = TX.init(params)
    there = jax.device_put(PARAMS, jax.devices()[1])
    with pytest.raises(ValueError, match=r"leaf 'count' of state has the sharding .*leaf 'b' of t"):
        TX.update(there, state, there)
    moved = jax.tree.map(lambda x: jax.device_put(x, jax.devices()[1]), state)
    mixed = jax.tree.map(lambda a, b: b if a.shape == (5,) else a, state, moved)
    with pytest.raises(ValueError, match=r"leaf 'mu/b' of state has the sharding SingleDevice"):
        TX.update(params, mixed, params)


def test_slots_that_lie_in_other_ways_on_the_same_mesh_are_taken():
    mesh = mesh_of(2)
    params = jax.device_put(PARAMS, on(mesh))
    state = TX.init(params)
    spread = jax.tree.map(
        lambda x: jax.device_put(x, on(mesh, "data")) if x.shape == (8, 4) else x, state
    )
    updates, _ = TX.update(params, spread, params)
    np.testing.assert_array_equal(updates["w"], TX.update(params, state, params)[0]["w"])


def test_a_state_of_another_number_of_devices():
    zero = distributed.sharded(TX, axis="data")
    of_two = zero.init(jax.device_put(PARAMS, on(mesh_of(2))))
    mesh = mesh_of(1)
    params = jax.device_put(PARAMS, on(mesh))
    specs = jax.tree.map(lambda s: s.spec, distributed.state_sharding(zero, params))
    step = jax.shard_map(
        lambda p, s: zero.update(p, s, p)[0],
        mesh=mesh,
        in_specs=(P(), specs),
        out_specs=P(),
        check_vma=False,
    )
    with pytest.raises(ValueError, match=r"b.*gather_state|b.*scatter_state|'.*b'.*expected"):
        jax.eval_shape(step, params, jax.device_get(of_two))


def test_a_batch_that_the_devices_do_not_divide():
    # JAX says which argument of shard_map; under plain jit any batch will do.
    def grad(p, x):
        return fnopt.clipped_grad(example_loss, 1.0, axis_name="data")(p, x)[0]

    step = jax.shard_map(grad, mesh=mesh_of(2), in_specs=(P(), P("data")), out_specs=P())
    with pytest.raises(ValueError, match=r"evenly divisible"):
        jax.eval_shape(step, PARAMS, jnp.ones((5, 4)))


@pytest.mark.parametrize("axis", [0, None, ("data", 1), ("data", "data")])
def test_what_is_no_name_of_an_axis(axis):
    with pytest.raises(
        (TypeError, ValueError), match=r"sharded: axis = .* expected (a name|every)"
    ):
        distributed.sharded(TX, axis)
    if axis is not None:
        with pytest.raises((TypeError, ValueError), match=r"state_sharding: axis = .* expected"):
            distributed.state_sharding(TX, PARAMS, mesh=mesh_of(2), axis=axis)


def test_a_state_of_other_params_is_not_scattered():
    small = TX.init({"w": jnp.ones((3, 3)), "b": jnp.ones(5)})
    params = jax.device_put(PARAMS, on(mesh_of(2)))
    with pytest.raises(
        ValueError, match=r"scatter_state: leaf '0/mu/w' .*\(3, 3\), expected \(8, 4\)"
    ):
        distributed.scatter_state(distributed.sharded(TX, "data"), small, params)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_an_eager_step_with_a_state_of_another_mesh(kind):
    params = jax.device_put(PARAMS, on(mesh_of(2, kind)))
    elsewhere = TX.init(jax.device_put(PARAMS, on(mesh_of(1, kind))))
    with pytest.raises(
        ValueError, match=r"leaf '\w.*' of state has the sharding .* on other devices"
    ):
        TX.update(params, elsewhere, params)
