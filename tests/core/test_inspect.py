from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fnopt

PARAMS = {"w": jnp.ones(2)}


def test_slots_by_name():
    tx = fnopt.adam(0.1)
    assert fnopt.slots(tx.init(PARAMS)).keys() == {"mu", "nu"}
    assert fnopt.slot_names(tx, PARAMS) == ("mu", "nu")


def test_slots_of_a_single_scalar_param():
    state = fnopt.adam(0.1).init(jnp.ones(()))
    assert fnopt.slots(state).keys() == {"mu", "nu"}


def test_equal_names_are_told_apart_by_place():
    tx = fnopt.chain(("a", fnopt.scale_by_adam()), ("b", fnopt.scale_by_adam()))
    assert set(fnopt.slot_names(tx, PARAMS)) == {"a/mu", "a/nu", "b/mu", "b/nu"}
    tx = fnopt.chain(fnopt.scale_by_adam(), fnopt.scale_by_adam())
    assert set(fnopt.slot_names(tx, PARAMS)) == {"0/mu", "0/nu", "1/mu", "1/nu"}
    assert set(fnopt.named(tx, tx.init(PARAMS))) == {"scale_by_adam_0", "scale_by_adam_1"}


def test_slots_of_states_without_declarations():
    class OwnState(NamedTuple):
        count: Any
        velocity: Any

    state = OwnState(jnp.zeros((), jnp.int32), PARAMS)
    assert fnopt.slots((state,)) == {"velocity": PARAMS}


def test_slots_of_optax_states():
    optax = pytest.importorskip("optax")
    assert fnopt.slots(optax.adam(0.1).init(PARAMS)).keys() == {"mu", "nu"}


def test_no_slots():
    assert fnopt.slots(fnopt.sgd(0.1).init(PARAMS)) == {}
    assert fnopt.slots(jnp.ones(2)) == {}


def test_hyperparams_follow_the_schedule():
    tx = fnopt.chain(("opt", fnopt.adam(fnopt.linear_schedule(1.0, 0.0, 4))))
    state = tx.init(PARAMS)
    seen = []
    for _ in range(3):
        seen.append(float(fnopt.hyperparams(tx, state)["learning_rate"]))
        _, state = tx.update(PARAMS, state, PARAMS)
    assert seen == [1.0, 0.75, 0.5]
    assert float(fnopt.hyperparams(tx, state)["b1"]) == pytest.approx(0.9)


def test_named_reaches_every_depth():
    tx = fnopt.chain(("clip", fnopt.clip(1.0)), ("opt", fnopt.adam(0.1)))
    state = tx.init(PARAMS)
    found = fnopt.named(tx, state)
    assert found.keys() == {"clip", "opt", "scale_by_adam", "scale_by_learning_rate"}
    assert found["scale_by_adam"] is state["opt"][0]


@pytest.mark.parametrize(
    ("tx", "expected"),
    [
        (fnopt.adamw(0.1), 3),
        (fnopt.chain(fnopt.reduce_on_plateau(), fnopt.sgd(fnopt.constant_schedule(0.1))), 3),
        (fnopt.partition({"a": fnopt.chain(("opt", fnopt.adam(0.1)))}, "a"), 3),
        (fnopt.accumulate(fnopt.adamw(0.1), 2), 1),
        (fnopt.accumulate(fnopt.sgd(0.1), 2), 1),
        (fnopt.conditionally_mask(fnopt.adam(0.1), lambda step: step < 1), 3),
        (fnopt.strict(fnopt.masked(fnopt.adam(0.1), "*")), 3),
    ],
    ids=lambda x: type(x).__name__,
)
def test_step_count(tx, expected):
    @jax.jit
    def count(params):
        def body(state, _):
            extras = {name: jnp.float32(1.0) for name in tx.needs}
            return tx.update(params, state, params, **extras)[1], None

        return fnopt.step_count(tx, jax.lax.scan(body, tx.init(params), length=3)[0])

    assert int(count(PARAMS)) == expected


def test_step_count_of_other_libraries_and_of_none():
    optax = pytest.importorskip("optax")
    tx = optax.chain(optax.clip(1.0), optax.adam(0.1))
    with jax.numpy_dtype_promotion("standard"):
        _, state = tx.update(PARAMS, tx.init(PARAMS), PARAMS)
    assert int(fnopt.step_count(tx, state)) == 1
    for tx in (fnopt.clip(1.0), fnopt.sgd(0.1), fnopt.chain(fnopt.reduce_on_plateau())):
        with pytest.raises(ValueError, match=f"the state of {type(tx).__name__} has no step count"):
            fnopt.step_count(tx, tx.init(PARAMS))
