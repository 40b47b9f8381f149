"""fnopt in flax's train states, linen and nnx."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.interop.problem import X, Y

linen = pytest.importorskip("flax.linen")
struct = pytest.importorskip("flax.struct")
nnx = pytest.importorskip("flax.nnx")
train_state = pytest.importorskip("flax.training.train_state")

OPTIMIZERS = {
    "adam": lambda: fnopt.adam(0.05),
    "chain": lambda: fnopt.chain(fnopt.clip_by_global_norm(1.0), fnopt.adam(0.05)),
    "freeze": lambda: fnopt.freeze(fnopt.adam(0.05), "*/bias"),
    "partition": lambda: fnopt.partition(
        {"slow": fnopt.sgd(0.05), "fast": fnopt.adam(0.05)},
        fnopt.by_pattern({"*/bias": "slow"}, default="fast"),
    ),
    "accumulate": lambda: fnopt.accumulate(fnopt.adam(0.1), 2),
    "apply_if_finite": lambda: fnopt.apply_if_finite(fnopt.adam(0.05)),
    "scheduled": lambda: fnopt.adam(fnopt.linear_schedule(0.1, 0.0, transition_steps=80)),
}
every = pytest.mark.parametrize("name", OPTIMIZERS)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 8, rngs=rngs)
        self.out = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(jax.nn.tanh(self.hidden(x)))


def mse(model):
    return ((model(X) - Y) ** 2).mean()


@every
def test_linen_train_state(name):
    model = linen.Sequential([linen.Dense(8), linen.tanh, linen.Dense(1)])
    params = model.init(jax.random.key(0), X)
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=params, tx=OPTIMIZERS[name]()
    )

    traces = []

    @jax.jit
    def step(state):
        traces.append(1)
        loss, grads = jax.value_and_grad(lambda p: ((state.apply_fn(p, X) - Y) ** 2).mean())(
            state.params
        )
        return state.apply_gradients(grads=grads), loss

    losses = []
    for _ in range(40):
        state, loss = step(state)
        losses.append(float(loss))
    assert losses[-1] < 0.2 * losses[0]
    step(state.replace(tx=OPTIMIZERS[name]()))  # static in a TrainState, and equal
    assert len(traces) == 1


@every
def test_nnx_optimizer(name):
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, OPTIMIZERS[name](), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        loss, grads = nnx.value_and_grad(mse)(model)
        optimizer.update(model, grads)
        return loss

    bias = np.asarray(model.hidden.bias[...])
    losses = [float(step(model, optimizer)) for _ in range(40)]
    assert losses[-1] < 0.2 * losses[0]
    assert np.array_equal(bias, model.hidden.bias[...]) == (name == "freeze")


def test_nnx_optimizer_forwards_extra_arguments():
    seen = []

    class needs_value(fnopt.Transformation):
        def update(self, updates, state, params=None, *, value, **extra_args):
            seen.append(value)
            return updates, state

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, fnopt.chain(needs_value(), fnopt.sgd(0.1)), wrt=nnx.Param)
    optimizer.update(model, nnx.grad(mse)(model), value=3.0)
    assert seen == [3.0]


READERS = {
    "params_ema": (
        lambda: fnopt.chain(fnopt.adam(0.1), fnopt.params_ema(0.9)),
        fnopt.averaged_params,
    ),
    "frozen": (
        lambda: fnopt.freeze(fnopt.chain(fnopt.adam(0.1), fnopt.params_ema(0.9)), "*/bias"),
        fnopt.averaged_params,
    ),
    "schedule_free": (
        lambda: fnopt.schedule_free(fnopt.sgd(0.1), 0.1),
        fnopt.schedule_free_eval_params,
    ),
    "master_copy": (lambda: fnopt.master_copy(fnopt.sgd(0.1)), fnopt.master_params),
    "accumulate": (
        lambda: fnopt.accumulate(fnopt.sgd(0.1), 2),
        lambda state, _: fnopt.has_updated(state),
    ),
    "loss_scale": (
        lambda: fnopt.dynamic_loss_scale(fnopt.sgd(0.1)),
        lambda state, _: fnopt.loss_scale(state),
    ),
}


@pytest.mark.parametrize("make", [nnx.Optimizer, fnopt.interop.nnx_optimizer])
@pytest.mark.parametrize("name", READERS)
def test_the_state_of_an_nnx_optimizer_is_read_like_a_plain_state(name, make):
    make_tx, read = READERS[name]
    dtype = jnp.bfloat16 if name == "master_copy" else jnp.float32
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0), param_dtype=dtype)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    tx, grads = make_tx(), jax.tree.map(jnp.ones_like, params)
    optimizer, state = make(model, tx, wrt=nnx.Param), tx.init(params)
    for _ in range(2):
        with jax.numpy_dtype_promotion("standard"):  # nnx adds updates of another dtype
            optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
        updates, state = tx.update(grads, state, params)
        params = fnopt.apply_updates(params, updates)
    got = read(optimizer.opt_state, nnx.state(model, nnx.Param))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(read(state, params)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    if name in {"params_ema", "schedule_free"}:
        nnx.update(model, got)
        np.testing.assert_array_equal(model.kernel[...], got["kernel"][...])


def test_plain_labels_fit_an_nnx_state():
    params = nnx.state(Net(nnx.Rngs(0)), nnx.Param)
    tx = fnopt.freeze(fnopt.adam(0.1), {"hidden": True, "out": False})
    mu = fnopt.slots(tx.init(params))["mu"]
    assert {p for p, _ in fnopt.errors.leaves_with_names(mu)[0]} == {"out/bias", "out/kernel"}
    labels = jax.tree.map(lambda p: p.ndim > 1, params)
    assert (
        fnopt.freeze(fnopt.adam(0.1), labels).mask
        == fnopt.freeze(fnopt.adam(0.1), nnx.to_pure_dict(labels)).mask
    )


RATES = [0.1, 0.05, 0.02, 0.01, 0.005]


def expected_after(rates, params, grad):
    state = fnopt.adam(0.0).init(params)
    for rate in rates:
        updates, state = fnopt.adam(rate).update(grad(params), state, params)
        params = fnopt.apply_updates(params, updates)
    return params


def test_a_new_rate_compiles_nothing_in_linen():
    class State(train_state.TrainState):
        tx: Any = struct.field(pytree_node=True)

    params, traces = {"w": jnp.arange(3.0)}, []
    state = State.create(apply_fn=None, params=params, tx=fnopt.adam(1.0))

    @jax.jit
    def step(state):
        traces.append(1)
        return state.apply_gradients(grads=state.params)

    for rate in RATES:
        state = step(state.replace(tx=fnopt.adam(rate)))
    assert len(traces) == 1
    expected = expected_after(RATES, params, lambda p: p)
    np.testing.assert_allclose(state.params["w"], expected["w"], rtol=1e-5)


def test_a_new_rate_compiles_nothing_in_nnx():
    model, traces = Net(nnx.Rngs(0)), []
    optimizer = fnopt.interop.nnx_optimizer(model, fnopt.adam(1.0), wrt=nnx.Param)
    start = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    graph = nnx.graphdef(model)

    @nnx.jit
    def step(model, optimizer):
        traces.append(1)
        optimizer.update(model, nnx.grad(mse)(model))

    for rate in RATES:
        optimizer.tx = fnopt.adam(rate)
        step(model, optimizer)
    step(model, optimizer)  # the same optimizer, which has come out of the step
    assert len(traces) == 1

    def grad(params):
        return jax.grad(lambda p: mse(nnx.merge(graph, p)))(params)

    expected = expected_after([*RATES, RATES[-1]], start, grad)
    found = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert optimizer.tx == jax.tree.map(lambda x: x, optimizer.tx)


def test_an_nnx_optimizer_takes_schedules_and_pairs_of_others():
    optax = pytest.importorskip("optax")
    for tx in (OPTIMIZERS["scheduled"](), optax.sgd(0.05), OPTIMIZERS["partition"]()):
        model = Net(nnx.Rngs(0))
        optimizer = fnopt.interop.nnx_optimizer(model, tx, wrt=nnx.Param)
        before = float(mse(model))
        for _ in range(20):
            optimizer.update(model, nnx.grad(mse)(model))
        assert mse(model) < 0.7 * before
    with pytest.raises(TypeError, match="nnx_optimizer: tx is"):
        fnopt.interop.nnx_optimizer(model, 0.1, wrt=nnx.Param)
