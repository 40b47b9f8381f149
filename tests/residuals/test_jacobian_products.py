import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.residuals import flat_residual, linearize_gram, linearize_products, probed_columns


def r(x):
    return jnp.concatenate([jnp.sin(x), x * x[0], x[:1] * 0])


X = jnp.asarray([0.5, -1.0, 2.0])
J = np.asarray(jax.jacfwd(r)(X))


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("chunk_size", [None, 2, 100])
def test_chunks_change_nothing(mode, chunk_size):
    _, flat = flat_residual(r, X)
    value, G, g, unit = linearize_gram(flat, X, mode, chunk_size)
    np.testing.assert_array_equal(unit, 1)
    np.testing.assert_array_equal(value, r(X))
    np.testing.assert_allclose(G, J.T @ J, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(g, J.T @ np.asarray(value), rtol=1e-5)


def test_chunks_bound_the_memory():
    x = jnp.ones(50)

    def wide(x):
        return jnp.tanh(jnp.outer(jnp.arange(4000.0), x)).sum(axis=1)

    _, flat = flat_residual(wide, x)

    def bytes_of(chunk_size):
        fn = jax.jit(lambda x: linearize_gram(flat, x, "reverse", chunk_size))
        return fn.lower(x).compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(8) < 0.1 * bytes_of(4000)


def test_products():
    value, push, pull = linearize_products(r, X)
    v, w = jnp.asarray([1.0, 2.0, 3.0]), jnp.arange(7.0)
    np.testing.assert_array_equal(value, r(X))
    np.testing.assert_allclose(push(v), J @ v, rtol=1e-6)
    np.testing.assert_allclose(pull(w), w @ J, rtol=1e-5)


def test_probed_columns_are_near_and_zero_where_zero():
    A = np.random.default_rng(0).standard_normal((400, 60)).astype(np.float32)
    A[:, 7] = 0
    probed = probed_columns(lambda w: w @ A, jnp.zeros(400))
    norms = np.linalg.norm(A, axis=0)
    assert probed[7] == 0
    ratio = np.delete(probed, 7) / np.delete(norms, 7)
    assert np.min(ratio) > 0.3
    assert np.max(ratio) < 2.5
    np.testing.assert_allclose(np.sqrt(np.mean(ratio**2)), 1, rtol=0.15)
