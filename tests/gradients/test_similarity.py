from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import gradient_similarity


def by_hand(grads):
    flat = [np.asarray(g, np.float64).reshape(7, -1) for g in jax.tree.leaves(grads)]
    flat = np.concatenate(flat, axis=1)
    return flat @ flat.T


OPTIONS = [
    {"method": "vmap"},
    {"method": "ghost", "chunk_size": 3},
    {"method": "chunked", "chunk_size": 4},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_against_the_naive_loop(dense, naive, options):
    losses, grads = naive(dense)
    found = jax.jit(gradient_similarity(dense.loss, **options))(*dense[1:])
    expected = by_hand(grads)
    norms = np.sqrt(np.diagonal(expected))
    np.testing.assert_allclose(found.inner, expected, atol=1e-5 * norms.max() ** 2)
    np.testing.assert_allclose(found.norm, norms, rtol=1e-5)
    np.testing.assert_allclose(found.cosine, expected / np.outer(norms, norms), atol=1e-5)
    np.testing.assert_allclose(found.loss, losses, rtol=1e-6)


@pytest.mark.parametrize("method", ["ghost", "vmap"])
def test_a_gradient_without_direction_and_one_that_is_broken(method):
    x = jnp.array([[1.0, 2.0], [0.0, 0.0], [jnp.nan, 1.0], [2.0, -1.0]])
    found = jax.jit(gradient_similarity(lambda w, x: w @ x, method=method))(jnp.ones(2), x)
    np.testing.assert_array_equal(found.cosine[1, [0, 1, 3]], [0, 0, 0])
    assert jnp.isnan(found.inner[2]).all()
    np.testing.assert_allclose(found.cosine[0, [0, 1, 3]], [1, 0, 0], atol=1e-6)


def test_argnums_aux_and_keys():
    def loss(a, b, x, *, key):
        x = x + jax.random.normal(key)
        return a * jnp.sum(x) + jnp.sum(b["w"] * x), x[0]

    args = jnp.float32(2.0), {"w": jnp.ones(2)}, jnp.ones((3, 2)), jax.random.key(0)
    run = jax.jit(gradient_similarity(loss, argnums=(0, 1), has_aux=True))
    found = run(*args[:3], key=args[3])
    x = np.asarray(found.aux, np.float64)  # both entries of an example are x[0]
    np.testing.assert_allclose(found.inner, np.outer(x, x) * 6, rtol=1e-5)


def test_complex_and_mixed_dtypes(x64):
    def loss(params, x):
        product = jnp.real(params["c"] * x) + jnp.imag(params["c"]) ** 2
        return product.astype(jnp.float64) + params["r"] * jnp.abs(x).astype(jnp.float64)

    params = {"c": jnp.asarray(1 + 2j, jnp.complex64), "r": jnp.asarray(1.0, jnp.float64)}
    x = np.asarray([1 + 1j, 2 - 1j], np.complex64)
    found = jax.jit(gradient_similarity(loss))(params, jnp.asarray(x))
    # The derivatives with respect to the real and the imaginary part of c, and to r.
    g = np.stack([x.real, -x.imag + 4, np.abs(x)], axis=1).astype(np.float64)
    assert found.inner.dtype == jnp.float64
    np.testing.assert_allclose(found.inner, g @ g.T, rtol=1e-6)


def test_the_influence_of_training_examples_is_summed_over_checkpoints():
    rng = np.random.default_rng(0)
    w, train, test = (rng.standard_normal((n, 3)).astype(np.float32) for n in (2, 4, 5))
    influence = gradient_similarity(lambda w, x: (w @ x) ** 2 / 2)
    found = jax.jit(jax.vmap(lambda w: influence(w, train, other=test).inner))(w).sum(0)
    grads = [[(x @ v)[:, None] * x for x in (train, test)] for v in w]
    np.testing.assert_allclose(found, sum(g @ h.T for g, h in grads), rtol=1e-4, atol=1e-4)
