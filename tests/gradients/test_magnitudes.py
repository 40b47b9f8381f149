"""Gradients whose squares no float32 holds, and spreads that are small beside the mean."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import (
    clipped_grad,
    gradient_similarity,
    gradient_statistics,
    hardest_examples,
    per_example_norms,
)

METHODS = ["vmap", "ghost"]
FACTORS = [(1e20, 1.0), (1e-24, 1.0), (1e22, 1e-10), (1e-15, 1e-15), (1e10, 1e20)]


def problem(magnitude, positions=1, spread=1e3):
    """A matrix that is used at some positions, with gradients of all magnitudes at once."""
    rng = np.random.default_rng(0)
    scale = np.asarray([1, 1 / spread, spread, 1])
    x = rng.normal(size=(4, positions, 12)) * scale[:, None, None]
    out, inner = magnitude

    def loss(w, x):
        hidden = x @ w["matrix"] * jnp.float32(inner)
        return jnp.sum(hidden * jnp.linspace(-1.0, 2.0, hidden.size).reshape(hidden.shape))

    weights = np.linspace(-1, 2, positions * 10).reshape(positions, 10)
    grads = np.einsum("nrd,rk->ndk", x, weights).reshape(4, -1) * (out * inner)
    return loss, {"matrix": np.zeros((12, 10), np.float32)}, (x * out).astype(np.float32), grads


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("magnitude", FACTORS, ids=str)
def test_norms_cosines_and_clipping(method, magnitude):
    loss, params, x, grads = problem(magnitude, positions=1 if magnitude[1] == 1 else 2)
    norms = np.linalg.norm(grads, axis=1)
    limit = float(np.median(norms))

    @jax.jit
    def run(params, x):
        found = per_example_norms(loss, method=method)(params, x)
        cosine = gradient_similarity(loss, method=method)(params, x).cosine
        return found, cosine, *clipped_grad(loss, limit, method=method)(params, x)

    found, cosine, total, info = run(params, x)
    np.testing.assert_allclose(found, norms, rtol=2e-6)
    unit = grads / norms[:, None]
    np.testing.assert_allclose(cosine, unit @ unit.T, atol=2e-6)
    expected = (unit * np.minimum(norms, limit)[:, None]).sum(0) / limit
    np.testing.assert_allclose(np.ravel(total["matrix"]) / limit, expected, atol=5e-6)
    np.testing.assert_allclose(info.norm, norms, rtol=2e-6)


@pytest.mark.parametrize("method", METHODS)
def test_no_finite_gradient_passes_unclipped(method):
    # The reciprocals of norms beyond 2^126 are subnormal, and zero to XLA.
    sizes = np.float32([8e37, 9e37, 1.2e38, 2.3e38])
    x = jnp.asarray(np.stack([sizes, -sizes, np.ones(4, np.float32)], axis=1))
    params = {"a": jnp.zeros(2), "b": jnp.zeros(1)}

    def loss(p, x):
        return jnp.dot(p["a"], x[:2]) + jnp.dot(p["b"], x[2:])

    norms = per_example_norms(loss, method=method)(params, x)
    np.testing.assert_allclose(norms, np.sqrt(2) * sizes.astype(np.float64), rtol=1e-6)
    total, info = clipped_grad(loss, 10.0, method=method)(params, x)
    np.testing.assert_allclose(info.norm, norms)
    expected = 4 * 10 * np.float64([1, -1]) / np.sqrt(2)
    np.testing.assert_allclose(total["a"], expected, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_agreement_with_the_others(method):
    loss, params, x, grads = problem((1e25, 1.0), spread=2)
    found = jax.jit(hardest_examples(loss, 4, by="disagreement", method=method))(params, x)
    others = grads.sum(0) - grads
    cosine = (grads * others).sum(1) / np.linalg.norm(grads, axis=1)
    cosine /= np.linalg.norm(others, axis=1)
    np.testing.assert_allclose(-found.score, cosine[found.index], atol=1e-5)


def test_parts_are_clipped_by_their_own_norms():
    def loss(w, x):
        return w["a"] @ x * 1e10 + w["b"] @ x * 1e-30

    params, x = {"a": jnp.zeros(2), "b": jnp.zeros(2)}, jnp.asarray([[3e15, 4e15]])
    total, info = clipped_grad(loss, {"a": 1.0, "b": 1e-17})(params, x)
    np.testing.assert_allclose(total["a"], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(total["b"] * 1e17, [0.3 / 0.5, 0.4 / 0.5], rtol=1e-5)
    np.testing.assert_allclose([info.parts["a"][0], info.parts["b"][0]], [5e25, 5e-15], rtol=1e-6)


@pytest.mark.parametrize("options", [{"method": "vmap"}, {"chunk_size": 3}, {"method": "ghost"}])
@pytest.mark.parametrize("positions", [1, 2])
def test_a_spread_that_is_small_beside_the_mean(options, positions):
    rng = np.random.default_rng(1)
    x = (1000 + 0.01 * rng.normal(size=(8, positions, 30))).astype(np.float32)
    where = np.asarray([True] * 6 + [False, True])

    def loss(w, x):
        return jnp.sum(x @ w["matrix"]) + jnp.sum(x[0] * w["vector"])

    params = {"matrix": jnp.zeros((30, 20)), "vector": jnp.zeros(30)}
    found = jax.jit(gradient_statistics(loss, **options))(params, x, where=where)
    kept = x[where].astype(np.float64)
    expected = {
        "matrix": 20 * kept.sum(1).var(axis=0, ddof=1).sum(),
        "vector": kept[:, 0].var(axis=0, ddof=1).sum(),
    }
    for name, value in expected.items():
        # The inputs have a relative spread of 1e-5; half of float32's digits are left of it.
        np.testing.assert_allclose(found.variance[name], value, rtol=2e-3)
    np.testing.assert_allclose(found.mean["vector"], kept[:, 0].mean(0), rtol=1e-6)


@pytest.mark.parametrize(("size", "variance"), [(1e-24, 0.0), (1e25, np.inf), (1e-12, 4e-24)])
def test_ratios_of_squares_that_are_out_of_range_are_no_numbers(size, variance):
    x = jnp.asarray([[1.0, 2.0], [3.0, 2.0], [5.0, 2.0]]) * size
    spread = {"out": x, "in": x / size}

    def loss(w, x):
        return w["lost"] @ x["out"] + w["kept"] @ x["in"] + 0 * w["unused"]

    params = {"lost": jnp.zeros(2), "kept": jnp.zeros(2), "unused": 0.0}
    found = jax.jit(gradient_statistics(loss))(params, spread)
    np.testing.assert_allclose(found.variance["lost"], variance, rtol=1e-5)
    np.testing.assert_allclose(found.snr["kept"], (13 - 4 / 3) / 4, rtol=1e-5)
    in_range = 0 < variance < np.inf
    np.testing.assert_allclose(
        found.snr["lost"], (13 - 4 / 3) / 4 if in_range else np.nan, rtol=1e-5
    )
    assert found.snr["unused"] == 0
    if size < 1:  # beside the other gradients these are nothing
        np.testing.assert_allclose(found.noise_scale, 4 / (13 - 4 / 3), rtol=1e-5)


def test_an_embedding_with_rows_that_are_the_same():
    tokens = jnp.asarray([[0, 1, 1], [0, 1, 2], [0, 2, 2]])
    scale = jnp.asarray([1000.0, 1000.01, 1000.02])

    def loss(table, example):
        return jnp.sum(table[example[0]]) * example[1]

    run = jax.jit(gradient_statistics(loss, method="ghost"))
    found = run(jnp.zeros((50, 40)), (tokens, scale)).variance
    counts = np.asarray([[1, 2, 0], [1, 1, 1], [1, 0, 2]]) * np.asarray(scale, float)[:, None]
    np.testing.assert_allclose(found, 40 * counts.var(axis=0, ddof=1).sum(), rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_mean_is_over_those_that_count(method):
    x = jnp.asarray([[3.0, 4.0], [0.0, 1.0], [9.0, 9.0]])
    grad = clipped_grad(lambda w, x: w @ x, 2.5, reduction="mean", method=method)
    found, _ = grad(jnp.zeros(2), x, where=jnp.asarray([True, True, False]))
    np.testing.assert_allclose(found, [0.75, 1.5], rtol=1e-6)
    nobody, _ = grad(jnp.zeros(2), x, where=jnp.zeros(3, bool))
    assert nobody.tolist() == [0, 0]


def test_similarity_of_two_batches():
    rng = np.random.default_rng(2)
    x, y = (jnp.asarray(rng.normal(size=(n, 4)), jnp.float32) for n in (5, 3))
    labels = jnp.asarray([1.0, -1.0, 0.5, 2.0, 0.0])

    def loss(w, x, y):
        return 0.5 * (jnp.tanh(x @ w) - y) ** 2

    w = jnp.asarray([0.1, -0.2, 0.3, 0.4])
    other = (y, labels[:3])
    whole = jax.jit(gradient_similarity(loss))(w, x, labels, other=other)
    naive = jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0, 0)))
    (_, rows), (losses, columns) = (naive(w, *b) for b in ((x, labels), other))
    np.testing.assert_allclose(whole.inner, rows @ columns.T, atol=1e-6)
    lengths = jnp.linalg.norm(columns, axis=1)
    np.testing.assert_allclose(whole.other_norm, lengths, rtol=1e-6)
    np.testing.assert_allclose(whole.other_loss, losses, rtol=1e-6)
    in_chunks = gradient_similarity(loss, method="ghost", chunk_size=2)
    chunked = jax.jit(in_chunks)(w, x, labels, other=other)
    np.testing.assert_allclose(chunked.inner, whole.inner, atol=1e-6)
    # A step on training example 0 changes the losses of the other batch as predicted.
    step = 1e-3
    after, _ = naive(w - step * rows[0], *other)
    np.testing.assert_allclose(after - whole.other_loss, -step * whole.inner[0], atol=3e-6)
    with pytest.raises(TypeError, match="expected a tuple of the 2 batched arguments"):
        gradient_similarity(loss)(w, x, labels, other=y)
