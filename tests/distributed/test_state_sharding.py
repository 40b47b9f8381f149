"""Where states belong, for every optimizer of the library; most of it is abstract."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import distributed
from tests.contract.registry import CASES

SPECS = {"bias": P(), "kernel": P(None, "model")}
SHAPES = {"bias": (6,), "kernel": (3, 8)}


@functools.cache
def mesh_of(shape=(2,), names=("data",), kind="Auto"):
    return jax.make_mesh(shape, names, axis_types=(getattr(AxisType, kind),) * len(names))


needs_set_mesh = pytest.mark.skipif(
    not hasattr(jax, "set_mesh"), reason="this JAX has no `jax.set_mesh`"
)


def shapes(mesh, specs=SPECS):
    place = {k: NamedSharding(mesh, spec) for k, spec in specs.items()}
    return {k: jax.ShapeDtypeStruct(s, jnp.float32, sharding=place[k]) for k, s in SHAPES.items()}


def arrays_of(params):
    return {k: jax.device_put(jnp.ones(p.shape), p.sharding) for k, p in params.items()}


def bytes_per_device(state, where):
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(where), strict=True)
    return sum(math.prod(w.shard_shape(x.shape)) * x.dtype.itemsize for x, w in pairs)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_every_state_has_a_place(case):
    tx, params = case.make(), shapes(mesh_of((1, 2), ("data", "model")))
    state = jax.eval_shape(tx.init, params)
    places = distributed.state_sharding(tx, params)
    assert jax.tree.structure(places) == jax.tree.structure(state)
    found = fnopt.sharding.match_params(state, params)
    for (_, leaf, owner), where in zip(found, jax.tree.leaves(places), strict=True):
        where.shard_shape(leaf.shape)  # it is divisible
        if owner is not None and owner.shape == leaf.shape:
            assert where.is_equivalent_to(owner.sharding, leaf.ndim)
        if leaf.ndim == 0:
            assert where.spec == P()


def whole():
    return shapes(mesh_of(), {"bias": P(), "kernel": P()})


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_slots_are_divided_over_an_axis(case):
    tx, params = case.make(), whole()
    places = distributed.state_sharding(tx, params, axis="data")
    state = jax.eval_shape(tx.init, params)
    for name, slot in fnopt.slots(state).items():
        leaves, where = jax.tree.leaves(slot), jax.tree.leaves(fnopt.slots(places)[name])
        for leaf, place in zip(leaves, where, strict=True):
            divisible = any(n and n % 2 == 0 for n in leaf.shape)
            assert (place.spec != P()) == divisible, name


def test_adam_takes_half_on_two_devices():
    tx, params = fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adam(1e-3)), whole()
    state = jax.eval_shape(tx.init, params)
    before = bytes_per_device(state, distributed.state_sharding(tx, params))
    after = bytes_per_device(state, distributed.state_sharding(tx, params, axis="data"))
    assert (before, after) == (2 * 30 * 4 + 4, 30 * 4 + 4)


def test_a_dimension_that_is_divided_already_can_be_divided_further():
    params = shapes(mesh_of((2, 1), ("model", "data")))
    places = distributed.state_sharding(fnopt.sgd(0.1, momentum=0.9), params, axis="data")
    trace = fnopt.slots(places)["trace"]
    assert trace["bias"].spec == P("data")
    assert trace["kernel"].spec == P(None, ("model", "data"))
    # what is divided over the axis already stays as it is
    places = distributed.state_sharding(fnopt.sgd(0.1, momentum=0.9), params, axis="model")
    assert fnopt.slots(places)["trace"]["kernel"].spec == P(None, "model")


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_init_sharded_makes_every_part_where_it_belongs(kind):
    mesh = mesh_of(kind=kind)
    tx = fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adam(1e-3), fnopt.params_ema(0.9))
    params = shapes(mesh, {"bias": P(), "kernel": P(None, "data")})
    places = distributed.state_sharding(tx, params, axis="data")
    arrays = {k: jax.device_put(jnp.ones(s.shape), s.sharding) for k, s in params.items()}
    for given in (params, arrays):
        state = distributed.init_sharded(tx, given, axis="data")
        for x, where in zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True):
            assert x.sharding.is_equivalent_to(where, x.ndim)
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(tx.init(arrays)), strict=True):
        assert (x == jax.device_put(y, x.sharding)).all()


@needs_set_mesh
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_init_sharded_of_a_sharded_optimizer_finds_the_mesh(kind):
    tx, mesh = distributed.sharded(fnopt.adam(1e-3), "data"), mesh_of(kind=kind)
    bare = {"w": jnp.ones((4, 2))}
    wanted = tx.init(jax.device_put(bare, NamedSharding(mesh, P())))
    shape = shapes(mesh, {"bias": P(), "kernel": P()})

    def check(state, like):
        for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(like), strict=True):
            assert x.shape == y.shape
            assert x.sharding.is_equivalent_to(y.sharding, x.ndim)

    check(distributed.init_sharded(tx, bare, mesh=mesh), wanted)
    check(distributed.init_sharded(tx, shape), distributed.init_sharded(tx, arrays_of(shape)))
    with jax.set_mesh(mesh):
        check(distributed.init_sharded(tx, bare), wanted)
        check(jax.jit(lambda p: distributed.init_sharded(tx, p))(bare), wanted)
    other = mesh_of((1,), ("data",), kind)
    with jax.set_mesh(other), pytest.raises(ValueError, match=r"mesh \{'data': 2\}.*one mesh"):
        jax.jit(lambda p: distributed.init_sharded(tx, p, mesh=mesh))(bare)


def test_shapes_are_not_enough_where_values_are_copied():
    tx = fnopt.lookahead(fnopt.adam(1e-3), 2, 0.5)
    with pytest.raises(ValueError, match=r"'slow/bias', 'slow/kernel'.*as arrays"):
        distributed.init_sharded(tx, whole())


def test_params_on_no_mesh_or_on_two_are_refused():
    tx, mesh = fnopt.adam(1e-3), mesh_of()
    bare = {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match=r"aren't on a mesh.*mesh="):
        distributed.state_sharding(tx, bare)
    assert distributed.state_sharding(tx, bare, mesh=mesh)[0].mu["w"].spec == P()
    other = jax.make_mesh((1,), ("x",), devices=jax.devices()[1:2])
    mixed = {"a": jax.device_put(jnp.ones(2), NamedSharding(mesh, P()))}
    mixed["b"] = jax.device_put(jnp.ones(2), NamedSharding(other, P()))
    with pytest.raises(ValueError, match="leaf 'b' of the params has the sharding NamedSharding"):
        distributed.state_sharding(tx, mixed)
    committed = {"w": jax.device_put(jnp.ones(2), jax.devices()[1])}
    with pytest.raises(ValueError, match="leaf 'w' of the params has the sharding"):
        distributed.state_sharding(tx, committed, mesh=mesh)
    with pytest.raises(ValueError, match=r"aren't on a mesh \(leaf 'w' has SingleDeviceSharding"):
        distributed.state_sharding(tx, committed)
    with pytest.raises(ValueError, match="leaf 'b' of the params has the sharding NamedSharding"):
        distributed.init_sharded(tx, mixed)
    with pytest.raises(ValueError, match="aren't on a mesh"):
        distributed.scatter_state(distributed.sharded(tx, "data"), tx.init(bare), committed)
    with pytest.raises(ValueError, match=r"axis = 'model', expected an axis of the mesh: \['data'"):
        distributed.state_sharding(tx, whole(), axis="model")


def test_the_compiler_divides_the_step():
    """ZeRO-1 without named axes: what XLA makes of a state that is divided."""
    adamw = fnopt.adamw(1e-2)
    # Slots like the params, slots of a byte a number with a scale for four, and all as one vector.
    txs = adamw, fnopt.quantized_state(adamw, block_size=4, min_size=1), fnopt.flatten(adamw)
    sharding = NamedSharding(mesh_of(), P())
    params = {k: jax.device_put(jnp.ones(s), sharding) for k, s in SHAPES.items()}
    places = tuple(distributed.state_sharding(tx, params, axis="data") for tx in txs)

    def step(params, states):
        grads = jax.tree.map(lambda p: jnp.cos(p) * 0.1, params)
        found = [tx.update(grads, state, params) for tx, state in zip(txs, states, strict=True)]
        return fnopt.apply_updates(params, found[0][0]), tuple(state for _, state in found)

    divided = jax.jit(step, out_shardings=(sharding, places))
    plain = jax.jit(step)
    mine = params, tuple(distributed.init_sharded(tx, params, axis="data") for tx in txs)
    theirs = params, tuple(tx.init(params) for tx in txs)
    for _ in range(3):
        mine, theirs = divided(*mine), plain(*theirs)
    for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        assert (x == jax.device_put(y, x.sharding)).all()
    for state in mine[1]:
        for x in jax.tree.leaves(fnopt.slots(state)["mu"]):
            assert x.addressable_shards[0].data.size == x.size // 2


def test_a_state_on_other_devices_is_named():
    """In an eager step; in a jitted one it is JAX that names both arguments and their devices."""
    mesh = mesh_of()
    params = jax.device_put({"w": jnp.ones(2)}, NamedSharding(mesh, P()))
    tx = fnopt.adam(1e-2)
    state = jax.device_put(tx.init(jax.device_get(params)), jax.devices()[1])
    with pytest.raises(ValueError, match=r"leaf 'count' of state has the sharding Single.*'w' of"):
        tx.update(params, state, params)
    with pytest.raises(ValueError, match=r"incompatible devices.*state\[0\]\.count"):
        jax.jit(tx.update)(params, state, params)
    moved = jax.device_put(state, distributed.state_sharding(tx, params))
    tx.update(params, moved, params)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_slots_of_a_leaf_that_lie_in_different_ways_work(kind):
    mesh, tx = mesh_of(kind=kind), fnopt.adam(1e-2)
    params = jax.device_put({"w": jnp.ones((4, 3))}, NamedSharding(mesh, P()))
    state = tx.init(params)
    mu = jax.device_put(state[0].mu, NamedSharding(mesh, P("data")))
    mixed = (state[0]._replace(mu=mu), *state[1:])
    found, expected = (jax.jit(tx.update)(params, s, params) for s in (mixed, state))
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert (x == jax.device_put(y, x.sharding)).all()


def _spec(x):
    """Over which axes each dimension is divided, by the type."""
    spec = (*x.sharding.spec,) if x.sharding is not None else ()
    return spec + (None,) * (len(x.shape) - len(spec))


# Slots like the params, factors of matrices, one vector, codes, memories, and wrappers of them.
KINDS = {
    *("accumulate", "adafactor", "adam", "adam_mini", "freeze", "galore", "lbfgs", "mechanize"),
    *("muon", "normuon", "partition", "sam", "schedule_free_adamw", "small_parts", "soap"),
    *("stored_in_less", "wrapped"),
}


@pytest.mark.parametrize("case", [c for c in CASES if c.name in KINDS], ids=repr)
def test_a_step_on_an_explicit_mesh_leaves_all_where_it_was(case):
    """Params are divided over one axis, slots over another one more, and JAX has to have a type."""
    mesh = mesh_of((2, 1), ("data", "model"), kind="Explicit")
    params = shapes(mesh, {"bias": P("model"), "kernel": P(None, "model")})
    tx = case.make()
    state = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        jax.eval_shape(tx.init, params),
        distributed.state_sharding(tx, params, axis="data"),
    )

    def step(params, state):
        updates, state = tx.update(params, state, params, **case.extras)
        return fnopt.apply_updates(params, updates), state

    given = params, state
    for x, y in zip(*map(jax.tree.leaves, (jax.eval_shape(step, *given), given)), strict=True):
        assert _spec(x) == _spec(y)


def test_steps_of_slots_that_are_divided_further_are_those_of_one_device():
    mesh = mesh_of((2, 1), ("data", "model"), kind="Explicit")
    places = shapes(mesh, {"bias": P("model"), "kernel": P(None, "model")})
    params = {k: jnp.cos(jnp.arange(math.prod(s.shape), dtype=s.dtype)) for k, s in places.items()}
    params = {k: x.reshape(SHAPES[k]) for k, x in params.items()}
    tx = fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adamw(1e-2))

    @jax.jit
    def steps(params, state):
        def body(carry, _):
            updates, state = tx.update(carry[0], carry[1], carry[0])
            return (fnopt.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(body, (params, state), length=3)[0]

    spread = {k: jax.device_put(x, places[k].sharding) for k, x in params.items()}
    found = steps(spread, distributed.init_sharded(tx, spread, axis="data"))
    expected = steps(params, tx.init(params))
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert jnp.allclose(jax.device_get(x), y, rtol=1e-6, atol=1e-7)
    assert fnopt.slots(found[1])["mu"]["kernel"].addressable_shards[0].data.shape == (3, 4)


@needs_set_mesh
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_mean_squares_of_neurons_are_sharded_like_the_neurons(kind):
    mesh, tx = mesh_of((2, 1), ("data", "model"), kind=kind), fnopt.normalize_neurons()
    with jax.set_mesh(mesh):
        # The compiler of automatic meshes shards a stack of several leaves alike.
        params = {"w": jnp.ones((4, 6)), "v": jnp.ones((4, 6 if kind == "Explicit" else 5))}
        places = {"w": NamedSharding(mesh, P(None, "data")), "v": NamedSharding(mesh, P())}
        params = jax.device_put(params, places)
        state = tx.init(params)
        assert _spec(state.nu["w"][0]) == (None, "data")
        after = jax.jit(tx.update)(params, state)[1]
        assert jax.tree.map(_spec, after) == jax.tree.map(_spec, state)
        assert jax.tree.map(_spec, jax.jit(tx.init)(params)) == jax.tree.map(_spec, state)
        expected = tx.update(*jax.device_get((params, state)))[1]
    jax.tree.map(np.testing.assert_allclose, after, expected)
