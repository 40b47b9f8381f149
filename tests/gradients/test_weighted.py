from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import value_and_weighted_grad, weighted_grad

WEIGHTS = jnp.array([1.0, -0.5, 0.0, 2.0, 0.25, 1.5, 3.0])


def summed(weights, grads):
    return jax.tree.map(lambda g: jnp.tensordot(weights.astype(g.dtype), g, 1), grads)


def test_equals_a_loop_on_every_model(problem, naive, assert_close):
    losses, grads = naive(problem)
    expected = losses, summed(WEIGHTS, grads)
    for chunk_size in (None, 3):
        grad = value_and_weighted_grad(problem.loss, chunk_size=chunk_size)
        assert_close(jax.jit(grad)(*problem[1:], WEIGHTS), expected)


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 7, 100])
def test_mean_divides_by_the_number_of_examples(dense, naive, assert_close, chunk_size):
    grad = weighted_grad(dense.loss, reduction="mean", chunk_size=chunk_size)
    assert_close(grad(*dense[1:], WEIGHTS), summed(WEIGHTS / 7, naive(dense)[1]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(dense, naive, in_dtype, assert_close, x64, dtype):
    cast = dense._replace(params=in_dtype(dense.params, dtype), batch=in_dtype(dense.batch, dtype))
    weights = jnp.asarray(WEIGHTS, jnp.float32)
    grads = weighted_grad(cast.loss, chunk_size=3)(*cast[1:], weights)
    assert_close(grads, summed(weights, naive(cast)[1]))


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_chunks_of_bfloat16_are_summed_in_float32(chunk_size):
    # In bfloat16 the sum stops at 256, where adding 1 changes nothing.
    grad = weighted_grad(lambda w, x: w * x, chunk_size=chunk_size)
    ones = jnp.ones(1024, jnp.bfloat16)
    assert float(grad(jnp.bfloat16(0.0), ones, jnp.ones(1024))) == 1024.0


@pytest.mark.parametrize("mask", [np.array([True, False, True]), np.array([1, 0, 1])])
def test_masks_are_weights(mask):
    grad = weighted_grad(lambda w, x: w * x)(jnp.float32(1.0), jnp.array([1.0, 2.0, 4.0]), mask)
    assert float(grad) == 5.0


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_derivative_in_the_weights(lstm_problem, x64, in_dtype, chunk_size):
    problem = lstm_problem._replace(
        params=in_dtype(lstm_problem.params, jnp.float64),
        batch=in_dtype(lstm_problem.batch, jnp.float64),
    )
    weights = WEIGHTS.astype(jnp.float64)

    @jax.jit
    def energy(weights):
        grads = weighted_grad(problem.loss, chunk_size=chunk_size)(*problem[1:], weights)
        return sum(jnp.sum(g**3) for g in jax.tree.leaves(grads))

    direction = jnp.cos(jnp.arange(7.0, dtype=jnp.float64))
    slope = jnp.vdot(jax.grad(energy)(weights), direction)
    step = 1e-6
    difference = (energy(weights + step * direction) - energy(weights - step * direction)) / (
        2 * step
    )
    np.testing.assert_allclose(slope, difference, rtol=1e-7)


def test_aux_argnums_and_key(assert_close):
    def loss(a, b, x, *, key):
        noise = jax.random.normal(key)
        return a * x * noise + b * x, {"noise": noise}

    key, x, w = jax.random.key(1), jnp.arange(5.0), jnp.linspace(0.0, 1.0, 5)
    options = {"argnums": (0, 1), "has_aux": True}
    a, b = jnp.float32(1.0), jnp.float32(2.0)
    whole = value_and_weighted_grad(loss, **options)(a, b, x, w, key=key)
    (losses, aux), (grad_a, grad_b) = whole
    np.testing.assert_allclose(losses, x * aux["noise"] + 2.0 * x, rtol=1e-6)
    np.testing.assert_allclose(grad_a, jnp.sum(w * x * aux["noise"]), rtol=1e-6)
    np.testing.assert_allclose(grad_b, jnp.sum(w * x), rtol=1e-6)
    assert_close(value_and_weighted_grad(loss, **options, chunk_size=2)(a, b, x, w, key=key), whole)
    grads, only_aux = weighted_grad(loss, **options)(a, b, x, w, key=key)
    assert_close((grads, only_aux), ((grad_a, grad_b), aux))


def test_inside_jit_and_vmap_over_weights(dense, assert_close):
    grad = weighted_grad(dense.loss, chunk_size=3)
    rows = jnp.stack([WEIGHTS, jnp.ones(7)])
    swept = jax.jit(jax.vmap(grad, (None, None, 0)))(*dense[1:], rows)
    assert_close(jax.tree.map(lambda g: g[1], swept), grad(*dense[1:], rows[1]))


def test_costs_a_plain_gradient():
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    def plain(params, batch):
        return jnp.sum(jax.vmap(loss, (None, 0))(params, batch))

    params, batch = [jnp.ones((64, 64))] * 3, jnp.ones((128, 64))

    def compiled(fn, *args):
        return jax.jit(fn).lower(*args).compile()

    expected = compiled(jax.grad(plain), params, batch)
    actual = compiled(weighted_grad(loss), params, batch, jnp.ones(128))
    assert actual.cost_analysis()["flops"] <= 1.01 * expected.cost_analysis()["flops"]
    temporary = [c.memory_analysis().temp_size_in_bytes for c in (actual, expected)]
    assert temporary[0] <= 1.1 * temporary[1]


def test_chunks_bound_the_memory():
    def loss(w, x):
        for _ in range(8):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    args = jnp.ones((64, 64)), jnp.ones((1024, 64)), jnp.ones(1024)

    def temporary(**options):
        compiled = jax.jit(weighted_grad(loss, **options)).lower(*args).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(chunk_size=32) < temporary() / 8
