"""Residuals by example in `least_squares`: the same answers as of the whole batch, without rows."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.costs import cost
from fnopt.curves import covariance
from fnopt.residuals import cauchy, huber
from fnopt.solvers.problem._problem import flatten_problem, with_examples

N, M = 40, 25


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def decay(params, example, shift):
    """Two residuals in two leaves, in another order than that of the params."""
    value = params["scale"] * jnp.exp(-params["rate"] * example["t"]) + params["level"]
    slope = -params["rate"] * params["scale"] * jnp.exp(-params["rate"] * example["t"])
    return {"value": value - example["y"] + shift, "slope": slope - example["d"]}


def level(params, y, shift):
    return params["level"] + params["twice"] - y + shift


def decays():
    t = np.linspace(0.0, 3.0, N)
    y = 2 * np.exp(-0.7 * t) + 0.3 + 0.05 * draw(0, N)
    d = -1.4 * np.exp(-0.7 * t) + 0.05 * draw(1, N)
    y[3] += 4.0
    batch = {"t": t, "y": y, "d": d}, 0.9 + 0.02 * draw(2, M)
    params = {"scale": 1.0, "rate": 1.0, "level": 0.1, "twice": 0.0, "held": 3}
    return params, batch


def options(w):
    return {
        "loss": [huber(0.1), None],
        "weights": [{"value": w, "slope": 4.0}, None],
        "constraints": {
            "rate": fnopt.positive(),
            "twice": fnopt.tied(lambda p: 2 * p["level"]),
            "held": fnopt.fixed(),
        },
    }


def of_the_batch(params, batch, shift):
    one = jax.vmap(decay, (None, 0, None))(params, batch[0], shift)
    return [one, jax.vmap(level, (None, 0, None))(params, batch[1], shift)]


@pytest.mark.usefixtures("x64")
def test_the_solution_is_that_of_the_whole_batch():
    # Lists of functions with trees of residuals, weights, one of 0 where there is no datum, losses,
    # params that are fixed, tied and positive.
    params, batch = decays()
    w = np.ones(N)
    w[5], batch[0]["y"][5] = 0.0, np.nan
    shift = jnp.asarray(0.01)

    @jax.jit
    def both(batch, w):
        given = options(w)
        whole = fnopt.least_squares(of_the_batch, params, args=(batch, shift), **given)
        fns = [decay, level]
        ours = fnopt.least_squares(fns, params, args=(shift,), batch=batch, **given)
        return whole, ours, covariance(whole), covariance(ours)

    whole, ours, C, ours_C = both(batch, w)
    assert bool(ours.converged)
    near = functools.partial(np.testing.assert_allclose, rtol=1e-7, atol=1e-9)
    jax.tree.map(near, ours.params, whole.params)
    jax.tree.map(near, ours.residuals, whole.residuals)
    near(ours.cost, whole.cost)
    near(ours.jacobian, whole.jacobian, atol=1e-7)
    near(ours_C, C, atol=1e-8)
    assert int(ours.dof) == int(whole.dof) == 2 * N - 1 + M - 3
    assert int(ours.rank) == int(whole.rank) == 3


WIDE = {"w": (6, 24), "b": (24,), "o": (24, 2)}


def wide_params():
    return {k: draw(i, *shape) / 2 for i, (k, shape) in enumerate(WIDE.items())}


def wide(params, example):
    hidden = jnp.tanh(example["x"] @ params["w"] + params["b"])
    return {"z": hidden @ params["o"] - example["y"], "a": jnp.sin(jnp.sum(hidden))}


def with_a_phase(params, example):
    r = wide(params, example)
    return r | {"a": jax.lax.complex(r["a"], jnp.sum(params["w"][0]) * example["x"][1])}


def edge(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["o"][:, 0]


def wide_batch(n=30):
    return [{"x": draw(7, n, 6), "y": draw(8, n, 2)}, draw(9, 8, 6)]


def wide_options(w):
    covariance_of_edge = np.diag(np.full(8, 0.5)) + 0.1
    return {
        "weights and losses": {
            "weights": [{"z": w, "a": None}, None],
            "loss": [{"z": cauchy(0.7), "a": None}, huber(0.3)],
            "constraints": {"b": fnopt.tied(lambda p: p["o"][:, 1])},
        },
        "a covariance": {"sigma": [None, covariance_of_edge], "constraints": None},
    }


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["weights and losses", "a covariance"])
def test_the_gram_matrix_is_that_of_the_rows_of_the_model(name):
    params, batch = wide_params(), wide_batch()
    w = np.ones((30, 2))
    w[4], w[6, 1] = 0.0, 2.0
    solver = fnopt.levenberg_marquardt(chunk_size=20 if name == "a covariance" else None)

    @jax.jit
    def both(batch, w, unit):
        fns = fnopt.residuals.example_residuals([with_a_phase, edge], batch)
        given = wide_options(w)[name]
        setting = flatten_problem(fns, params, (batch,), **given)
        ours = with_examples(setting, fns, (batch,), solver)
        assert ours.problem.flat.gram is not None
        assert ours.problem.flat.derivative is None
        J = jax.jacrev(setting.problem.model.r)(setting.x)
        return ours.problem.model.gram(setting.x, unit), J @ J.T

    unit = 1e-3
    found, wanted = both(batch, w, jnp.asarray(unit))
    np.testing.assert_allclose(found, unit**2 * wanted, rtol=0, atol=1e-11 * unit**2)


@pytest.mark.usefixtures("x64")
def test_a_wide_network_is_fitted_without_rows():
    w = np.ones((30, 2))
    w[4], w[6, 1] = 0.0, 2.0
    batch = wide_batch()
    batch[0]["y"][4] = np.nan
    given = wide_options(w)["weights and losses"]
    solver = fnopt.levenberg_marquardt(geodesic=False)
    fit = fnopt.least_squares([wide, edge], wide_params(), batch=batch, solver=solver, **given)
    assert bool(fit.converged)
    assert float(fit.cost) < 1e-20
    assert fit.jacobian is None
    assert int(fit.rank) == 98 - 2
    assert int(fit.dof) == 0
    np.testing.assert_array_equal(fit.params["b"], fit.params["o"][:, 1])


def net(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["o"] - x[0]


def arguments():
    sizes = {"w": (64, 512), "b": (512,), "o": (512,)}
    params = {k: jax.ShapeDtypeStruct(shape, jnp.float32) for k, shape in sizes.items()}
    return params, jax.ShapeDtypeStruct((100, 64), jnp.float32)


def fitted(form, params, x):
    options = {"solver": fnopt.solvers.gauss_newton(), "max_steps": 10}
    if form == "example":
        return fnopt.least_squares(net, params, batch=x, **options)
    return fnopt.least_squares(jax.vmap(net, (None, 0)), params, args=(x,), **options)


def test_no_temporary_has_the_size_of_the_jacobian():
    params, x = arguments()
    rows = 4 * 100 * (64 * 512 + 1024)
    compiled = jax.jit(functools.partial(fitted, "example")).lower(params, x).compile()
    # Twenty vectors of the size of the params (on some versions of JAX 21; the Jacobian has 100),
    # the test of a claim with its own among them.
    assert compiled.memory_analysis().temp_size_in_bytes < rows / 4.5


def test_a_step_takes_a_part_of_the_operations():
    ours, whole = (
        cost(functools.partial(fitted, form), trip_counts=1)(*arguments()).matmul_flops
        for form in ("example", "whole")
    )
    assert ours < whole / 6


def test_a_batch_of_problems_and_the_derivative_of_a_solution():
    # In float32, under vmap and jit; the derivative by what the batch holds.
    t = jnp.linspace(0.0, 1.0, 8)

    def residual(params, example):
        return params["a"] * example["t"] + params["b"] - example["y"]

    def slope(y):
        start = {"a": jnp.zeros(()), "b": jnp.zeros(())}
        return fnopt.least_squares(residual, start, batch={"t": t, "y": y}).params["a"]

    ys = jnp.stack([2 * t + 1, jnp.cos(t)])
    found, gradient = jax.jit(jax.vmap(jax.value_and_grad(slope)))(ys)
    weights = (t - jnp.mean(t)) / jnp.sum((t - jnp.mean(t)) ** 2)
    np.testing.assert_allclose(found, ys @ weights, rtol=0, atol=1e-5)
    np.testing.assert_allclose(gradient, jnp.stack([weights, weights]), rtol=0, atol=1e-5)


def test_what_cannot_be_done_is_refused():
    params, batch = {"w": jnp.ones(3)}, jnp.ones((4, 3))

    def residual(params, x):
        return params["w"] @ x

    with pytest.raises(ValueError, match=r"batch and jac.*args=\(batch,\)"):
        fnopt.least_squares(residual, params, batch=batch, jac=lambda p, x: x)
    with pytest.raises(TypeError, match="list of 2 batches"):
        fnopt.least_squares([residual, residual], params, batch=batch)
    with pytest.raises(TypeError, match="list of 1 batch,"):
        fnopt.least_squares({"a": residual}, params, batch={"b": batch})
    with pytest.raises(ValueError, match=r"residual_fn: .*ONE example"):
        fnopt.least_squares(lambda p, x: jax.lax.pmean(p["w"] @ x, "i"), params, batch=batch)
    with pytest.raises(ValueError, match="the batch is empty"):
        fnopt.least_squares(residual, params, batch=batch[:0])
    with pytest.raises(ValueError, match=r"without an example axis.* share in args") as found:
        fnopt.least_squares(lambda p, e: p["w"] @ e[0], params, batch=(batch, jnp.float32(2.0)))
    assert "argnums" not in str(found.value)
    many = jnp.broadcast_to(jnp.zeros(3), (40_000, 3))
    solver = fnopt.levenberg_marquardt(linear_solver="cholesky")
    with pytest.raises(ValueError, match=r"40000 residuals.* 26 GB.*linear_solver='cg'"):
        jax.eval_shape(
            lambda p: fnopt.least_squares(residual_of_many, p, batch=many, solver=solver),
            {"w": jax.ShapeDtypeStruct((3, 20_000), jnp.float32)},
        )


def residual_of_many(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"]))
