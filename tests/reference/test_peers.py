"""The optimizers against PyTorch, and against the papers in float64 NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from tests.optimizers.cases import cast, ours, tree

STEPS = 20
# Twenty steps, each with a handful of roundings; float64 is computed at its own precision.
RTOL = {"float32": 2e-5, "float64": 1e-12}


def trajectory(tx, apply_updates, dtype, steps=STEPS):
    """The params after every step, with gradients that depend on the params."""
    params, noise = cast(tree(0), dtype), cast(tree(1, steps), dtype)

    def body(carry, noise):
        params, state = carry
        grads = jax.tree.map(lambda x, n: 0.3 * x + n, params, noise)
        updates, state = tx.update(grads, state, params)
        params = apply_updates(params, updates)
        return (params, state), params

    return jax.jit(lambda: jax.lax.scan(body, (params, tx.init(params)), noise)[1])()


def assert_close(actual, expected, dtype):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == dtype
        scale = np.abs(e).max() if e.size else 1.0
        np.testing.assert_allclose(a, e, rtol=RTOL[dtype], atol=RTOL[dtype] * scale)


# The papers, one leaf at a time: (params, gradient, step) -> params, in float64.


class Diffgrad:
    """Dubey et al. 2019, equations 1 to 8 (DFC version 0)."""

    def __init__(self, lr=0.1, b1=0.9, b2=0.999, eps=1e-8):
        self.lr, self.b1, self.b2, self.eps = lr, b1, b2, eps
        self.m = self.v = self.previous = 0.0

    def step(self, theta, g, t):
        self.m = self.b1 * self.m + (1 - self.b1) * g
        self.v = self.b2 * self.v + (1 - self.b2) * g**2
        m_hat, v_hat = self.m / (1 - self.b1**t), self.v / (1 - self.b2**t)
        friction = 1 / (1 + np.exp(-np.abs(self.previous - g)))
        self.previous = g
        return theta - self.lr * m_hat * friction / (np.sqrt(v_hat) + self.eps)


class Sgdr:
    """Loshchilov and Hutter 2017, equation 5 with doubling cycles, and heavy-ball momentum."""

    def __init__(self, lr=0.1, first=4, mult=2, momentum=0.9):
        self.lr, self.length, self.mult, self.momentum = lr, first, mult, momentum
        self.current, self.m = 0, 0.0

    def step(self, theta, g, t):
        rate = 0.5 * self.lr * (1 + np.cos(np.pi * self.current / self.length))
        self.current += 1
        if self.current == self.length:
            self.current, self.length = 0, self.length * self.mult
        self.m = self.momentum * self.m + g
        return theta - rate * self.m


class AccumulatedSgd:
    """Heavy-ball momentum along the mean of three gradients."""

    def __init__(self, lr=0.1, k=3, momentum=0.9):
        self.lr, self.k, self.momentum, self.m, self.total = lr, k, momentum, 0.0, 0.0

    def step(self, theta, g, t):
        self.total = self.total + g
        if t % self.k:
            return theta
        self.m = self.momentum * self.m + self.total / self.k
        self.total = 0.0
        return theta - self.lr * self.m


PAPERS = {"diffgrad": Diffgrad, "sgdr": Sgdr, "accumulated_sgd": AccumulatedSgd}


def paper(algorithm, steps=STEPS):
    """The trajectory of an algorithm from its paper."""

    def leaf(theta, noise):
        run, seen = algorithm(), []
        for t in range(steps):
            theta = run.step(theta, 0.3 * theta + noise[t], t + 1)
            seen.append(theta)
        return np.asarray(seen).reshape(steps, *np.shape(theta))

    return jax.tree.map(leaf, tree(0), tree(1, steps))


@pytest.mark.parametrize(("name", "algorithm"), PAPERS.items())
def test_agrees_with_the_paper(name, algorithm):
    actual = trajectory(ours(name), fnopt.apply_updates, "float32")
    assert_close(actual, paper(algorithm), "float32")


@pytest.mark.parametrize(("name", "algorithm"), PAPERS.items())
@pytest.mark.usefixtures("x64")
def test_agrees_with_the_paper_in_float64(name, algorithm):
    actual = trajectory(ours(name), fnopt.apply_updates, "float64")
    assert_close(actual, paper(algorithm), "float64")


def torch_trajectory(make, schedule=None):
    torch = pytest.importorskip("torch")
    leaves, treedef = jax.tree.flatten(tree(0))
    noise = [torch.tensor(n) for n in jax.tree.leaves(tree(1, STEPS))]
    params = [torch.nn.Parameter(torch.tensor(x)) for x in leaves]
    optimizer = make(torch.optim, params)
    scheduler = schedule and schedule(torch.optim.lr_scheduler, optimizer)
    seen = []
    for t in range(STEPS):
        for p, n in zip(params, noise, strict=True):
            p.grad = 0.3 * p.detach() + n[t]
        optimizer.step()
        if scheduler:
            scheduler.step()
        seen.append([p.detach().numpy().copy() for p in params])
    return treedef.unflatten([np.stack(column) for column in zip(*seen, strict=True)])


# Where PyTorch's formula is the same: its epsilon stands outside of the root, its Adagrad starts
# at 0, and its weight decay is multiplied by the learning rate too.
TORCH = {
    "sgd": (fnopt.sgd(0.1, 0.9), lambda o, p: o.SGD(p, lr=0.1, momentum=0.9)),
    "nesterov": (
        fnopt.sgd(0.1, 0.9, nesterov=True),
        lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    ),
    "adam": (fnopt.adam(0.1), lambda o, p: o.Adam(p, lr=0.1)),
    "adamw": (
        fnopt.adamw(0.1, weight_decay=0.1),
        lambda o, p: o.AdamW(p, lr=0.1, weight_decay=0.1),
    ),
    "rmsprop": (
        fnopt.rmsprop(0.1, 0.99, eps_in_sqrt=False, momentum=0.9),
        lambda o, p: o.RMSprop(p, lr=0.1, momentum=0.9),
    ),
    "rmsprop_centred": (
        fnopt.rmsprop(0.01, 0.99, eps=1e-2, eps_in_sqrt=False, centered=True),
        lambda o, p: o.RMSprop(p, lr=0.01, eps=1e-2, centered=True),
    ),
    "adagrad": (
        fnopt.adagrad(0.1, initial_accumulator_value=1.0, eps=0.0),
        lambda o, p: o.Adagrad(p, lr=0.1, initial_accumulator_value=1.0, eps=0.0),
    ),
}


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.usefixtures("x64")
def test_agrees_with_torch(name):
    tx, make = TORCH[name]
    assert_close(trajectory(tx, fnopt.apply_updates, "float64"), torch_trajectory(make), "float64")


@pytest.mark.usefixtures("x64")
def test_warm_restarts_agree_with_torch():
    def schedule(schedulers, optimizer):
        return schedulers.CosineAnnealingWarmRestarts(optimizer, T_0=4, T_mult=2)

    expected = torch_trajectory(lambda o, p: o.SGD(p, lr=0.1, momentum=0.9), schedule)
    assert_close(trajectory(ours("sgdr"), fnopt.apply_updates, "float64"), expected, "float64")


@pytest.mark.parametrize(
    "make",
    [
        lambda m: m.adam(0.1),
        lambda m: m.adamw(0.1, weight_decay=0.1),
        lambda m: m.nadam(0.1),
        lambda m: m.sgd(0.1, momentum=0.9, nesterov=True),
        lambda m: m.rmsprop(0.1, momentum=0.9),
        lambda m: m.adagrad(0.1),
    ],
    ids=["adam", "adamw", "nadam", "sgd", "rmsprop", "adagrad"],
)
@pytest.mark.usefixtures("x64")
def test_complex_params_agree_with_optax(make):
    optax = pytest.importorskip("optax")
    rng = np.random.default_rng(0)
    x, g = (jnp.asarray(rng.standard_normal((3, 2)) @ [1, 1j], jnp.complex128) for _ in "xg")

    def run(tx, apply_updates):
        params, state = {"w": x}, tx.init({"w": x})
        for i in range(3):
            updates, state = tx.update({"w": g * (1 + i)}, state, params)
            params = apply_updates(params, updates)
        return params["w"]

    with jax.numpy_dtype_promotion("standard"):
        actual = jax.jit(lambda: run(make(fnopt), fnopt.apply_updates))()
        expected = jax.jit(lambda: run(make(optax), optax.apply_updates))()
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
