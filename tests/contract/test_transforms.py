"""The contract battery: what holds for every transform and optimizer of the library."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import pickle
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.numerics import is_inexact
from tests.contract.registry import CASES, FUNCTIONS, NOT_IN_REGISTRY, NOT_MINIMIZERS
from tests.contract.trees import (
    assert_buffers_of_their_own,
    assert_close,
    assert_identical,
    make_tree,
    signature,
)

# All checks of a case run one after the other, so that they share its compiled steps; and in one
# process (tests/scheduler.py).
every = pytest.mark.parametrize("case", CASES, ids=repr, scope="module")
# What is not scale-free on purpose, or by its formula.
NOT_OF_ANY_MAGNITUDE = {
    "stored_in_less": "squares are stored in float16, whose largest number is 65,504",
    "lbfgs": "its steps are as long as gradients without a search, and products overflow",
}
# Whose updates don't show an infinite gradient, or NaN.
HIDES_INFINITY = {
    **dict.fromkeys(["lion", "sign_sgd", "signum", "stateless"], "an infinity has a sign"),
    **dict.fromkeys(["clip", "named_chain", "sophia", "sophia_bartlett"], "infinities are clipped"),
    **dict.fromkeys(["keep_params_nonnegative"], "infinities are clipped"),
    **dict.fromkeys(["apply_if_finite", "cautious", "stored_in_less"], "it skips the step"),
    **dict.fromkeys(["wrapped", "small_parts"], "it skips the step"),
    **dict.fromkeys(["accumulate", "accumulated_sgd"], "it steps after the second gradient"),
    **dict.fromkeys(["soap", "kl_shampoo"], "its first gradient only makes a basis"),
    **dict.fromkeys(["set_to_zero", "freeze"], "it does not read the gradient"),
    **dict.fromkeys(["zero_nans"], "it replaces NaN"),
}
# Types of params and of gradients: alike (steps that are taken show two more), narrower, and every
# type beside every other, leaf by leaf.
PAIRS = (
    ("bf16", "bf16"),
    ("f64", "f64"),
    ("f32", "bf16"),
    ("mixed", "others"),
    ("wide_mixed", "wide_others"),
)
# Where results are compared and nothing else: two shapes, each of which two devices can share.
SMALL = {"dense": {"kernel": (4, 2), "bias": (2,)}}


def step(tx: Any, params: Any, state: Any, grads: Any, extras: Any = None) -> Any:
    updates, state = tx.update(grads, state, params, **(extras or {}))
    return fnopt.apply_updates(params, updates), state, updates


class Run(NamedTuple):
    """Five steps of a case, compiled: what came out of each, and how often it was traced."""

    steps: list[Any]  # (params, state, updates, grads)
    traces: int
    again: Any  # the compiled step, for other numbers


def run(case: Any, kind: str = "f32") -> Run:
    return _run(case, kind)


@functools.lru_cache(maxsize=4)
def _run(case: Any, kind: str) -> Run:
    tx, params, seen, traces = case.make(), make_tree(0, kind), [], 0
    state = tx.init(params)

    @jax.jit
    def counted(tx: Any, params: Any, state: Any, grads: Any) -> Any:
        nonlocal traces
        traces += 1
        return step(tx, params, state, grads, case.extras)

    for i in range(5):
        # other numbers in every step; the optimizer is an argument, so nothing is compiled anew
        now = jax.tree.map(lambda x, i=i: x * (1 - 0.01 * i), tx) if kind != "f32" else tx
        grads = make_tree(i + 1, kind)
        params, state, updates = counted(now, params, state, grads)
        seen.append((params, state, updates, grads))
    return Run(seen, traces, counted)


def abstract_step(case: Any, kind: str, grads_kind: str) -> Any:
    """The types of params, state and updates after a step; nothing is compiled."""
    tx, params = case.make(), make_tree(0, kind)
    return jax.eval_shape(
        lambda p, g: step(tx, p, tx.init(p), g, case.extras), params, make_tree(1, grads_kind)
    )


def test_every_public_transform_is_registered():
    used = {type(m) for case in CASES for m in _all_parts(case.make())}
    names = {fnopt: fnopt._NAMES, fnopt.monitor: fnopt.monitor.__all__}
    public = [getattr(place, name) for place, all_ in names.items() for name in all_]
    transforms = {c for c in public if inspect.isclass(c) and issubclass(c, fnopt.Transformation)}
    assert {c.__name__ for c in transforms - used} <= NOT_IN_REGISTRY


def test_every_public_optimizer_has_a_case():
    recipes = {n for n in fnopt.optimizers.__all__ if not inspect.isclass(getattr(fnopt, n))}
    missing = recipes - {case.name for case in CASES} - NOT_MINIMIZERS - FUNCTIONS
    assert not missing, "name in tests/contract/registry.py how they are made"


def _all_parts(tx: Any) -> Any:
    yield tx
    for member in tx.members():
        yield from _all_parts(member.tx)


@every
def test_init_returns_strong_typed_arrays_only(case: Any):
    for leaf in jax.tree.leaves(case.make().init(make_tree(0, "mixed"))):
        assert isinstance(leaf, jax.Array)
        assert not leaf.weak_type


@every
def test_init_of_shapes_is_that_of_arrays_or_refused(case: Any):
    tx, params = case.make(), make_tree(0, "mixed")
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
    expected = tx.init(params)
    if _depends_on_values(tx, params):
        with pytest.raises(ValueError, match=r"are the values of the params.*jax\.eval_shape"):
            tx.init(shapes)
    else:
        assert_identical(tx.init(shapes), expected)
    assert signature(jax.eval_shape(tx.init, shapes)) == signature(expected)


def _depends_on_values(tx: Any, params: Any) -> bool:
    states = tx.init(params), tx.init(jax.tree.map(lambda p: p + jnp.ones_like(p), params))
    pairs = zip(*map(jax.tree.leaves, states), strict=True)
    return not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


@every
@pytest.mark.parametrize(("kind", "grads_kind"), PAIRS)
def test_state_and_updates_keep_the_types_of_the_params(case: Any, kind: str, grads_kind: str):
    with jax.enable_x64("f64" in kind or "wide" in kind):
        params = make_tree(0, kind)
        new_params, state, updates = abstract_step(case, kind, grads_kind)
        assert signature(state) == signature(jax.eval_shape(case.make().init, params))
        assert case.wide or signature(updates) == signature(params)
        assert signature(new_params) == signature(params)


@every
@pytest.mark.parametrize("kind", ["f32", "mixed"])
def test_steps_are_finite_and_keep_their_types(case: Any, kind: str):
    before = signature(case.make().init(make_tree(0, kind)))
    for params, state, updates, _ in run(case, kind).steps:
        assert signature(state) == before
        assert signature(params) == signature(make_tree(0, kind))
        assert case.wide or signature(updates) == signature(params)
        for x in jax.tree.leaves(params):
            assert np.isfinite(np.asarray(x, np.float32)).all()


# What is no function of the phase.
NOT_OF_ANY_PHASE = {
    **dict.fromkeys(("small_parts", "noisy_sgd"), "noise is the same in both runs"),
    "wrapped": "real and imaginary parts are split",
    "yogi": "the mean begins at 1e-6",
    "stored_in_less": "slots are rounded part by part",
}


@every
def test_a_common_phase_of_complex_params_and_gradients_is_one_of_the_updates(case: Any):
    def tree(seed: int) -> Any:
        found = make_tree(seed, "f64")
        parts = zip(*(jax.tree.leaves(make_tree(s, "f64")) for s in (seed, seed + 9)), strict=True)
        return jax.tree.unflatten(jax.tree.structure(found), [a + 1j * b for a, b in parts])

    def pairs(x: Any) -> Any:
        return jax.tree.map(lambda a: jnp.stack([a.real, a.imag]), x)

    def turned(x: Any) -> Any:
        return jax.tree.map(lambda a: a * np.exp(0.7j), x)

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        tx, params = case.make(), tree(0)
        if case.real_only or case.name in NOT_OF_ANY_PHASE or _needs_real_matrices(tx, params):
            return
        states = [tx.init(params), tx.init(turned(params))]
        update = jax.jit(lambda g, s, p: tx.update(g, s, p, **case.extras))
        for seed in range(1, 4):
            plain, states[0] = update(tree(seed), states[0], params)
            other, states[1] = update(turned(tree(seed)), states[1], turned(params))
            assert_close(pairs(other), pairs(turned(plain)), rtol=1e-7, atol=1e-12)
            params = fnopt.apply_updates(params, plain)


def _needs_real_matrices(tx: Any, params: Any) -> bool:
    try:
        tx.init(params)
    except TypeError as error:
        return "expected a real matrix" in str(error)
    return False


@every
def test_complex_params_under_strict_promotion(case: Any):
    params = {"w": jnp.ones(2, jnp.complex64)}
    tx = case.make()
    if case.real_only:
        with pytest.raises((TypeError, ValueError), match="complex"):
            tx.update(params, tx.init(params), params)
        return
    types = jax.eval_shape(lambda p: step(tx, p, tx.init(p), p, case.extras), params)
    assert signature(types[0]) == signature(types[2]) == signature(params)


# Their states hold bases of eigenspaces, which a GPU's library finds by another algorithm for one
# matrix than for several: signs and, of equal eigenvalues, the order differ. The steps don't.
ANY_BASIS = {"galore", "kl_shampoo"} if jax.default_backend() != "cpu" else set()


@functools.lru_cache(maxsize=2)
def eager_step(case: Any) -> Any:
    """A step of a small tree, operation by operation: each shape compiles them all."""
    tx, params = case.make(), make_tree(0, shapes=SMALL)
    return step(tx, params, tx.init(params), make_tree(1, shapes=SMALL), case.extras)


@every
def test_jit_and_vmap_over_params_equal_an_eager_step(case: Any):
    # XLA contracts products and sums when it fuses: a few units in the last place, of the largest
    # entry where a root of a matrix mixes them.
    tx, trees = case.make(), [make_tree(seed, shapes=SMALL) for seed in (0, 5, 1, 6)]
    params, grads = (jax.tree.map(lambda *xs: np.stack(xs), *trees[i : i + 2]) for i in (0, 2))
    state = jax.vmap(tx.init)(params)
    fn = jax.jit(jax.vmap(lambda p, s, g: step(tx, p, s, g, case.extras)))
    together = fn(params, state, grads)
    first = jax.tree.map(lambda x: np.asarray(x)[0], together)
    compared = slice(None, None, 2) if case.name in ANY_BASIS else slice(None)
    expected = eager_step(case)[compared]
    assert_close(first[compared], expected, rtol=2e-6, atol=1e-7, of_largest=5e-7)


@every
def test_one_trace_for_five_steps_and_all_numbers(case: Any):
    assert run(case).traces == 1
    assert run(case, "mixed").traces == 1  # there every step has other numbers


@every
def test_unknown_extra_arguments_are_ignored(case: Any):
    tx, params = case.make(), make_tree(0)

    def program(**extras: Any) -> str:
        update = lambda g, p: tx.update(g, tx.init(p), p, **extras, **case.extras)  # noqa: E731
        return str(jax.make_jaxpr(update)(make_tree(1), params))

    assert program() == program(nonsense=3)


@every
def test_missing_required_extra_fails_by_name(case: Any):
    tx, params = case.make(), make_tree(0)
    for name in case.extras:
        given = {k: v for k, v in case.extras.items() if k != name}
        with pytest.raises(TypeError, match=f"needs the extra argument '{name}'"):
            tx.update(make_tree(1), tx.init(params), params, **given)


@every
@pytest.mark.parametrize("tree", [{}, (), [], {"a": None}], ids=repr)
def test_trees_without_leaves(case: Any, tree: Any):
    tx = case.make()
    params, _, _ = step(tx, tree, tx.init(tree), tree, case.extras)
    assert jax.tree.structure(params) == jax.tree.structure(tree)


@every
@pytest.mark.parametrize("shape", [(3,), (), (0,), (1, 1, 2)], ids=repr)
def test_a_tree_that_is_one_leaf(case: Any, shape: tuple[int, ...]):
    tx, leaf = case.make(), jax.ShapeDtypeStruct(shape, jnp.float32)
    new, _, _ = jax.eval_shape(lambda p: step(tx, p, tx.init(p), p, case.extras), leaf)
    assert (new.shape, new.dtype) == (leaf.shape, leaf.dtype)


@every
def test_inputs_are_not_modified(case: Any):
    params, grads = make_tree(0, shapes=SMALL), make_tree(1, shapes=SMALL)
    numpy_params, numpy_grads = jax.tree.map(np.array, (params, grads))
    tx = case.make()
    step(tx, numpy_params, tx.init(numpy_params), numpy_grads, case.extras)
    jax.tree.map(np.testing.assert_array_equal, (numpy_params, numpy_grads), (params, grads))


@every
def test_state_survives_pickle_and_flax_bytes(case: Any):
    serialization = pytest.importorskip("flax.serialization")
    state = run(case).steps[0][1]
    assert_identical(pickle.loads(pickle.dumps(state)), state)
    fresh = case.make().init(make_tree(0))
    restored = serialization.from_bytes(fresh, serialization.to_bytes(state))
    assert_identical(jax.tree.map(jnp.asarray, restored), state)


@every
def test_a_fresh_state_can_be_donated(case: Any):
    tx = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), case.make())
    params = make_tree(0)
    assert_buffers_of_their_own((tx, params, tx.init(params)))


@every
def test_state_sharding_follows_params_and_numbers_are_the_same(case: Any):
    if len(jax.devices()) < 2:
        pytest.skip("needs two devices")
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    params, grads = jax.device_put(
        (make_tree(0, shapes=SMALL), make_tree(1, shapes=SMALL)), sharding
    )
    tx = case.make()
    state = tx.init(params)
    run_step = jax.jit(lambda tx, p, s, g: step(tx, p, s, g, case.extras))
    stepped = run_step(tx, params, state, grads)
    assert_close(stepped, eager_step(case), rtol=2e-6, atol=1e-7)
    assert all(x.sharding.device_set == sharding.device_set for x in jax.tree.leaves(state))
    jax.eval_shape(tx.init, params)  # what a jitted init does to put the state there
    for tree in (state, stepped[1]):
        for slot in fnopt.slots(tree).values():
            for leaf in jax.tree.leaves(slot):
                assert leaf.shape != (4, 2) or leaf.sharding.is_equivalent_to(sharding, 2)


@every
@pytest.mark.parametrize("size", [1e-24, 1e20])
def test_gradients_of_any_magnitude(case: Any, size: float):
    """Squares of these are zero, or infinite, in float32; the step was compiled for others."""
    if case.name in NOT_OF_ANY_MAGNITUDE:
        pytest.skip(NOT_OF_ANY_MAGNITUDE[case.name])
    tx, params = case.make(), make_tree(0)
    state = fresh = tx.init(params)
    for i in range(3):
        grads = jax.tree.map(lambda g: g * jnp.asarray(size, g.dtype), make_tree(i + 1))
        params, state, updates = run(case).again(tx, params, state, grads)
    assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((params, updates)))
    # What is infinite stays so: every step after it would be zero, or no number.
    for x, start in zip(jax.tree.leaves(state), jax.tree.leaves(fresh), strict=True):
        assert not is_inexact(x) or bool((jnp.isfinite(x) | ~jnp.isfinite(start)).all())


@every
def test_an_infinite_gradient_is_seen_in_the_update(case: Any):
    if case.name in HIDES_INFINITY:
        pytest.skip(HIDES_INFINITY[case.name])
    tx, params = case.make(), make_tree(0)
    leaf, treedef = jax.tree.flatten(make_tree(1))
    for bad in (jnp.inf, -jnp.inf, jnp.nan):
        grads = treedef.unflatten([x.at[(0,) * x.ndim].set(bad) if x.size else x for x in leaf])
        _, _, updates = run(case).again(tx, params, tx.init(params), grads)
        for x in jax.tree.leaves(updates):
            assert not x.size or not bool(jnp.isfinite(x[(0,) * x.ndim]))


@every
def test_derivative_by_hyperparameters_is_finite(case: Any):
    params = {"kernel": jnp.ones((1, 2)), "bias": jnp.ones(2)}
    pairs = 10 if case.minimize else 1  # what doesn't descend runs away
    many_grads = jax.tree.map(lambda p: jnp.stack([p, 2 * p] * pairs), params)

    @jax.jit
    @jax.grad
    def hypergradient(tx: Any, grads: Any) -> Any:
        def body(carry: Any, grads: Any) -> Any:
            # The gradient of a bowl around the start, and another: without the other the params
            # sit at their minimum.
            grads = jax.tree.map(lambda g, p, start: g + p - start, grads, carry[0], params)
            new, state, _ = step(tx, *carry, grads, case.extras)
            return (new, state), None

        (end, _), _ = jax.lax.scan(body, (params, tx.init(params)), grads)
        return sum(jnp.sum(x**2) for x in jax.tree.leaves(end))

    for size in (0.0, 0.5):  # zero gradients first: there roots and quotients have no derivative
        grads = jax.tree.map(lambda g, size=size: size * g, many_grads)
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

    init.eval_shape(case.make(), make_tree(0))  # traces as a call does, and compiles nothing
    init.eval_shape(case.make(), make_tree(0))
    assert traces == 1


@every
def test_slot_names_are_known_before_the_first_step(case: Any):
    tx, params = case.make(), make_tree(0)
    abstract = jax.eval_shape(lambda: params)
    assert fnopt.slot_names(tx, abstract) == tuple(fnopt.slots(tx.init(params)))
    for slot in fnopt.slots(tx.init(params)).values():
        # A tuple holds the parts of one leaf (rows and columns of a matrix).
        parts = jax.tree.leaves(slot, is_leaf=lambda x: isinstance(x, tuple))
        assert len(parts) <= len(jax.tree.leaves(params))


@every
def test_hyperparams_are_scalars_by_name(case: Any):
    tx, params = case.make(), make_tree(0)
    for name, value in fnopt.hyperparams(tx, tx.init(params)).items():
        assert isinstance(name, str)
        assert value.shape == ()
        assert not value.weak_type


CURVATURE = jnp.asarray([1.0, 0.3, 0.1])
RATES = jnp.asarray([2e-3, 5e-3, 0.02, 0.05, 0.1, 0.3, 1.0])


def quadratic(x: jax.Array) -> jax.Array:
    return jnp.sum(CURVATURE * (x - 0.25) ** 2)


def rosenbrock(x: jax.Array) -> jax.Array:
    return (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2


@every
def test_reaches_the_optimum_of_a_quadratic_and_of_rosenbrock(case: Any):
    if case.minimize is None:
        pytest.skip("does not descend by itself")

    def train(rate: Any) -> Any:
        tx = case.minimize(rate)

        def loss(params: Any) -> Any:
            return quadratic(params["q"]) + rosenbrock(params["r"])

        def body(carry: Any, _: Any) -> Any:
            params, state, _ = step(tx, *carry, jax.grad(loss)(carry[0]), case.extras)
            return (params, state), None

        start = {"q": jnp.asarray([1.0, -0.5, 0.5]), "r": jnp.asarray([0.2, 0.6])}
        end = jax.lax.scan(body, (start, tx.init(start)), length=case.steps)[0][0]
        return quadratic(end["q"]), rosenbrock(end["r"])

    q, r = jax.jit(jax.vmap(train))(RATES)  # a sweep of rates, in one program
    assert float(jnp.nanmin(q)) < 1e-4
    assert float(jnp.nanmin(r)) < 1e-2


@every
def test_agrees_with_its_peer(case: Any):
    if case.peer is None:
        pytest.skip("no peer in optax")
    optax = pytest.importorskip("optax")
    ours = run(case).steps
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
