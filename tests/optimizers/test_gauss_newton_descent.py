"""Gauss-Newton steps of a batch against the formula with J formed, and at bad points."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.jacobians import ravel
from fnopt.programs import jaxprs


def start():
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((3, 8)), "o": rng.standard_normal(8)}


def first(params, example):
    return jnp.tanh(example[0] @ params["w"]) @ params["o"] - example[1]


def second(params, x):
    return {"a": jnp.sum(jnp.cos(x @ params["w"])), "b": params["o"][:2] * x[0]}


def batches():
    rng = np.random.default_rng(1)
    return (rng.standard_normal((5, 3)), rng.standard_normal(5)), rng.standard_normal((4, 3))


def scaled(params, pair):
    """All residuals by the vector of the params, each over the root of its number of examples."""
    parts = [jax.vmap(first, (None, 0))(params, pair[0]) / 5**0.5]
    parts += [ravel(jax.vmap(second, (None, 0))(params, pair[1]))[0] / 2]
    return jnp.concatenate(parts)


@pytest.mark.usefixtures("x64")
def test_two_steps_of_spring_are_those_of_the_formula():
    # Without momentum it is the first of the two.
    tx = fnopt.gauss_newton_descent(0.5, 1e-2, 0.9, adaptive=False, halvings=0)
    searched = fnopt.gauss_newton_descent(damping=1e-2)
    iterated = fnopt.gauss_newton_descent(damping=1e-2, solver="cg", rank=5)

    def run(params, pair):
        x, unravel = ravel(params)
        state, phi, found, wanted = tx.init(params), jnp.zeros_like(x), [], []
        for t in (1, 2):
            residuals = lambda x: scaled(unravel(x), pair)  # noqa: E731
            r, J = residuals(x), jax.jacobian(residuals)(x)
            H = J.T @ J + 1e-2 * jnp.eye(x.size)
            phi = 0.9 * phi - jnp.linalg.solve(H, J.T @ (r + 0.9 * J @ phi))
            wanted.append(0.5 * phi / jnp.sqrt(1 - 0.9 ** (2 * t)))
            updates, state = tx.update(
                None, state, unravel(x), residual_fn=(first, second), batch=pair
            )
            found.append(ravel(updates)[0])
            x = x + wanted[-1]
        _, other = searched.update(
            None, searched.init(params), params, residual_fn=(first, second), batch=pair
        )
        end = fnopt.apply_updates(params, _)
        same, _ = iterated.update(
            None, iterated.init(params), params, residual_fn=(first, second), batch=pair
        )
        steps = [ravel(fnopt.apply_updates(params, same))[0], ravel(end)[0]]
        values = [jnp.sum(scaled(p, pair) ** 2) / 2 for p in (params, end)]
        return found, wanted, state, other, values, steps

    found, wanted, state, other, values, steps = jax.jit(run)(start(), batches())
    np.testing.assert_allclose(*steps, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)
    assert int(state.count) == 2
    assert int(state.status) == Status.RUNNING
    assert other.momentum is None
    assert values[1] < values[0]
    np.testing.assert_allclose(other.value, values[0], rtol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_more_residuals_than_params_are_solved_among_the_params(chunk_size):
    # The two matrices give one step.
    rng = np.random.default_rng(2)
    pair = ((rng.standard_normal((40, 3)), rng.standard_normal(40)), rng.standard_normal((12, 3)))
    params = start()
    momentum = jax.tree.map(lambda p: jnp.asarray(0.1 * p), params)

    def step(method):
        tx = fnopt.gauss_newton_descent(
            damping=1e-2, momentum=0.9, halvings=2, method=method, chunk_size=chunk_size
        )
        state = tx.init(params)._replace(momentum=momentum)
        update = lambda state, pair: tx.update(  # noqa: E731
            None, state, params, residual_fn=(first, second), batch=pair
        )
        return jax.jit(update)(state, pair), str(jax.make_jaxpr(update)(state, pair))

    (found, state), program = step("auto")
    (wanted, other), wide = step("formed")
    assert "f64[76,76]" in wide  # 40 residuals and 12 times 3, of 32 params
    assert "f64[76,76]" not in program
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10), found, wanted)
    np.testing.assert_allclose(state.length, other.length)
    np.testing.assert_allclose(state.damping, other.damping)


@pytest.fixture(scope="module")
def step():
    """One compiled step for all batches of a shape."""
    tx = fnopt.gauss_newton_descent(momentum=0.5)

    def step(params, state, batch):
        updates, state = tx.update(None, state, params, residual_fn=first, batch=batch)
        return fnopt.apply_updates(params, updates), state

    return tx, jax.jit(step)


def small():
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), start())
    x, y = batches()[0]
    return params, (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))


def test_fits_and_keeps_its_types(step):
    tx, step = step
    params, batch = small()
    state = tx.init(params)
    types = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state)
    for _ in range(15):
        params, state = step(params, state, batch)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == types
    assert float(state.value) < 1e-8


@pytest.mark.parametrize(
    ("x", "y", "status"),
    [
        (1.0, np.nan, Status.NONFINITE_START),
        (np.inf, 1.0, Status.NONFINITE_START),
        (1.0, 1e30, Status.NONFINITE_START),  # its square overflows
    ],
)
def test_a_step_that_is_not_finite_is_refused(step, x, y, status):
    tx, step = step
    params, batch = small()
    batch = batch[0].at[1, 1].mul(x), batch[1].at[2].set(y)
    after, state = step(params, tx.init(params), batch)
    assert all(map(np.array_equal, jax.tree.leaves(after), jax.tree.leaves(params)))
    assert int(state.status) == status
    assert float(state.damping) > tx.damping
    assert all(not np.any(m) for m in jax.tree.leaves(state.momentum))


def test_a_minimum_and_a_singular_matrix_are_no_reason_for_nan(step):
    tx, step = step
    params, (x, _) = small()
    # All examples are one: a Gram matrix of rank one; then nothing depends on any param.
    same = jnp.broadcast_to(x[:1], x.shape), jnp.ones(5)
    after, state = step(params, tx.init(params), same)
    assert float(state.length) > 0
    assert bool(jnp.all(jnp.isfinite(ravel(after)[0])))
    zeros = jax.tree.map(jnp.zeros_like, params)
    after, state = step(zeros, tx.init(params), (x, jnp.zeros(5)))
    assert not np.any(ravel(after)[0])
    assert int(state.status) == Status.CONVERGED_COST


def test_needs_residuals():
    params, batch = small()
    tx = fnopt.gauss_newton_descent()
    with pytest.raises(TypeError, match="residual_fn"):
        tx.update(None, tx.init(params), params, batch=batch)
    with pytest.raises(ValueError, match="damping"):
        fnopt.gauss_newton_descent(damping=0.0)


def test_too_many_residuals_are_refused_before_they_take_memory():
    params, _ = small()
    x, y = jnp.broadcast_to(jnp.zeros(3), (40_000, 3)), jnp.zeros(40_000)

    def traced(**options):
        tx = fnopt.gauss_newton_descent(**options)
        step = lambda p: tx.update(None, tx.init(p), p, residual_fn=first, batch=(x, y))  # noqa: E731
        return jax.make_jaxpr(step)(params)

    with pytest.raises(ValueError, match=r"40000 residuals.* 26 GB.*solver='cg'"):
        traced(method="ghost")
    sizes = [v.aval.size for e in jaxprs.equations(traced(solver="cg").jaxpr) for v in e.outvars]
    assert max(sizes) < 40_000 * 100
    with pytest.raises(ValueError, match="rank"):
        fnopt.gauss_newton_descent(rank=-1)
