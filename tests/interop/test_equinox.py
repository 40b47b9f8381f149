"""fnopt with Equinox modules as params."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.interop.problem import X, Y

eqx = pytest.importorskip("equinox")


class Net(eqx.Module):
    """A network with everything that a module may hold: functions, an integer, a flag."""

    layers: list
    calls: jax.Array
    activation: object
    flag: bool = eqx.field(static=True, default=True)

    def __init__(self):
        keys = jax.random.split(jax.random.key(0))
        self.layers = [eqx.nn.Linear(3, 8, key=keys[0]), eqx.nn.Linear(8, 1, key=keys[1])]
        self.activation = jax.nn.tanh
        self.calls = jnp.asarray(2**24 + 1, jnp.int32)

    def __call__(self, x):
        return self.layers[1](self.activation(self.layers[0](x)))


def mse(model):
    return jnp.mean((jax.vmap(model)(X) - Y) ** 2)


@pytest.mark.parametrize("apply", ["equinox", "fnopt"])
@pytest.mark.parametrize(
    "tx",
    [
        fnopt.adam(0.05),
        fnopt.freeze(fnopt.adam(0.05), "*/bias"),
        fnopt.partition(
            {"a": fnopt.adam(0.05), "b": fnopt.sgd(0.05)},
            fnopt.by_pattern({"layers/0/*": "a"}, default="b"),
        ),
        fnopt.accumulate(fnopt.adam(0.1), 2),
        fnopt.apply_if_finite(fnopt.adam(0.05)),
    ],
    ids=["adam", "freeze", "partition", "accumulate", "apply_if_finite"],
)
def test_filtered_loop(tx, apply):
    add = eqx.apply_updates if apply == "equinox" else fnopt.apply_updates
    model = Net()
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state):
        loss, grads = eqx.filter_value_and_grad(mse)(model)
        params, rest = eqx.partition(model, eqx.is_inexact_array)
        updates, state = tx.update(grads, state, params)
        return eqx.combine(add(params, updates), rest), state, loss

    losses = []
    for _ in range(60):
        model, state, loss = step(model, state)
        losses.append(float(loss))
    assert losses[-1] < 0.2 * losses[0]
    assert int(model.calls) == 2**24 + 1


def test_updates_can_be_added_to_the_whole_model():
    # as in Equinox' own examples: params only in `update`, the model itself in `apply_updates`
    tx, model = fnopt.sgd(0.1), Net()
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, _ = tx.update(eqx.filter_grad(mse)(model), tx.init(params), params)
    better = eqx.apply_updates(model, updates)
    assert float(mse(better)) < float(mse(model))
    assert better.activation is model.activation


def test_an_unfiltered_model_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"leaf 'calls' is int32\[\].*eqx.is_inexact_array"):
        fnopt.adam(0.1).init(eqx.filter(Net(), eqx.is_array))


def _is_fixed(model):
    return jax.tree.map(lambda leaf: not eqx.is_inexact_array(leaf), model)


def _labelled(model):
    return jax.tree.map(lambda leaf: "a" if eqx.is_inexact_array(leaf) else "b", model)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: fnopt.freeze(fnopt.adamw(0.05), _is_fixed(model)),
        lambda model: fnopt.masked(fnopt.adamw(0.05), jax.tree.map(eqx.is_inexact_array, model)),
        lambda model: fnopt.partition(
            {"a": fnopt.adamw(0.05), "b": fnopt.set_to_zero()}, _labelled(model)
        ),
        lambda model: fnopt.accumulate(fnopt.freeze(fnopt.adamw(0.1), _is_fixed(model)), 2),
        lambda model: fnopt.freeze(fnopt.accumulate(fnopt.adamw(0.1), 2), _is_fixed(model)),
        lambda model: fnopt.apply_if_finite(fnopt.freeze(fnopt.adamw(0.05), _is_fixed(model))),
        lambda model: fnopt.chain(
            fnopt.clip_by_global_norm(1.0), fnopt.freeze(fnopt.adamw(0.05), _is_fixed(model))
        ),
    ],
    ids=["freeze", "masked", "partition", "acc(freeze)", "freeze(acc)", "finite", "chain"],
)
def test_the_whole_model_as_params_with_a_filtered_gradient(make):
    model = Net()
    tx = make(model)
    state = tx.init(model)

    @eqx.filter_jit
    def step(model, state):
        updates, state = tx.update(eqx.filter_grad(mse)(model), state, model)
        return fnopt.apply_updates(model, updates), state

    first = float(mse(model))
    for _ in range(60):
        model, state = step(model, state)
    assert float(mse(model)) < 0.3 * first
    assert int(model.calls) == 2**24 + 1
    assert model.activation is jax.nn.tanh


def test_the_whole_model_steps_as_its_filtered_params_do():
    model = Net()
    params = eqx.filter(model, eqx.is_inexact_array)
    grads = eqx.filter_grad(mse)(model)
    tx, whole = fnopt.adamw(0.05), fnopt.freeze(fnopt.adamw(0.05), _is_fixed(model))
    expected = eqx.apply_updates(params, tx.update(grads, tx.init(params), params)[0])
    # ... also where the state is that of the filtered params, and only `update` gets the model
    for which, state in ((whole, whole.init(model)), (tx, tx.init(params))):
        updates, _ = which.update(grads, state, model)
        assert updates.activation is None
        new = fnopt.apply_updates(model, updates)
        jax.tree.map(np.testing.assert_array_equal, eqx.filter(new, eqx.is_inexact_array), expected)


def test_python_numbers_of_a_module_are_no_params():
    class Dropped(eqx.Module):
        linear: eqx.nn.Linear
        drop: eqx.nn.Dropout

    key = jax.random.key(0)
    model = Dropped(eqx.nn.Linear(3, 1, key=key), eqx.nn.Dropout(0.5))
    grads = eqx.filter_grad(lambda m: jnp.mean((jax.vmap(m.linear)(X) - Y) ** 2))(model)
    tx = fnopt.adam(0.1)
    updates, _ = tx.update(grads, tx.init(eqx.filter(model, eqx.is_inexact_array)), model)
    assert fnopt.apply_updates(model, updates).drop.p == 0.5


def test_functions_of_the_params_get_the_whole_model():
    model = Net()
    tx = fnopt.chain(fnopt.sgd(1.0), fnopt.scale_by_backtracking_linesearch(5))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    loss, grads = eqx.filter_value_and_grad(mse)(model)
    updates, _ = tx.update(grads, state, model, value=loss, grad=grads, value_fn=mse)
    assert float(mse(eqx.apply_updates(model, updates))) < float(loss)


def test_levenberg_marquardt_steps_a_whole_model_whose_rest_is_frozen():
    model = Net()
    for wrap, mask in (
        (fnopt.freeze, _is_fixed(model)),
        (fnopt.masked, jax.tree.map(eqx.is_inexact_array, model)),
    ):
        tx = wrap(fnopt.levenberg_marquardt(), mask)

        def residuals(model):
            return (jax.vmap(model)(X) - Y).ravel()

        updates, _ = tx.update(None, tx.init(model), model, residual_fn=residuals)
        assert float(mse(fnopt.apply_updates(model, updates))) < float(mse(model))


@pytest.mark.filterwarnings("error")
def test_solvers_name_the_leaf_of_an_unfiltered_model():
    message = r"leaf 'activation' is .*expected a floating array.*eqx.combine\(params, rest\)"
    with pytest.raises(TypeError, match=message):
        fnopt.minimize(mse, Net())
    with pytest.raises(TypeError, match=message):
        fnopt.least_squares(mse, Net())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "fn",
    [
        fnopt.tree.sum,
        fnopt.tree.norm,
        fnopt.tree.max,
        fnopt.tree.size,
        fnopt.tree.zeros_like,
        lambda tree: fnopt.tree.add(tree, tree),
        lambda tree: fnopt.tree.vdot(tree, tree),
        lambda tree: fnopt.tree.cast(tree, jnp.bfloat16),
    ],
)
def test_arithmetic_of_trees_names_what_is_no_array(fn):
    with pytest.raises(TypeError, match=r"tree\.\w+: leaf 'activation' is .*eqx.is_array\)"):
        fn(Net())


def test_integers_of_a_model_can_be_frozen_instead_of_filtered():
    params, rest = eqx.partition(Net(), eqx.is_array)
    tx = fnopt.freeze(fnopt.adam(0.05), "calls")
    grads = jax.grad(lambda p: mse(eqx.combine(p, rest)), allow_int=True)(params)
    updates, _ = tx.update(grads, tx.init(params), params)
    new = fnopt.apply_updates(params, updates)
    assert int(new.calls) == 2**24 + 1
    assert float(mse(eqx.combine(new, rest))) < float(mse(Net()))


def test_a_module_as_mask_is_a_tree_and_not_a_function():
    params = eqx.filter(Net(), eqx.is_inexact_array)
    spec = jax.tree.map(lambda _: False, params)
    spec = eqx.tree_at(lambda m: m.layers[1], spec, True)  # a prefix, as in Equinox' filter specs
    assert callable(spec)
    tx = fnopt.freeze(fnopt.sgd(0.1), spec)
    updates, _ = tx.update(params, tx.init(params), params)
    np.testing.assert_array_equal(updates.layers[1].weight, 0)
    np.testing.assert_allclose(updates.layers[0].bias, -0.1 * params.layers[0].bias, rtol=1e-6)


def test_a_state_can_be_saved_by_equinox(tmp_path):
    tx, params = fnopt.adam(0.1), eqx.filter(Net(), eqx.is_inexact_array)
    _, state = tx.update(params, tx.init(params), params)
    eqx.tree_serialise_leaves(tmp_path / "state.eqx", state)
    restored = eqx.tree_deserialise_leaves(tmp_path / "state.eqx", tx.init(params))
    jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_a_gradient_of_another_tree_for_a_line_search_is_named():
    model = Net()
    tx = fnopt.chain(fnopt.sgd(1.0), fnopt.scale_by_backtracking_linesearch(5))
    state = tx.init(eqx.filter(model, eqx.is_inexact_array))
    loss, grads = eqx.filter_value_and_grad(mse)(model)
    with pytest.raises(ValueError, match="gradients does not match the tree of params"):
        tx.update(grads, state, model, value=loss, grad={"w": 1.0}, value_fn=mse)
