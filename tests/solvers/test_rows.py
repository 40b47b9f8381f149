"""Residuals by example: steps by the Gram matrix of rows that are never formed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.costs import cost
from fnopt.jacobians import ravel
from fnopt.programs import jaxprs
from fnopt.solvers import gauss_newton

N = 30


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def start():
    return {"w": draw(0, 20, 32) / 5, "b": draw(1, 32), "o": draw(2, 32) / 5}


def net(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["o"]


def inside(params, example):
    # Two leaves: end to end they are in another order than example by example.
    value, slope = jax.value_and_grad(net, 1)(params, example["x"])
    return {"slope": slope[:2] - example["y"], "value": jnp.sin(value)}


def edge(params, x):
    return net(params, x) - 1.0


def data():
    return {"x": draw(3, N, 20), "y": draw(4, N, 2)}, draw(5, 7, 20)


METHODS = {
    "auto": fnopt.levenberg_marquardt(),
    "formed": fnopt.levenberg_marquardt(linear_solver="cholesky"),
    "straight": fnopt.levenberg_marquardt(geodesic=False),
}


@functools.cache
def program():
    """A step of each."""

    @jax.jit
    def run(params, states, pair):
        fns = [inside, edge]
        return {
            name: tx.update(None, states[name], params, residual_fn=fns, batch=pair)
            for name, tx in METHODS.items()
        }

    return run


@pytest.mark.usefixtures("x64")
def test_without_rows_the_steps_are_the_same():
    params, costs = start(), []
    states = {name: tx.init(params) for name, tx in METHODS.items()}
    for _ in range(3):
        found = program()(params, states, data())
        (one, state), (two, other) = found["auto"], found["formed"]
        near = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-8)
        jax.tree.map(near, one, two)
        near(state.cost, other.cost)
        params = fnopt.apply_updates(params, one)
        states = {name: after for name, (_, after) in found.items()}
        costs.append(float(state.cost))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.5 * costs[0]


@pytest.mark.usefixtures("x64")
def test_a_straight_step_is_that_of_the_formula():
    # Levenberg's: the same damping for all params.
    params, pair = start(), data()
    states = {name: tx.init(params) for name, tx in METHODS.items()}
    update, state = program()(params, states, pair)["straight"]
    x, unravel = ravel(params)

    def residuals(x):
        fns = zip((inside, edge), pair, strict=True)
        return ravel([jax.vmap(fn, (None, 0))(unravel(x), batch) for fn, batch in fns])[0]

    r, J = jax.jit(lambda x: (residuals(x), jax.jacrev(residuals)(x)))(x)
    scale = np.unique(ravel(state.scale)[0])
    assert scale.size == 1
    np.testing.assert_allclose(scale**2, np.mean(np.sum(J**2, 0)), rtol=1e-12)
    wanted = -J.T @ np.linalg.solve(J @ J.T + float(state.lam) * scale**2 * np.eye(r.size), r)
    np.testing.assert_allclose(ravel(update)[0], wanted, rtol=0, atol=1e-9)


def largest_and_flops(tx):
    """The size of the largest array of a step, and its operations."""

    def update(params, batch):
        return tx.update(None, tx.init(params), params, residual_fn=edge, batch=batch)

    shapes = {"w": (64, 128), "b": (128,), "o": (128,)}
    params = {k: jax.ShapeDtypeStruct(shape, jnp.float32) for k, shape in shapes.items()}
    batch = jax.ShapeDtypeStruct((200, 64), jnp.float32)
    program = jax.make_jaxpr(update)(params, batch)
    sizes = [v.aval.size for e in jaxprs.equations(program.jaxpr) for v in e.outvars]
    return max(sizes), cost(update)(params, batch).matmul_flops


def test_no_array_has_the_size_of_the_jacobian():
    whole = 200 * (64 * 128 + 256)
    auto, flops = largest_and_flops(fnopt.levenberg_marquardt())
    assert auto <= whole / 30
    formed, more = largest_and_flops(fnopt.levenberg_marquardt(linear_solver="cholesky"))
    assert formed >= 200 * 64 * 128
    assert flops < more / 4
    assert largest_and_flops(gauss_newton())[0] <= whole / 30


@pytest.mark.usefixtures("x64")
def test_few_params_are_solved_as_ever():
    # The smaller side says which algebra is the most accurate.
    params, x = {"a": jnp.ones(3), "b": jnp.zeros(4)}, jnp.asarray(draw(0, 20, 3))

    def one(p, x):
        return jnp.sin(x @ p["a"]) + p["b"] @ jnp.cos(jnp.arange(1.0, 5.0) * x[0])

    tx = fnopt.levenberg_marquardt(geodesic=False)

    @jax.jit
    def both(params):
        whole = lambda p: jax.vmap(one, (None, 0))(p, x)  # noqa: E731
        state = tx.init(params)
        found = tx.update(None, state, params, residual_fn=one, batch=x)
        return found, tx.update(None, state, params, residual_fn=whole)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), *both(params))


def test_refuses_what_is_no_batch():
    params = {"w": jnp.ones((20, 3)), "b": jnp.ones(3), "o": jnp.ones(3)}
    tx = fnopt.levenberg_marquardt()
    state = tx.init(params)
    with pytest.raises(TypeError, match="list of 2 batches"):
        tx.update(None, state, params, residual_fn=[edge, edge], batch=jnp.ones((4, 20)))
    with pytest.raises(ValueError, match="the batch is empty"):
        tx.update(None, state, params, residual_fn=edge, batch=jnp.ones((0, 20)))
    with pytest.raises(TypeError, match="list of such functions"):
        tx.update(None, state, params, residual_fn=3, batch=jnp.ones((4, 20)))
