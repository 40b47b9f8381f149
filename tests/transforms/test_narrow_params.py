"""`kahan`, `master_copy` and `stochastic_rounding`: bfloat16 params that really move."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import fnopt

WRAPPERS = {
    "kahan": fnopt.kahan,
    "master_copy": fnopt.master_copy,
    "stochastic_rounding": functools.partial(fnopt.stochastic_rounding, key=5),
}
# Around zero, so that many steps cross it: there no bfloat16 step leads where it should.
START = 0.02 * np.random.default_rng(0).standard_normal(64).astype(np.float32)
GRADS = np.random.default_rng(1).standard_normal((40, 64)).astype(np.float32)


@functools.lru_cache
def constant_steps(dtype):
    """1 - 1000 x 1e-3 by every wrapper and by none, in one program."""
    makers = {**WRAPPERS, "plain": lambda tx: tx}
    params = {name: jnp.ones(256, dtype) for name in makers}
    txs = {name: make(fnopt.sgd(1e-3)) for name, make in makers.items()}

    @jax.jit
    def run():
        def body(carry, _):
            params, states = dict(carry[0]), dict(carry[1])
            for name, tx in txs.items():
                g = jnp.ones(256, jnp.float32)
                u, states[name] = tx.update(g, states[name], params[name])
                params[name] = fnopt.apply_updates(params[name], u)
            return (params, states), None

        states = {name: tx.init(params[name]) for name, tx in txs.items()}
        return jax.lax.scan(body, (params, states), length=1000)[0][0]

    return {name: np.asarray(p, np.float32) for name, p in run().items()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_thousand_small_steps_arrive(dtype):
    ends = constant_steps(dtype)
    assert (ends["plain"] == 1).all()  # what the wrappers are for
    assert np.abs(ends["master_copy"]).max() < 1e-4
    # Beside a float8 param float16 rounds a step of 0.001 by up to a hundredth.
    assert np.abs(ends["kahan"]).max() < {"bfloat16": 1e-3, "float8_e4m3fn": 1e-2}[dtype]
    # A walk: of steps of 0.004 at first, each taken with a chance of 1 in 4; of 0.0625 in float8.
    spread = {"bfloat16": 0.05, "float8_e4m3fn": 0.25}[dtype]
    assert abs(ends["stochastic_rounding"].mean()) < 5 * spread / np.sqrt(256)
    assert (ends["stochastic_rounding"] != 1).all()


@functools.lru_cache
def trained(name, key=5, dtype="bfloat16", apply=fnopt.apply_updates):
    """Params, states and updates after every step of Adam with the same gradients."""
    wrapper = (
        WRAPPERS[name]
        if name != "stochastic_rounding"
        else functools.partial(fnopt.stochastic_rounding, key=key)
    )
    tx = fnopt.chain(wrapper(fnopt.adamw(1e-2, weight_decay=0.1)))
    params = {"w": jnp.asarray(START).astype(dtype), "n": jnp.asarray(START)}

    def body(carry, g):
        params, state = carry
        updates, state = tx.update({"w": g, "n": g}, state, params)
        params = apply(params, updates)
        return (params, state), (params, state[0], updates)

    return jax.jit(lambda: jax.lax.scan(body, (params, tx.init(params)), jnp.asarray(GRADS))[1])()


@functools.lru_cache
def in_float32():
    tx, params = fnopt.adamw(1e-2, weight_decay=0.1), jnp.asarray(START).astype(jnp.bfloat16)

    def body(carry, g):
        params, state = carry
        updates, state = tx.update(g, state, params)
        params = fnopt.apply_updates(params, updates)
        return (params, state), params

    params = params.astype(jnp.float32)
    return jax.jit(lambda: jax.lax.scan(body, (params, tx.init(params)), jnp.asarray(GRADS))[1])()


def test_params_are_the_rounding_of_the_master_copy_which_is_a_float32_run():
    params, state, updates = trained("master_copy")
    assert state.master["n"] is None
    np.testing.assert_array_equal(params["w"], state.master["w"].astype(jnp.bfloat16))
    np.testing.assert_allclose(state.master["w"], in_float32(), rtol=1e-6, atol=1e-8)
    assert (np.sign(params["w"][1:]) != np.sign(params["w"][:-1])).any()  # steps across zero
    assert updates["w"].dtype == jnp.float32


def test_params_with_their_compensation_follow_a_float32_run():
    params, state, _ = trained("kahan")
    whole = params["w"].astype(jnp.float32) + state.compensation["w"].astype(jnp.float32)
    assert state.compensation["w"].dtype == jnp.bfloat16
    # 40 steps, each rounded to 17 digits of a param or its step
    assert np.abs(whole - in_float32()).max() < 40 * 0.1 * 2.0**-16
    assert np.abs(params["w"].astype(jnp.float32) - in_float32()).max() < 0.4 * 2.0**-8


def test_leaves_that_are_wide_are_stepped_as_ever():
    ours = [trained(name)[0]["n"] for name in ("master_copy", "stochastic_rounding")]
    np.testing.assert_array_equal(ours[0], ours[1])


def test_random_numbers_come_from_the_key():
    runs = [np.asarray(trained("stochastic_rounding", key)[0]["w"], np.float32) for key in (5, 6)]
    trained.cache_clear()
    again = np.asarray(trained("stochastic_rounding", 5)[0]["w"], np.float32)
    np.testing.assert_array_equal(runs[0], again)
    assert (runs[0] != runs[1]).any()
    assert abs((runs[0] - np.asarray(in_float32())).mean()) < 4e-4


def test_optax_adds_the_updates_to_the_same_params():
    optax = pytest.importorskip("optax")
    with jax.numpy_dtype_promotion("standard"):
        theirs = trained("master_copy", apply=optax.apply_updates)
    np.testing.assert_array_equal(theirs[0]["w"], trained("master_copy")[0]["w"])


def test_kahan_gives_float32_twice_its_digits():
    tx, params = fnopt.kahan(fnopt.sgd(1.0)), {"w": jnp.asarray([1.0, 1e20, -1e-24], jnp.float32)}
    step = 2.0**-26 * params["w"]

    def body(carry, _):
        params, state = carry
        updates, state = tx.update({"w": step}, state, params)
        return (fnopt.apply_updates(params, updates), state), None

    end = jax.jit(lambda: jax.lax.scan(body, (params, tx.init(params)), length=64)[0])()[0]
    np.testing.assert_allclose(end["w"], params["w"] * np.float32(1 - 2.0**-20), rtol=6e-8)


@pytest.mark.parametrize("name", WRAPPERS)
def test_counters_and_complex_leaves(name):
    params = {
        "count": jnp.asarray(3),
        "w": jnp.ones(2, jnp.bfloat16),
        "z": jnp.ones(2, jnp.complex64),
        "none": None,
    }
    tx = WRAPPERS[name](fnopt.freeze(fnopt.sgd(1e-3), "count"))
    state = tx.init(params)
    grads = {**params, "count": np.zeros((), jax.dtypes.float0)}
    updates, new_state = tx.update(grads, state, params)
    new = fnopt.apply_updates(params, updates)
    assert new["count"] == 3
    np.testing.assert_allclose(new["z"], 0.999, rtol=1e-6)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)


def test_an_infinite_step_leaves_a_compensation_that_can_go_on():
    tx, params = fnopt.kahan(fnopt.sgd(1.0)), jnp.ones(2, jnp.bfloat16)
    updates, state = tx.update(jnp.asarray([jnp.inf, 1e-3]), tx.init(params), params)
    assert np.isfinite(np.asarray(state.compensation, np.float32)).all()
    assert np.isinf(np.asarray(fnopt.apply_updates(params, updates), np.float32)[0])


@pytest.mark.parametrize("make", [fnopt.adamw, fnopt.lion, fnopt.sgd])
def test_float8_params_beside_others(make):
    params = {"w": jnp.ones(4, jnp.float8_e4m3fn), "b": jnp.ones(2, jnp.bfloat16)}
    tx = make(0.25)

    def step(params):
        updates, state = tx.update(params, tx.init(params), params)
        return fnopt.apply_updates(params, updates), updates, state

    new, updates, state = jax.eval_shape(step, params)
    assert new["w"].dtype == updates["w"].dtype == jnp.float8_e4m3fn
    assert all(x.dtype in (jnp.float32, jnp.int32) for x in jax.tree.leaves(state))


@pytest.mark.parametrize(
    "make",
    [
        fnopt.stochastic_rounding,
        lambda tx: fnopt.precision_policy(tx, {"*": "bfloat16"}, key=0),
    ],
    ids=["params", "slots"],
)
def test_small_leaves_share_a_draw_and_no_number_of_it(make):
    """A draw for every leaf took XLA 0.15 s each to compile."""
    tx = make(fnopt.sgd(1e-3, momentum=0.9))

    def ends(params):
        grads = jax.tree.map(lambda p: jnp.full(p.shape, 1.001), params)
        updates, state = tx.update(grads, tx.init(params), params)
        return fnopt.slots(state) if tx._place == "precision_policy" else updates

    def leaves(n):
        return [jnp.ones(400, jnp.bfloat16)] * n

    programs = [str(jax.make_jaxpr(ends)(leaves(n))) for n in (2, 5)]
    draws = [text.count("random_bits[") for text in programs]
    assert draws[0] == draws[1] > 0
    a, b = (np.asarray(x, np.float32) for x in jax.tree.leaves(jax.jit(ends)(leaves(2))))
    assert len(set(a)) == 2  # the two neighbors
    assert set(a) == set(b)
    assert (a != b).any()


@pytest.mark.skipif(len(jax.devices()) < 2, reason="needs two devices")
def test_random_rounding_keeps_the_shardings_of_auto_meshes():
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("x",))
    shardings = {
        "w": NamedSharding(mesh, PartitionSpec("x")),
        "b": NamedSharding(mesh, PartitionSpec()),
    }
    policy = fnopt.precision_policy(fnopt.adam(1e-3), {"*": "bfloat16"}, key=0)
    cases = (policy, jnp.float32), (fnopt.stochastic_rounding(fnopt.adam(1e-3)), jnp.bfloat16)
    for tx, dtype in cases:
        params = {"w": jnp.ones((8, 4), dtype), "b": jnp.ones(4, dtype)}
        params = jax.tree.map(jax.device_put, params, shardings)

        @jax.jit
        def step(params, state, tx=tx):
            updates, state = tx.update(params, state, params)
            return fnopt.apply_updates(params, updates), state

        new_params, state = step(params, tx.init(params))
        for tree in (new_params, fnopt.slots(state)["mu"]):
            for name, x in tree.items():
                assert x.sharding.is_equivalent_to(shardings[name], x.ndim), (tx, name)
