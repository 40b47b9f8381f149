import dataclasses
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import fnopt
from fnopt.core import EmptyState, Member, RealSlot, Slot, from_pair


class CountState(NamedTuple):
    count: jax.Array


class counted(fnopt.Transformation):
    """A user's own transform, with a state and an extra argument that it needs."""

    needs_params = True
    rate: Any = 0.5

    def init(self, params) -> CountState:
        return CountState(jnp.zeros((), jnp.int32))

    def update(self, updates, state, params=None, *, value, **extra_args):
        updates = fnopt.map_leaves(lambda g: -self.rate * value * g, updates)
        return updates, CountState(state.count + 1)


PARAMS = {"w": jnp.ones(2), "b": jnp.zeros(())}


def test_a_dozen_lines_get_the_whole_contract():
    tx = counted()
    init, update = tx
    assert (tx[0], tx[1]) == (init, update)
    updates, state = jax.jit(update)(PARAMS, init(PARAMS), PARAMS, value=1.0, unknown=2)
    assert updates["w"].tolist() == [-0.5, -0.5]
    assert int(state.count) == 1
    assert fnopt.from_config(fnopt.to_config(tx)) == tx
    stacked = jax.vmap(counted)(jnp.asarray([0.1, 0.2]))
    run = partial(lambda tx: tx.update(PARAMS, init(PARAMS), PARAMS, value=1.0)[0]["w"])
    assert jax.vmap(run)(stacked).shape == (2, 2)


def test_stateless_by_default():
    class flip(fnopt.Transformation):
        def update(self, updates, state, params=None, **extra_args):
            return jax.tree.map(jnp.negative, updates), state

    assert flip().init(PARAMS) == EmptyState()
    with pytest.raises(TypeError, match=r"^flip: the state is a CountState, expected EmptyState"):
        flip().update(PARAMS, CountState(jnp.zeros(())))


class SlotsState(NamedTuple):
    count: jax.Array
    anchor: Slot
    nu: RealSlot


class with_slots(fnopt.Transformation):
    State = SlotsState
    fill: ClassVar[Any] = {"anchor": "params", "nu": "start"}
    storage: ClassVar[Any] = {"nu": "square_dtype"}
    start: Any = 0.25
    square_dtype: Any = fnopt.static(default=jnp.bfloat16)


def test_the_state_class_declares_the_first_state():
    params = {"w": jnp.full(2, 1 + 2j)}
    state = with_slots().init(params)
    assert (state.count.dtype, int(state.count)) == (jnp.int32, 0)
    assert state.anchor["w"].tolist() == params["w"].tolist()
    assert state.anchor["w"] is not params["w"]  # a step may donate both
    assert (state.nu["w"].dtype, state.nu["w"].tolist()) == (jnp.bfloat16, [0.25, 0.25])


def test_a_field_that_is_no_slot_needs_an_init():
    class LossState(NamedTuple):
        loss: jax.Array

    class mean_loss(fnopt.Transformation):
        State = LossState

    with pytest.raises(
        NotImplementedError,
        match=r"'loss' of LossState isn't a Slot, expected a Slot, or a method init",
    ):
        mean_loss().init(PARAMS)


def test_update_must_be_defined():
    class nothing(fnopt.Transformation):
        pass

    with pytest.raises(NotImplementedError, match="nothing must define update"):
        nothing().update(PARAMS, EmptyState())


def test_missing_params_and_extras_fail_by_name():
    tx = fnopt.chain(fnopt.identity(), counted())
    state = tx.init(PARAMS)
    with pytest.raises(ValueError, match=r"^chain\[1\] > counted: update needs the params"):
        tx.update(PARAMS, state, value=1.0)
    with pytest.raises(TypeError, match=r"^chain\[1\] > counted: update needs the extra .*'value'"):
        tx.update(PARAMS, state, PARAMS)


def test_the_place_is_forgotten_after_an_error():
    tx = fnopt.chain(counted())
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^chain\[0\] > counted: update"):
            tx.update(PARAMS, tx.init(PARAMS), value=1.0)


