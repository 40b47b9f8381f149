"""The contract battery: what holds for every transform and optimizer of the library."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.contract.registry import CASES, NOT_IN_REGISTRY
from tests.contract.trees import assert_close, assert_identical, make_tree, signature

every = pytest.mark.parametrize("case", CASES, ids=repr)
KINDS = ("f32", "bf16", "mixed")


def step(tx: Any, params: Any, state: Any, grads: Any, **extras: Any) -> Any:
    updates, state = tx.update(grads, state, params, **extras)
    return fnopt.apply_updates(params, updates), state, updates


def run(case: Any, kind: str = "f32", steps: int = 3, grads_kind: str | None = None) -> Any:
    tx, params = case.make(), make_tree(0, kind)
    state, fn, seen = tx.init(params), jax.jit(step), []
    for i in range(steps):
        grads = make_tree(i + 1, grads_kind or kind)
        params, state, updates = fn(tx, params, state, grads, **case.extras)
        seen.append((params, state, updates, grads))
    return seen


def test_every_public_transform_is_registered():
    used = {type(m) for case in CASES for m in _all_parts(case.make())}
    public = [*vars(fnopt).values(), *vars(fnopt.monitor).values()]
    transforms = {c for c in public if inspect.isclass(c) and issubclass(c, fnopt.Transformation)}
    assert {c.__name__ for c in transforms - used} <= NOT_IN_REGISTRY


def test_every_public_optimizer_is_registered():
    names = {case.name for case in CASES}
    recipes = {n for n in fnopt.optimizers.__all__ if not inspect.isclass(getattr(fnopt, n))}
    assert recipes <= names


def _all_parts(tx: Any) -> Any:
    yield tx
    for member in tx.members():
        yield from _all_parts(member.tx)


@every
@pytest.mark.parametrize("kind", KINDS)
def test_init_returns_strong_typed_arrays_only(case: Any, kind: str):
    for leaf in jax.tree.leaves(case.make().init(make_tree(0, kind))):
        assert isinstance(leaf, jax.Array)
        assert not leaf.weak_type


@every
@pytest.mark.parametrize("kind", KINDS)
def test_update_keeps_state_and_dtypes(case: Any, kind: str):
    params = make_tree(0, kind)
    before = signature(case.make().init(params))
    for new_params, state, updates, _ in run(case, kind, steps=2):
        assert signature(state) == before
        assert signature(updates) == signature(params)
        assert signature(new_params) == signature(params)
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(new_params))


@every
@pytest.mark.parametrize(("kind", "grads_kind"), [("bf16", "f32"), ("f32", "bf16")])
def test_updates_have_the_params_dtype_whatever_the_gradients(
    case: Any, kind: str, grads_kind: str
):
    before = signature(case.make().init(make_tree(0, kind)))
    for params, state, updates, _ in run(case, kind, steps=2, grads_kind=grads_kind):
        assert signature(state) == before
        assert signature(updates) == signature(params)


@every
def test_float64(case: Any, x64: None):
    before = signature(case.make().init(make_tree(0, "f64")))
    for params, state, _, _ in run(case, "f64", steps=2):
        assert signature(state) == before
        assert all(x.dtype == jnp.float64 for x in jax.tree.leaves(params))


@every
def test_jit_equals_eager(case: Any):
    tx, params = case.make(), make_tree(0)
    state = tx.init(params)
    for i, (jit_params, jit_state, _, _) in enumerate(run(case, steps=2)):
        params, state, _ = step(tx, params, state, make_tree(i + 1), **case.extras)
        # XLA contracts products and sums when it fuses: a few units in the last place
        assert_close(jit_params, params, rtol=2e-6, atol=1e-7)
        assert_close(jit_state, state, rtol=2e-6, atol=1e-7)


@every
def test_vmap_over_params_equals_a_loop(case: Any):
    tx, seeds = case.make(), (0, 5)
    trees = [make_tree(s) for s in seeds]
    grads = [make_tree(s + 1) for s in seeds]
    stack = partial(jax.tree.map, lambda *xs: jnp.stack(xs))
    params = stack(*trees)
    state = jax.vmap(tx.init)(params)
    fn = jax.jit(jax.vmap(lambda p, s, g: step(tx, p, s, g, **case.extras)))
    together = fn(params, state, stack(*grads))
    single = jax.jit(lambda p, s, g: step(tx, p, s, g, **case.extras))
    alone = [single(p, tx.init(p), g) for p, g in zip(trees, grads, strict=True)]
    assert_close(together, stack(*alone), rtol=1e-6, atol=1e-7)


@every
def test_one_trace_for_five_steps_and_all_numbers(case: Any):
    traces = 0

    @jax.jit
    def counted(tx: Any, params: Any, state: Any, grads: Any) -> Any:
        nonlocal traces
        traces += 1
        return step(tx, params, state, grads, **case.extras)

    tx, params = case.make(), make_tree(0)
    state = tx.init(params)
    for i in range(5):
        # other numbers in every step; the optimizer is an argument, so nothing is compiled anew
        now = jax.tree.map(lambda x, i=i: x * (1 - 0.01 * i), tx)
        params, state, _ = counted(now, params, state, make_tree(i + 1))
    assert traces == 1


@every
def test_unknown_extra_arguments_are_ignored(case: Any):
    tx, params = case.make(), make_tree(0)
    plain = tx.update(make_tree(1), tx.init(params), params, **case.extras)
    extra = tx.update(make_tree(1), tx.init(params), params, nonsense=3, **case.extras)
    assert_identical(plain, extra)


@every
def test_missing_required_extra_fails_by_name(case: Any):
    tx, params = case.make(), make_tree(0)
    for name in case.extras:
        given = {k: v for k, v in case.extras.items() if k != name}
        with pytest.raises(TypeError, match=f"needs the extra argument '{name}'"):
            tx.update(make_tree(1), tx.init(params), params, **given)


@every
@pytest.mark.parametrize("tree", [{}, (), [], jnp.ones(3), {"a": None}], ids=repr)
def test_odd_trees(case: Any, tree: Any):
    tx = case.make()
    params, _, _ = step(tx, tree, tx.init(tree), tree, **case.extras)
    assert jax.tree.structure(params) == jax.tree.structure(tree)


@every
def test_inputs_are_not_modified(case: Any):
    tx, params, grads = case.make(), make_tree(0), make_tree(1)
    state = tx.init(params)
    before = jax.tree.map(np.array, (params, state, grads))
    step(tx, params, state, grads, **case.extras)
    after = jax.tree.map(np.array, (params, state, grads))
    jax.tree.map(np.testing.assert_array_equal, before, after)


@every
def test_state_survives_pickle_and_flax_bytes(case: Any):
    serialization = pytest.importorskip("flax.serialization")
    state = run(case, steps=1)[0][1]
    assert_identical(pickle.loads(pickle.dumps(state)), state)
    fresh = case.make().init(make_tree(0))
    restored = serialization.from_bytes(fresh, serialization.to_bytes(state))
    assert_identical(jax.tree.map(jnp.asarray, restored), state)


@every
def test_state_sharding_follows_params(case: Any):
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    params = {"w": jax.device_put(jnp.ones((4, 2)), sharding)}
    tx = case.make()
    state = tx.init(params)
    _, after, _ = jax.jit(step)(tx, params, state, params, **case.extras)
    for tree in (state, after):
        for slot in fnopt.slots(tree).values():
            for leaf in jax.tree.leaves(slot):
                assert leaf.shape != (4, 2) or leaf.sharding.is_equivalent_to(sharding, 2)


@every
def test_derivative_by_hyperparameters_is_finite(case: Any):
    params = {"kernel": jnp.ones((1, 2)), "bias": jnp.ones(2)}
    two_grads = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), params)

    @jax.jit
    @jax.grad
    def hypergradient(tx: Any, grads: Any) -> Any:
        def body(carry: Any, grads: Any) -> Any:
            params, state, _ = step(tx, *carry, grads, **case.extras)
            return (params, state), None

        (end, _), _ = jax.lax.scan(body, (params, tx.init(params)), grads)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(end))

    for size in (0.0, 0.5):  # zero gradients first: there roots and quotients have no derivative
        grads = jax.tree.map(lambda g, size=size: size * g, two_grads)
        for slope in jax.tree.leaves(hypergradient(case.make(), grads)):
            assert bool(jnp.isfinite(slope).all())


@every
def test_is_a_value(case: Any):
    tx, other = case.make(), case.make()
    assert tx == other
    assert hash(tx) == hash(other)
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert dataclasses.replace(tx) == tx
    assert type(tx).__name__ in repr(tx) or repr(tx).startswith("chain(")
    init, update = tx
    assert init == tx.init
    assert update == tx.update
    changed = jax.tree.map(lambda x: x * 2 + 1, tx)
    assert changed != tx or not jax.tree.leaves(tx)


@every
def test_config_round_trip(case: Any):
    tx = case.make()
    assert fnopt.from_config(json.loads(json.dumps(fnopt.to_config(tx)))) == tx


@every
def test_static_argument_traces_once_for_equal_optimizers(case: Any):
    traces = 0

    @partial(jax.jit, static_argnums=0)
    def init(tx: Any, params: Any) -> Any:
        nonlocal traces
        traces += 1
        return tx.init(params)

    init(case.make(), make_tree(0))
    init(case.make(), make_tree(0))
    assert traces == 1


@every
def test_slot_names_are_known_before_the_first_step(case: Any):
    tx, params = case.make(), make_tree(0)
    abstract = jax.eval_shape(lambda: params)
    assert fnopt.slot_names(tx, abstract) == tuple(fnopt.slots(tx.init(params)))
    for slot in fnopt.slots(tx.init(params)).values():
        assert len(jax.tree.leaves(slot)) <= len(jax.tree.leaves(params))


@every
def test_hyperparams_are_scalars_by_name(case: Any):
    tx, params = case.make(), make_tree(0)
    for name, value in fnopt.hyperparams(tx, tx.init(params)).items():
        assert isinstance(name, str)
        assert value.shape == ()
        assert not value.weak_type


def _minimised(case: Any, loss: Any, start: jax.Array) -> float:
    tx = case.minimise()

    @jax.jit
    def train(params: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            params, state = carry
            params, state, _ = step(tx, params, state, jax.grad(loss)(params), **case.extras)
            return (params, state), None

        return jax.lax.scan(body, (params, tx.init(params)), length=case.steps)[0][0]

    return float(loss(train(start)))


@every
def test_reaches_the_optimum_of_a_quadratic(case: Any):
    if case.minimise is None:
        pytest.skip("does not descend by itself")
    curvature = jnp.asarray([1.0, 0.3, 0.1])
    start = jnp.asarray([1.0, -0.5, 0.5])
    end = _minimised(case, lambda x: jnp.sum(curvature * (x - 0.25) ** 2), start)
    assert end < 1e-4


@every
def test_reaches_the_optimum_of_rosenbrock(case: Any):
    if case.minimise is None:
        pytest.skip("does not descend by itself")
    start = jnp.asarray([0.2, 0.6])
    end = _minimised(case, lambda x: (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2, start)
    assert end < 1e-2


@every
def test_agrees_with_its_peer(case: Any):
    if case.peer is None:
        pytest.skip("no peer in optax")
    optax = pytest.importorskip("optax")
    ours = run(case, steps=10)
    # In float64 the peer is the better reference: in float32 it takes 1 - b2 in double precision,
    # but 1 - b2^t in single, which is wrong by 1e-5 in the first steps.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        peer, params = case.peer(optax), _widened(make_tree(0))
        state = peer.init(params)

        @jax.jit
        def peer_step(params: Any, state: Any, grads: Any) -> Any:
            updates, state = peer.update(grads, state, params, **case.extras)
            return optax.apply_updates(params, updates), state

        for our_params, _, _, grads in ours:
            params, state = peer_step(params, state, _widened(grads))
            assert_close(our_params, params, rtol=2e-6, atol=2e-6)


def _widened(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree)
