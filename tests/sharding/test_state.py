"""A fresh state is where the params are: eager, jitted and abstract, on either kind of mesh."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt

KINDS = ["Auto", "Explicit"]
SPECS = {"b": P(), "w": P("d")}


@functools.cache
def mesh_of(kind):
    return jax.make_mesh((2,), ("d",), axis_types=(getattr(AxisType, kind),))


def params_on(kind):
    arrays = {"b": jnp.ones(3), "w": jnp.ones((4, 2))}
    return {k: jax.device_put(x, NamedSharding(mesh_of(kind), SPECS[k])) for k, x in arrays.items()}


# One with slots, one that keeps a narrow copy, one that has nothing but numbers, and a memory with
# an axis more.
MADE = {
    "adam": lambda: fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adam(1e-3)),
    "narrow": lambda: fnopt.accumulate(fnopt.scale_by_adam(mu_dtype="bfloat16"), 2),
    "numbers": lambda: fnopt.sgd(fnopt.linear_schedule(1.0, 0.0, 10)),
    "lbfgs": lambda: fnopt.scale_by_lbfgs(2),
}


def check(state, params):
    for name, leaf, owner in fnopt.sharding.match_params(state, params):
        spec = leaf.sharding.spec
        assert leaf.sharding.device_set == set(jax.devices()[:2]), name
        if owner is not None and owner.shape == leaf.shape:  # not the memory of L-BFGS
            assert leaf.sharding.is_equivalent_to(owner.sharding, leaf.ndim), name
        if owner is None:
            assert not any(spec), name


@pytest.mark.parametrize("kind", KINDS)
def test_eager_and_jitted_init_put_the_state_beside_the_params(kind):
    params = params_on(kind)
    inits = {name: make().init for name, make in MADE.items()}
    for init in inits.values():
        check(init(params), params)
    jitted = jax.jit(lambda p: {name: init(p) for name, init in inits.items()})(params)
    for state in jitted.values():
        check(state, params)
    # alone, for nothing else uses the params then
    check(jax.jit(inits["numbers"])(params), params)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_in_the_context_changes_nothing(kind):
    params = params_on(kind)
    with jax.set_mesh(mesh_of(kind)):
        check(jax.jit(MADE["adam"]().init)(params), params)


def test_params_on_another_device_have_their_state_there():
    there = jax.devices()[1]
    state = fnopt.adam(1e-3).init({"w": jax.device_put(jnp.ones(2), there)})
    assert {leaf.device for leaf in jax.tree.leaves(state)} == {there}


def test_params_without_a_place_cost_nothing():
    init = jax.make_jaxpr(fnopt.adam(1e-3).init)({"w": jnp.ones(2)})
    assert {e.primitive.name for e in init.eqns} <= {"broadcast_in_dim"}
    assert not any(x.committed for x in jax.tree.leaves(fnopt.adam(1e-3).init({"w": jnp.ones(2)})))


@pytest.mark.parametrize("kind", KINDS)
def test_init_under_vmap_and_inside_shard_map(kind):
    params = jax.device_put({"w": jnp.ones((4, 2))}, NamedSharding(mesh_of(kind), P("d")))
    jax.eval_shape(jax.vmap(fnopt.adam(1e-3).init), params)
    manual = jax.shard_map(
        lambda p: fnopt.scale_by_adam().init(p).mu,
        mesh=mesh_of(kind),
        in_specs=P("d"),
        out_specs=P("d"),
    )
    assert jax.eval_shape(manual, params)["w"].shape == (4, 2)