@pytest.mark.parametrize(
    ("grads", "text"),
    [
        (
            {"w": jnp.ones(2)},
            r"gradients lack \['b'\]; expected equal structures. Compute the gradient",
        ),
        (jnp.ones(2), r"gradients are a single array; expected equal structures"),
        ({"w": jnp.ones(2), "c": 1.0}, r"lack \['b'\]; gradients have \['c'\], which params lack"),
        ({"w": jnp.ones((1, 2)), "b": jnp.ones(())}, r"leaf 'w': gradients have shape \(1, 2\)"),
        (jnp.ones((5, 3)), "gradient with respect to the params"),
        ({"w": jnp.ones(2), "b": None}, r"gradients lack \['b'\]"),
        ({"w": None, "b": None}, "gradients contain no arrays, because every leaf is None"),
        ((jnp.ones(2), jnp.ones(())), "Compute the gradient with respect to the params"),
        ((jnp.ones(()), PARAMS), r"value, grads = jax.value_and_grad"),
    ],
)
def test_gradients_of_something_else(grads, text):
    tx = fnopt.chain(fnopt.clip(1.0), fnopt.adam(0.1))
    with pytest.raises(ValueError, match=r"^chain: .*" + text):
        tx.update(grads, tx.init(PARAMS), PARAMS)


def test_gradients_of_something_else_are_found_without_params_too():
    tx = fnopt.chain(fnopt.clip(1.0), fnopt.adam(0.1))
    with pytest.raises(
        ValueError, match=r"^chain\[1\] > chain\[0\] > scale_by_adam: .*lack \['b'\]"
    ):
        tx.update({"w": jnp.ones(2)}, tx.init(PARAMS))


def test_integer_leaves():
    tx = fnopt.adam(0.1)
    params = {"w": jnp.ones(2), "steps": jnp.zeros((), jnp.int32)}
    text = r"scale_by_adam: params: leaf 'steps' is int32\[\], expected a floating array. Freeze"
    with pytest.raises(TypeError, match=text):
        tx.init(params)
    with pytest.raises(TypeError, match=r"clip: gradients: leaf 'steps' is int32"):
        fnopt.clip(1.0).update(params, EmptyState())


def test_leaves_that_are_no_arrays():
    with pytest.raises(TypeError, match=r"leaf 'act' is custom_jvp, expected.*eqx.filter"):
        fnopt.adam(0.1).init({"act": jax.nn.relu})


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ((EmptyState(),), "the state is a tuple of length 1, expected a tuple of length 2"),
        (EmptyState(), "the state is a EmptyState, expected a tuple of length 2"),
        ({"0": (), "1": ()}, r"the state is a dict with the keys \['0', '1'\], expected a tuple"),
        (fnopt.adam(0.1).init(PARAMS)[::-1], r"chain\[0\] > scale_by_adam: the state is a ScaleBy"),
        (None, "the state is a NoneType"),
    ],
    ids=range(5),
)
def test_state_of_another_optimizer(state, text):
    with pytest.raises(TypeError, match=text):
        fnopt.adam(0.1).update(PARAMS, state, PARAMS)


def test_state_of_other_params():
    tx = fnopt.adam(0.1)
    other = {"w": jnp.ones(3), "b": jnp.zeros(())}
    with pytest.raises(ValueError, match=r"leaf 'w': gradients have shape \(2,\), mu have shape"):
        tx.update(PARAMS, tx.init(other), PARAMS)


def test_chain_of_nothing():
    with pytest.raises(ValueError, match=r"chain: got no transform"):
        fnopt.chain()


@pytest.mark.parametrize(
    ("members", "error", "text"),
    [
        ((fnopt.scale_by_adam,), TypeError, "member 0 is .* Did you forget to call it, as in sca"),
        ((fnopt.identity(), 3), TypeError, "member 1 is 3, expected an optimizer"),
        ((("a", fnopt.identity()), fnopt.identity()), ValueError, r"members \[1\] have no name"),
        ((("a", fnopt.identity()),) * 2, ValueError, r"the names \['a'\] are used more than once"),
    ],
)
def test_bad_members(members, error, text):
    with pytest.raises(error, match=text):
        fnopt.chain(*members)


