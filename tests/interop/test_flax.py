"""fnopt in flax's train states, linen and nnx."""

import jax
import numpy as np
import pytest

import fnopt
from tests.interop.problem import X, Y

linen = pytest.importorskip("flax.linen")
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


def test_plain_labels_fit_an_nnx_state():
    params = nnx.state(Net(nnx.Rngs(0)), nnx.Param)
    tx = fnopt.freeze(fnopt.adam(0.1), {"hidden": True, "out": False})
    mu = fnopt.slots(tx.init(params))["mu"]
    assert {p for p, _ in fnopt.core.leaves_with_names(mu)[0]} == {"out/bias", "out/kernel"}
    labels = jax.tree.map(lambda p: p.ndim > 1, params)
    assert (
        fnopt.freeze(fnopt.adam(0.1), labels).mask
        == fnopt.freeze(fnopt.adam(0.1), nnx.to_pure_dict(labels)).mask
    )
