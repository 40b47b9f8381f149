"""fnopt in optax and optax in fnopt, each by training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
import fnopt.interop
from tests.interop.problem import make_params, train

optax = pytest.importorskip("optax")


@pytest.fixture(autouse=True)
def _standard_promotion():
    with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
        yield


class scale_by_value(fnopt.Transformation):
    """Needs an extra argument: steps in proportion to the loss."""

    def update(self, updates, state, params=None, *, value, **extra_args):
        return jax.tree.map(lambda g: g * value, updates), state


LOOPS = {
    "hand-written": lambda: fnopt.adam(0.05),
    "to_optax": lambda: fnopt.interop.to_optax(fnopt.adam(0.05)),
    "from_optax": lambda: fnopt.interop.from_optax(optax.adam(0.05)),
    "optax.chain of fnopt": lambda: optax.chain(fnopt.clip_by_global_norm(1.0), fnopt.adam(0.05)),
    "optax.chain, optax first": lambda: optax.chain(optax.clip(1.0), fnopt.adam(0.05)),
    "optax.chain, fnopt first": lambda: optax.chain(fnopt.scale_by_adam(), optax.scale(-0.05)),
    "optax.named_chain": lambda: optax.named_chain(
        ("a", fnopt.adam(0.05)), ("b", optax.identity())
    ),
    "fnopt.chain, optax first": lambda: fnopt.chain(optax.clip(1.0), fnopt.adam(0.05)),
    "fnopt.chain, fnopt first": lambda: fnopt.chain(fnopt.scale_by_adam(), optax.scale(-0.05)),
    "optax.inject_hyperparams": lambda: optax.inject_hyperparams(fnopt.adam)(learning_rate=0.05),
    "optax.masked": lambda: optax.chain(
        optax.masked(fnopt.adam(0.05), {"hidden": True, "out": False}),
        optax.masked(optax.adam(0.05), {"hidden": False, "out": True}),
    ),
    "optax.multi_transform": lambda: optax.multi_transform(
        {"a": fnopt.adam(0.05), "b": optax.adam(0.05)}, {"hidden": "a", "out": "b"}
    ),
    "optax.MultiSteps": lambda: optax.MultiSteps(fnopt.adam(0.1), 2).gradient_transformation(),
    "optax.apply_if_finite": lambda: optax.apply_if_finite(fnopt.adam(0.05), 3),
    "optax.conditionally_mask": lambda: optax.conditionally_mask(
        fnopt.adam(0.05), lambda step, **_: step >= 0
    ),
    "fnopt.masked": lambda: fnopt.masked(optax.adam(0.05), "*"),
    "fnopt.freeze": lambda: fnopt.freeze(optax.adam(0.05), "*/bias"),
    "fnopt.partition": lambda: fnopt.partition(
        {"a": optax.adam(0.05), "b": fnopt.adam(0.05)}, {"hidden": "a", "out": "b"}
    ),
    "fnopt.accumulate": lambda: fnopt.accumulate(optax.adam(0.1), 2),
    "fnopt.apply_if_finite": lambda: fnopt.apply_if_finite(optax.adam(0.05)),
}


@pytest.mark.parametrize("name", LOOPS)
def test_trains(name):
    train(LOOPS[name]())


def test_trains_with_the_other_apply_updates():
    train(fnopt.adam(0.05), apply=optax.apply_updates)


def value_of(value):
    return value


def polyak():
    return optax.polyak_sgd(max_learning_rate=0.2)


def scaled_adam():
    return fnopt.chain(scale_by_value(), fnopt.adam(0.05))


to_optax = fnopt.interop.to_optax

EXTRAS = {
    "optax's in fnopt.chain": lambda: fnopt.chain(fnopt.clip(10.0), polyak()),
    "optax's in fnopt.freeze": lambda: fnopt.freeze(polyak(), "out/bias"),
    "optax's in fnopt.accumulate": lambda: fnopt.accumulate(polyak(), 1),
    "optax's in fnopt.partition": lambda: fnopt.partition(
        {"a": polyak(), "b": fnopt.adam(0.05)}, {"hidden": "a", "out": "b"}
    ),
    "optax's plateau": lambda: fnopt.chain(fnopt.adam(0.05), optax.contrib.reduce_on_plateau()),
    "fnopt's in fnopt.chain": lambda: fnopt.chain(optax.clip(1.0), scaled_adam()),
    "fnopt's in optax.chain": lambda: optax.chain(optax.clip(1.0), to_optax(scaled_adam())),
    "fnopt's in optax.masked": lambda: optax.masked(to_optax(scaled_adam()), True),
    "fnopt's alone": lambda: to_optax(scaled_adam()),
}


@pytest.mark.parametrize("name", EXTRAS)
def test_trains_with_an_extra_argument(name):
    train(EXTRAS[name](), value=value_of)


@pytest.mark.parametrize("name", [name for name in EXTRAS if "fnopt's" in name])
def test_a_missing_extra_argument_fails_by_name(name):
    tx, params = EXTRAS[name](), make_params()
    with pytest.raises(TypeError, match="scale_by_value: update needs the extra argument 'value'"):
        tx.update(params, tx.init(params), params)


def test_optax_drops_extra_arguments_of_what_is_not_its_own_and_we_say_so():
    tx, params = optax.chain(scaled_adam()), make_params()
    with pytest.raises(
        TypeError, match=r"needs the extra argument 'value'.*interop.to_optax\(tx\)"
    ):
        tx.update(params, tx.init(params), params, value=1.0)


def test_a_foreign_transform_without_extra_arguments_gets_none():
    seen = {}

    def update(updates, state, params=None):
        seen["called"] = True
        return updates, state

    tx = fnopt.chain((lambda params: (), update), fnopt.sgd(0.1))
    tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.ones(2)}), value=1.0)
    assert seen["called"]


def test_to_optax_has_the_same_state():
    ours, theirs = fnopt.adam(0.05), fnopt.interop.to_optax(fnopt.adam(0.05))
    assert isinstance(theirs, optax.GradientTransformationExtraArgs)
    params = make_params()
    updates, state = theirs.update(params, theirs.init(params), params)
    expected, expected_state = ours.update(params, ours.init(params), params)
    jax.tree.map(np.testing.assert_array_equal, (updates, state), (expected, expected_state))


def test_inject_hyperparams_reads_and_changes_the_rate():
    tx, params = optax.inject_hyperparams(fnopt.adam)(learning_rate=0.5), make_params()
    _, state = train(tx)
    state.hyperparams["learning_rate"] = jnp.asarray(0.0)
    updates, _ = tx.update(params, state, params)
    assert all(not np.any(u) for u in jax.tree.leaves(updates))


def test_tree_map_params_finds_the_slots():
    tx, params = fnopt.adam(0.05), make_params()
    state = tx.init(params)
    names = fnopt.leaf_paths(params)
    mapped = optax.tree_utils.tree_map_params(tx, lambda slot, name: name, state, names)
    assert mapped[0].mu == names
    assert mapped[0].nu == names
    assert mapped[0].count == state[0].count


def test_tree_get_and_set_find_fields_by_name():
    state = fnopt.adam(0.05).init(make_params())
    assert optax.tree_utils.tree_get(state, "nu") is state[0].nu
    moved = optax.tree_utils.tree_set(state, mu=state[0].nu)
    assert moved[0].mu is state[0].nu


def test_fnopt_looks_into_the_states_of_optax():
    tx, params = fnopt.chain(optax.adam(0.1)), make_params()
    state = tx.init(params)
    assert set(fnopt.slots(state)) == {"mu", "nu"}
    assert "mu" in fnopt.slot_names(optax.adam(0.1), params)


@pytest.mark.parametrize("convert", ["to_optax", "from_optax"])
def test_what_is_no_optimizer_is_refused(convert):
    with pytest.raises(TypeError, match=rf"{convert}: tx is .*Did you forget to call it"):
        getattr(fnopt.interop, convert)(fnopt.adam)
