"""What holds for every optimizer, beyond the contract of every transform."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt
from tests.optimizers.cases import ALL, cast, ours, tree

every = pytest.mark.parametrize("name", ALL)


def steps(tx, params, grads, n=3):
    """The params and state after n steps with the same gradients, and the last updates."""
    state = tx.init(params)
    updates = None
    for _ in range(n):
        updates, state = tx.update(grads, state, params, value=jnp.float32(0.5))
        params = fnopt.apply_updates(params, updates)
    return params, state, updates


def types(tree):
    return [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]


def finite(tree):
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree))


@every
def test_bfloat16_params_have_float32_slots(name):
    tx, params = ours(name), cast(tree(0), jnp.bfloat16)
    state = jax.eval_shape(tx.init, params)  # its types never change, says the contract
    for slot in fnopt.slots(state).values():
        assert {x.dtype for x in jax.tree.leaves(slot)} == {jnp.dtype(jnp.float32)}


@every
def test_float16_with_zero_gradients(name):
    """1e-8 is zero in float16: an epsilon applied there would give 0/0."""
    tx, params = ours(name), cast(tree(0), jnp.float16)
    zeros = jax.tree.map(jnp.zeros_like, params)
    assert finite(jax.jit(lambda p, g: steps(tx, p, g, n=2))(params, zeros))


@pytest.mark.parametrize(
    "make",
    [
        lambda: fnopt.adam(0.1, eps=0.0),
        lambda: fnopt.rmsprop(0.1, eps=0.0),
        lambda: fnopt.rmsprop(0.1, eps=0.0, eps_in_sqrt=False, centered=True),
        lambda: fnopt.adagrad(0.1, initial_accumulator_value=0.0, eps=0.0),
        lambda: fnopt.diffgrad(0.1, eps=0.0),
    ],
)
def test_no_epsilon_and_no_gradient_is_no_step(make):
    params = {"w": jnp.ones(2)}
    zeros = {"w": jnp.zeros(2)}
    moved, _, _ = steps(make(), params, zeros)
    assert moved["w"].tolist() == [1.0, 1.0]
    assert finite(jax.grad(lambda tx: steps(tx, params, zeros)[0]["w"].sum())(make()))


@pytest.mark.parametrize("make", [fnopt.adam, fnopt.rmsprop, fnopt.adagrad, fnopt.diffgrad])
def test_a_gradient_of_nan_is_not_hidden(make):
    params = {"w": jnp.ones(2)}
    moved, _, _ = steps(make(0.1), params, {"w": jnp.asarray([jnp.nan, 1.0])})
    assert jnp.isnan(moved["w"]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (fnopt.sgd(0.1, momentum=0.0), fnopt.sgd(jnp.float32(0.2), momentum=0.9)),
        (fnopt.sgd(fnopt.constant_schedule(0.1)), fnopt.sgd(fnopt.linear_schedule(1.0, 0.0, 5))),
        (fnopt.adamw(0.1, weight_decay=0.0), fnopt.adamw(0.1, weight_decay=0.1)),
        (
            fnopt.adamw(0.1, weight_decay=fnopt.linear_schedule(1.0, 0.0, 5)),
            fnopt.adamw(0.1, weight_decay=fnopt.constant_schedule(0.1), mask=True),
        ),
        (fnopt.rmsprop(0.1, initial_scale=1.0), fnopt.rmsprop(0.1, eps_in_sqrt=False)),
    ],
)
def test_numbers_never_change_the_structure_of_a_state(one, other):
    params = cast(tree(0), jnp.float32)
    states = one.init(params), other.init(params)
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
    assert types(states[0]) == types(states[1])


def test_no_momentum_no_slot():
    params = {"w": jnp.ones(2)}
    assert fnopt.slot_names(fnopt.sgd(0.1), params) == ()
    assert fnopt.slot_names(fnopt.sgd(0.1, momentum=0.0), params) == ("trace",)
    assert fnopt.slot_names(fnopt.rmsprop(0.1), params) == ("nu",)
    assert fnopt.slot_names(fnopt.rmsprop(0.1, momentum=0.9, centered=True), params) == (
        "mu",
        "nu",
        "trace",
    )


@pytest.mark.parametrize(
    ("make", "slot"),
    [
        (lambda d: fnopt.sgd(0.1, 0.9, accumulator_dtype=d), "trace"),
        (lambda d: fnopt.adam(0.1, mu_dtype=d), "mu"),
        (lambda d: fnopt.lion(0.1, mu_dtype=d), "mu"),
        (lambda d: fnopt.diffgrad(0.1, mu_dtype=d), "mu"),
    ],
)
def test_other_storage_dtypes_are_a_choice(make, slot):
    params = cast(tree(0), jnp.float32)
    tx = make(jnp.bfloat16)
    assert tx == make("bfloat16")
    _, state, _ = steps(tx, params, params)
    assert {x.dtype for x in jax.tree.leaves(fnopt.slots(state)[slot])} == {jnp.bfloat16.dtype}


def test_weight_decay_has_its_own_schedule():
    tx = fnopt.adamw(0.1, weight_decay=fnopt.linear_schedule(0.2, 0.0, 10))
    params = {"w": jnp.ones(2)}
    _, state, _ = steps(tx, params, params, n=5)
    assert float(fnopt.hyperparams(tx, state)["weight_decay"]) == pytest.approx(0.1)
    assert float(fnopt.hyperparams(tx, state)["learning_rate"]) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fnopt.sgd(0.1, momentum=-0.1), "trace: decay = -0.1, expected"),
        (lambda: fnopt.lion(0.1, b2=0.0), "scale_by_lion: b2 = 0.0, expected b2 > 0"),
        (lambda: fnopt.adagrad(0.1, eps=-1.0), "scale_by_rss: eps = -1.0, expected"),
        (lambda: fnopt.sgdr(0.1, decay_steps=0), "decay_steps = 0.0, expected"),
        (lambda: fnopt.accumulated_sgd(0.1, k=1.5), "k = 1.5, expected an integer"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_function_as_learning_rate_is_refused_with_advice():
    with pytest.raises(TypeError, match=r"Wrap a function as fnopt\.schedule\(fn\)"):
        fnopt.sgd(lambda count: 0.1)
