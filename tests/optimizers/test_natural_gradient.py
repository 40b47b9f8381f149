"""Natural gradient steps against the dense Gauss-Newton and Fisher matrices, and at bad points."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.jacobians import ravel
from fnopt.programs import jaxprs
from tests.contract.trees import assert_buffers_of_their_own

N, MU, LAM = 5, 0.9, 1e-2


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def start(outputs=3):
    return {"w": draw(0, 4, 5) / 2, "b": draw(1, 5), "o": draw(2, 5, outputs)}


def net(params, example):
    return jnp.tanh(example["x"] @ params["w"] + params["b"]) @ params["o"]


def batch(*positions):
    y = np.random.default_rng(4).integers(0, 3, (N, *positions))
    return {"x": draw(3, N, *positions, 4), "y": y, "z": draw(5, N, *positions, 3)}


def softmax(logits, example):
    y = example["y"][..., None]
    picked = jnp.take_along_axis(logits, y, -1)[..., 0]
    return jnp.sum(jax.nn.logsumexp(logits, -1) - picked)


def squared(outputs, example):
    return jnp.sum((outputs - example["z"][: outputs.size]) ** 2) / 2


def poisson(outputs, example):
    return jnp.exp(outputs[0]) - example["y"].astype(outputs.dtype) * outputs[0]


def logistic(outputs, example):
    return jax.nn.softplus(outputs[0]) - (example["y"] > 0).astype(outputs.dtype) * outputs[0]


def bent_down(outputs, example):
    # Concave in one direction, which its Gauss-Newton matrix leaves out.
    return squared(outputs, example) - outputs[0] * outputs[1] * 2


# By name: the loss, what the params are multiplied by, the numbers of outputs and positions.
CASES = {
    "softmax": (softmax, 1.0, 3, ()),
    "softmax of positions": (softmax, 1.0, 3, (2,)),
    "softmax that is sure and wrong": (softmax, 60.0, 3, ()),
    "squared error": (squared, 1.0, 3, ()),
    "poisson": (poisson, 1.0, 1, ()),
    "logistic": (logistic, 1.0, 1, ()),
    "not convex": (bent_down, 1.0, 3, ()),
}


def dense(model, loss, params, batch):
    """The loss, its gradient and the Gauss-Newton matrix by the vector of the params."""
    x, unravel = ravel(params)

    def one(example):
        outputs = lambda x: model(unravel(x), example)  # noqa: E731
        f = outputs(x)
        J = jax.jacobian(outputs)(x).reshape(f.size, x.size)
        value, slope = jax.value_and_grad(loss)(f, example)
        H = jax.hessian(loss)(f, example).reshape(f.size, f.size)
        h, Q = jnp.linalg.eigh(H)
        return value, J.T @ slope.reshape(-1), J.T @ (Q * jnp.maximum(h, 0)) @ Q.T @ J

    return jax.tree.map(lambda x: jnp.mean(x, 0), jax.vmap(one)(batch))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_two_steps_of_spring_are_those_of_the_dense_matrix(name):
    # Without momentum it is the first of the two.
    loss, factor, outputs, positions = CASES[name]
    tx = fnopt.natural_gradient(net, loss, 0.5, LAM, MU, adaptive=False, halvings=0)

    @jax.jit
    def both(params, state, batch):
        updates, after = tx.update(None, state, params, batch=batch)
        value, gradient, G = dense(net, loss, params, batch)
        v = MU * ravel(state.momentum)[0]
        phi = v - jnp.linalg.solve(G + LAM * jnp.eye(v.size), gradient + G @ v)
        t = (state.count + 1).astype(v.dtype)
        wanted = 0.5 * phi / jnp.sqrt(1 - MU ** (2 * t))
        return updates, after, (wanted, phi, value)

    params, examples = start(outputs), batch(*positions)
    params["o"] = params["o"] * factor
    state = tx.init(params)
    for _ in range(2):
        updates, state, (wanted, phi, value) = both(params, state, examples)
        size = np.max(np.abs(wanted))
        np.testing.assert_allclose(ravel(updates)[0], wanted, rtol=0, atol=1e-8 * size)
        np.testing.assert_allclose(ravel(state.momentum)[0], phi, rtol=0, atol=1e-8 * size)
        np.testing.assert_allclose(state.value, value, rtol=1e-12)
        assert int(state.status) == Status.RUNNING
        params = fnopt.apply_updates(params, updates)


@pytest.mark.usefixtures("x64")
def test_the_dense_matrix_of_a_softmax_is_that_of_fisher():
    # The second moment of the gradients of all labels, each as often as the model says.
    @jax.jit
    def both(params, batch):
        x, unravel = ravel(params)

        def one(example):
            labelled = lambda x, y: softmax(net(unravel(x), example), {"y": y})  # noqa: E731
            rows = jax.vmap(jax.grad(labelled), (None, 0))(x, jnp.arange(3))
            return rows.T @ (jax.nn.softmax(net(params, example))[:, None] * rows)

        return jnp.mean(jax.vmap(one)(batch), 0), dense(net, softmax, params, batch)[2]

    np.testing.assert_allclose(*both(start(), batch()), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_of_half_the_squared_error_it_is_gauss_newton_descent():
    # With the search, and of two functions with batches of their own.
    def residual(params, example):
        return net(params, example) - example["z"]

    def second(params, x):
        return params["o"][:2, :2] * x

    fns = (net, second), (squared, lambda f, x: jnp.sum(f**2) / 2)
    ours = fnopt.natural_gradient(*fns, 1.0, LAM, MU, adaptive=False)
    theirs = fnopt.gauss_newton_descent(1.0, LAM, MU, adaptive=False)

    @jax.jit
    def both(params, states, pair):
        one, two = states
        u, one = ours.update(None, one, params, batch=pair)
        v, two = theirs.update(None, two, params, residual_fn=(residual, second), batch=pair)
        return (u, one), (v, two)

    params, pair = start(), (batch(), draw(7, 4))
    states = ours.init(params), theirs.init(params)
    for _ in range(3):
        one, two = both(params, states, pair)
        assert float(one[1].length) > 0
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-9), one, two)
        params, states = fnopt.apply_updates(params, one[0]), (one[1], two[1])


@pytest.mark.usefixtures("x64")
def test_conjugate_gradients_take_the_same_step_without_the_matrix():
    params, examples = start(), batch()
    options = {"momentum": MU, "adaptive": False, "halvings": 0}
    ways = [
        fnopt.natural_gradient(net, softmax, **how, **options)
        for how in ({}, {"solver": "cg"}, {"solver": "cg", "rank": 6})
    ]

    @jax.jit
    def both(params, state, batch):
        found = [tx.update(None, state, params, batch=batch) for tx in ways]
        return [(ravel(updates)[0], after) for updates, after in found]

    state = ways[0].init(params)
    for _ in range(2):
        (one, state), *others = both(params, state, examples)
        for two, _ in others:
            np.testing.assert_allclose(two, one, rtol=0, atol=1e-7 * np.max(np.abs(one)))


def test_too_many_outputs_are_refused_before_they_take_memory():
    params, _ = small()
    x, y = jnp.broadcast_to(jnp.zeros(4), (20_000, 4)), jnp.zeros(20_000, jnp.int32)

    def traced(solver):
        tx = fnopt.natural_gradient(net, softmax, solver=solver)
        shapes = jax.eval_shape(lambda: {"x": x, "y": y})
        return jax.make_jaxpr(lambda p, b: tx.update(None, tx.init(p), p, batch=b))(params, shapes)

    with pytest.raises(ValueError, match=r"60000 outputs.* 58 GB.*solver='cg'"):
        traced("cholesky")
    sizes = [v.aval.size for e in jaxprs.equations(traced("cg").jaxpr) for v in e.outvars]
    assert max(sizes) < 60_000 * 100


@functools.cache
def step():
    """One compiled step in float32, for all batches of a shape."""
    tx = fnopt.natural_gradient(net, softmax, momentum=0.5)

    def step(params, state, batch):
        updates, state = tx.update(None, state, params, batch=batch)
        return fnopt.apply_updates(params, updates), state

    return tx, jax.jit(step)


def small():
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start())
    examples = batch()
    y = jnp.asarray(examples["y"], jnp.int32)
    return params, {"x": jnp.asarray(examples["x"], jnp.float32), "y": y}


def test_fits_without_a_rate_and_keeps_its_types():
    tx, run = step()
    params, examples = small()
    state = tx.init(params)
    types = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state)
    values = []
    for _ in range(15):
        params, state = run(params, state, examples)
        values.append(float(state.value))
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == types
    assert values == sorted(values, reverse=True)
    assert values[-1] < 1e-3 * values[0]


@pytest.mark.parametrize(("x", "o"), [(np.inf, 1.0), (np.nan, 1.0), (1.0, np.inf)])
def test_a_step_that_is_not_finite_is_refused(x, o):
    tx, run = step()
    params, examples = small()
    params["o"] = params["o"].at[0, 0].mul(o)
    examples["x"] = examples["x"].at[1, 1].mul(x)
    after, state = run(params, tx.init(params), examples)
    assert all(map(np.array_equal, jax.tree.leaves(after), jax.tree.leaves(params)))
    assert int(state.status) == Status.NONFINITE_START
    assert float(state.damping) > tx.damping


def test_a_loss_in_other_units_with_a_damping_to_match_takes_the_same_steps():
    params, examples = small()

    @jax.jit
    def train(unit):
        tx = fnopt.natural_gradient(net, lambda f, e: unit * softmax(f, e), damping=1e-2 * unit)

        def body(carry, _):
            params, state = carry
            updates, state = tx.update(None, state, params, batch=examples)
            return (fnopt.apply_updates(params, updates), state), state.value / unit

        return jax.lax.scan(body, (params, tx.init(params)), length=8)[1]

    usual = train(1.0)
    for unit in (2.0**-66, 2.0**66):
        np.testing.assert_allclose(train(unit), usual, rtol=1e-3)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_fresh_states_of_steps_by_batch_can_be_donated(momentum):
    options = {"damping": jnp.float32(1e-2), "momentum": momentum}
    model = lambda p, e: p  # noqa: E731
    for tx in (
        fnopt.natural_gradient(model, model, **options),
        fnopt.gauss_newton_descent(**options),
        fnopt.stochastic_reconfiguration(model, **options),
        fnopt.scale_by_zoom_linesearch(3),
        fnopt.scale_by_backtracking_linesearch(3),
    ):
        params = {"w": jnp.ones(2)}
        assert_buffers_of_their_own((tx, params, tx.init(params)))


def test_of_a_huge_logit_steps_are_finite_and_lower_the_loss():
    # Every class but one has no probability in float32, so that the loss has no curvature.
    tx, run = step()
    params, examples = small()
    params["o"] = params["o"] * 1e4
    state, values = tx.init(params), []
    for _ in range(8):  # until the damping has grown
        params, state = run(params, state, examples)
        values.append(float(state.value))
    assert np.all(np.isfinite(values))
    assert values[-1] < values[0] / 2


def test_refuses_what_it_cannot_do():
    params, examples = small()

    def tried(model, loss, batch=examples, params=params, **options):
        tx = fnopt.natural_gradient(model, loss, **options)
        jax.eval_shape(lambda p: tx.update(None, tx.init(p), p, batch=batch), params)

    tx = fnopt.natural_gradient(net, softmax)
    with pytest.raises(TypeError, match="batch"):
        tx.update(None, tx.init(params), params)
    with pytest.raises(TypeError, match="model_fn"):
        fnopt.natural_gradient(3, softmax)
    with pytest.raises(ValueError, match="solver"):
        fnopt.natural_gradient(net, softmax, solver="qr")
    with pytest.raises(TypeError, match="two nonempty sequences of the same length"):
        fnopt.natural_gradient([net, net], [softmax])
    with pytest.raises(TypeError, match="sequence of 2 batches"):
        tried([net, net], [softmax, softmax])
    with pytest.raises(TypeError, match="real scalar"):
        tried(net, lambda f, example: f)
    with pytest.raises(ValueError, match="function of ONE example"):
        tried(lambda p, e: net(p, e) - jax.lax.pmean(net(p, e), "batch"), softmax)
    with pytest.raises(ValueError, match=r"Hessian of the loss .* is zero"):
        tried(net, lambda f, example: jnp.sum(jnp.abs(f)))
    with pytest.raises(TypeError, match=r"natural_gradient.*int32"):
        tried(net, softmax, params={"w": jnp.ones((4, 5), jnp.int32)})
    with pytest.raises(ValueError, match="batch is empty"):
        tried(net, softmax, batch=jax.tree.map(lambda x: x[:0], examples))
    with pytest.raises(ValueError, match="couples 600 outputs"):
        tried(lambda p, e: jnp.tile(net(p, e), 200), lambda f, e: jax.nn.logsumexp(f))
