from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import gradient_statistics, noise_scale


def by_hand(grads):
    """Mean, total variance and squared mean by leaf, in float64 NumPy."""
    leaves = [np.asarray(g, np.float64).reshape(7, -1) for g in jax.tree.leaves(grads)]
    return [(g.mean(0), g.var(0, ddof=1).sum()) for g in leaves]


@pytest.mark.parametrize("options", [{"method": "ghost"}, {"chunk_size": 3}, {"method": "vmap"}])
def test_against_materialised_gradients(dense, naive, options):
    losses, grads = naive(dense)
    found = jax.jit(gradient_statistics(dense.loss, **options))(*dense[1:])
    expected = by_hand(grads)
    signal = [m @ m - v / 7 for m, v in expected]
    for actual, (mean, _) in zip(jax.tree.leaves(found.mean), expected, strict=True):
        np.testing.assert_allclose(np.ravel(actual), mean, atol=1e-6)
    variance = np.array([v for _, v in expected])
    np.testing.assert_allclose(jax.tree.leaves(found.variance), variance, rtol=1e-5)
    np.testing.assert_allclose(jax.tree.leaves(found.snr), signal / variance, rtol=1e-4)
    np.testing.assert_allclose(found.noise_scale, variance.sum() / sum(signal), rtol=1e-4)
    np.testing.assert_allclose(found.loss, losses, rtol=1e-6)
    norms = [
        np.linalg.norm(np.concatenate([np.ravel(g[i]) for g in jax.tree.leaves(grads)]))
        for i in range(7)
    ]
    np.testing.assert_allclose(found.norm, norms, rtol=1e-5)


def cosine_with_others(grads, counts):
    flat = [np.asarray(g, np.float64).reshape(7, -1) for g in jax.tree.leaves(grads)]
    flat = np.concatenate(flat, axis=1)
    others = flat[counts].sum(0) - flat * counts[:, None]
    return (flat * others).sum(1) / np.linalg.norm(flat, axis=1) / np.linalg.norm(others, axis=1)


@pytest.mark.parametrize("options", [{"method": "ghost"}, {"chunk_size": 3}])
def test_alignment_and_padding(dense, naive, options):
    grads = naive(dense)[1]
    run = jax.jit(gradient_statistics(dense.loss, alignment=True, **options))
    where = jnp.arange(7) != 2
    # What is in the padding does not matter.
    batch = jax.tree.map(lambda x: x.at[2].set(jnp.nan) if x.ndim > 1 else x, dense.batch)
    found = run(dense.params, batch, where=where)
    expected = cosine_with_others(grads, np.asarray(where))
    np.testing.assert_allclose(found.alignment[where], expected[where], atol=1e-5)
    assert int(found.count) == 6
    kept = [np.asarray(g, np.float64)[np.asarray(where)] for g in jax.tree.leaves(grads)]
    variance = [g.reshape(6, -1).var(0, ddof=1).sum() for g in kept]
    np.testing.assert_allclose(jax.tree.leaves(found.variance), variance, rtol=1e-5)
    for mean, g in zip(jax.tree.leaves(found.mean), kept, strict=True):
        np.testing.assert_allclose(mean, g.mean(0), atol=1e-6)


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("rule", [lambda g: 3.0 * g, lambda g: jnp.clip(g, -0.1, 0.1)])
def test_alignment_where_only_reverse_mode_exists(rule, chunk_size):
    @jax.custom_vjp
    def tripled(x):
        return 3.0 * x

    tripled.defvjp(lambda x: (tripled(x), None), lambda _, g: (rule(g),))

    def loss(w, x):
        return jnp.square(tripled(jnp.tanh(w @ x)) - 0.2)

    x = jax.random.normal(jax.random.key(0), (7, 4))
    run = jax.jit(gradient_statistics(loss, alignment=True, chunk_size=chunk_size))
    found = run(jnp.ones(4), x)
    grads = jax.vmap(jax.grad(loss), (None, 0))(jnp.ones(4), x)
    expected = cosine_with_others(grads, np.ones(7, bool))
    np.testing.assert_allclose(found.alignment, expected, atol=1e-5)


def test_alignment_without_a_direction():
    x = jnp.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    run = jax.jit(gradient_statistics(lambda w, x: w @ x, alignment=True))
    np.testing.assert_allclose(run(jnp.zeros(2), x).alignment, [-1, 0, -1])
    np.testing.assert_array_equal(run(jnp.zeros(2), 0 * x).alignment, [0, 0, 0])