def test_named_chain_state_is_addressed_by_name():
    tx = fnopt.chain(("clip", fnopt.clip(1.0)), ("adam", fnopt.scale_by_adam()))
    state = tx.init(PARAMS)
    assert set(state) == {"clip", "adam"}
    assert int(tx.update(PARAMS, state, PARAMS)[1]["adam"].count) == 1
    with pytest.raises(TypeError, match=r"keys \['a'\], expected a dict with the keys \['adam',"):
        tx.update(PARAMS, {"a": 1}, PARAMS)


def test_pairs_of_functions_are_members_and_get_the_extras_they_take():
    seen = {}

    def update(updates, state, params=None, *, value):
        seen["value"] = value
        return updates, state

    tx = fnopt.chain((lambda params: (), update), (lambda params: (), lambda u, s, p=None: (u, s)))
    tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=2.0, other=3.0)
    assert seen == {"value": 2.0}
    assert isinstance(tx.transforms[0], from_pair)


def test_members_are_named():
    tx = fnopt.chain(fnopt.clip(1.0), fnopt.clip(2.0), fnopt.adam(0.1))
    assert [m.name for m in tx.members()] == ["clip_0", "clip_1", "chain"]
    assert all(isinstance(m, Member) for m in tx.members(tx.init(PARAMS)))


def test_a_stack_of_optimizers_needs_vmap():
    stack = jax.vmap(fnopt.adam)(jnp.asarray([0.1, 0.2]))
    state = fnopt.adam(0.1).init(PARAMS)
    with pytest.raises(ValueError, match=r"scale_by_adam: b1 has shape \(2,\), expected a scalar"):
        stack.update(PARAMS, state, PARAMS)
    updates, _ = jax.vmap(lambda tx: tx.update(PARAMS, state, PARAMS))(stack)
    assert updates["w"].shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("step", r"tx\.update\(grads, state, params\)"),
        ("apply_updates", r"fnopt\.apply_updates\(params, updates\)"),
        ("minimize", r"jax\.grad"),
        ("state_dict", r"tx\.init\(params\)"),
        ("lr", r"fnopt\.hyperparams"),
    ],
)
def test_methods_of_other_libraries_are_answered(name, hint):
    with pytest.raises(AttributeError, match=f"'Chain' object has no attribute '{name}'.*{hint}"):
        getattr(fnopt.adam(1e-3), name)
    assert not hasattr(fnopt.adam(1e-3), "no_such_name")


@pytest.mark.parametrize("make", [fnopt.adamw, fnopt.scale_by_learning_rate], ids=["chain", "one"])
def test_swapped_arguments_are_named(make):
    tx = make(0.1)
    state = tx.init(PARAMS)
    for given, what in (((PARAMS, PARAMS, state), "params"), ((state, PARAMS, PARAMS), "updates")):
        with pytest.raises(TypeError, match=f"got a state as its {what}, expected update"):
            tx.update(*given)


def test_params_that_are_named_tuples_of_any_name():
    class TrainState(NamedTuple):
        w: jax.Array

    tx, params = fnopt.adam(0.1), TrainState(jnp.ones(2))
    updates, _ = tx.update(params, tx.init(params), params)
    assert isinstance(updates, TrainState)


def test_empty_states_of_other_libraries_are_taken():
    optax = pytest.importorskip("optax")
    tx = fnopt.identity()
    assert tx.update(PARAMS, optax.EmptyState(), PARAMS)[0] == PARAMS


def test_assignment_says_what_to_do():
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"are immutable.*replace"):
        fnopt.adam(0.1).learning_rate = 0.2  # pyright: ignore[reportAttributeAccessIssue]


def test_an_error_of_the_update_is_raised_as_it_is():
    class failing(fnopt.Transformation):
        def init(self, params):
            assert params is None, "init is not asked again"
            return EmptyState()

        def update(self, updates, state, params=None, **extra_args):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        failing().update(PARAMS, EmptyState(), PARAMS)


@pytest.mark.parametrize("name", ["fill", "storage"])
def test_a_method_in_place_of_the_values_of_slots_is_refused(name):
    with pytest.raises(TypeError, match=rf"Own.{name} is a method, expected a class attribute"):
        type("Own", (fnopt.Transformation,), {name: lambda self, slot: 0.1})