@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_broken_examples_are_skipped_on_request_and_reported_always(method):
    x = jnp.array([[1.0, 0.0], [jnp.nan, 1.0], [1.0, 2.0], [1.0, 1.0]])
    run = jax.jit(gradient_statistics(lambda w, x: w @ x, method=method, skip_nonfinite=True))
    found = run(jnp.zeros(2), x)
    np.testing.assert_allclose(found.mean, [1.0, 1.0])
    np.testing.assert_allclose(found.variance, 1.0)
    assert int(found.count) == 3
    assert jnp.flatnonzero(~jnp.isfinite(found.norm)).tolist() == [1]
    assert jnp.isnan(gradient_statistics(lambda w, x: w @ x)(jnp.zeros(2), x).mean).any()


def test_params_that_the_loss_ignores_and_gradients_that_are_the_same():
    params = {"used": jnp.ones(2), "ignored": jnp.ones(3)}
    run = jax.jit(gradient_statistics(lambda p, x: p["used"] @ x))
    found = run(params, jnp.array([[1.0, 2.0], [3.0, 1.0]]))
    assert found.variance["ignored"] == found.snr["ignored"] == 0
    assert jnp.isfinite(found.noise_scale)
    same = run(params, jnp.full((3, 2), 0.1))
    assert same.variance["used"] == 0
    assert same.snr["used"] == jnp.inf
    assert same.noise_scale == 0


def test_too_few_that_count():
    run = jax.jit(gradient_statistics(lambda w, x: w @ x))
    found = run(jnp.zeros(2), jnp.ones((3, 2)), where=jnp.array([True, False, False]))
    assert int(found.count) == 1
    assert jnp.isnan(found.variance)
    nobody = run(jnp.zeros(2), jnp.ones((3, 2)), where=jnp.zeros(3, jnp.bool_))
    assert nobody.mean.tolist() == [0.0, 0.0]


def test_structure_argnums_and_aux():
    def loss(a, b, x):
        return jnp.sum(a["w"] * x) + b * x[0], x

    args = {"w": jnp.ones(2)}, jnp.float32(1.0), jnp.array([[1.0, 2.0], [3.0, 2.0]])
    found = gradient_statistics(loss, argnums=(0, 1), has_aux=True)(*args)
    np.testing.assert_array_equal(found.mean[0]["w"], [2.0, 2.0])
    np.testing.assert_allclose([found.variance[0]["w"], found.variance[1]], [2.0, 2.0])
    np.testing.assert_array_equal(found.aux, args[2])


def test_noise_scale_of_a_known_distribution():
    # Gradients with mean (3, 4) and variance 2 in each of 2 numbers: tr / |G|^2 = 4 / 25.
    x = jnp.array([3.0, 4.0]) + jnp.sqrt(2.0) * jax.random.normal(jax.random.key(0), (4096, 2))
    found = gradient_statistics(lambda w, x: w @ x)(jnp.zeros(2), x)
    np.testing.assert_allclose(found.noise_scale, 4 / 25, rtol=0.1)


def test_two_batches():
    x = jnp.array([3.0, 4.0]) + jnp.sqrt(2.0) * jax.random.normal(jax.random.key(0), (512, 16, 2))
    small = jnp.linalg.norm(x.mean(1), axis=-1)  # 512 batches of 16 each
    scale, grad_sq, trace = noise_scale(small, jnp.linalg.norm(x.mean((0, 1))), 16, 512 * 16)
    np.testing.assert_allclose([grad_sq, trace], [25.0, 4.0], rtol=0.2)
    np.testing.assert_allclose(scale, trace / grad_sq)


def test_errors():
    with pytest.raises(ValueError, match="the params contain no array"):
        gradient_statistics(lambda p, x: jnp.sum(x))({}, jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="the batch has 1 example, expected at least 2"):
        gradient_statistics(lambda w, x: w @ x)(jnp.ones(2), jnp.ones((1, 2)))
    with pytest.raises(ValueError, match="small_size is 4, big_size is 4, expected 0 < small"):
        noise_scale(1.0, 1.0, 4, 4)


@pytest.mark.parametrize("method", ["ghost", "vmap", "chunked"])
@pytest.mark.parametrize("size", [1e19, 1e25, 1e30])
def test_a_variance_beyond_float32_is_infinite_whatever_the_method(dense, size, method):
    def loss(params, example):
        return jnp.float32(size) * dense.loss(params, example)

    statistics = gradient_statistics(loss, method=method)
    found = statistics(dense.params, dense.batch)
    assert all(jnp.isfinite(m).all() for m in jax.tree.leaves(found.mean))
    np.testing.assert_array_equal(jax.tree.leaves(found.variance), np.inf)
    broken = jax.tree.map(lambda x: x.at[2].set(jnp.nan) if x.ndim > 1 else x, dense.batch)
    assert np.isnan(jax.tree.leaves(statistics(dense.params, broken).variance)).all()
