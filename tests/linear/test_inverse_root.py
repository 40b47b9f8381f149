"""Inverse roots and dominant eigenvalues against float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.linear import matrix_inverse_pth_root, power_iteration


def positive(n=5, seed=0, least=1e-2):
    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))[0]
    return q * np.geomspace(1, least, n) @ q.T


def expected(A, p, ridge):
    values, vectors = np.linalg.eigh(A)
    return vectors * (values + ridge * values[-1]) ** (-1 / p) @ vectors.T


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_roots(p):
    fn = jax.jit(lambda A: matrix_inverse_pth_root(A, p))
    for size in (1.0, 1e-12, 1e10):
        A = positive() * size
        root, error = fn(jnp.asarray(A, jnp.float32))
        exact = expected(A, p, 1e-6)
        np.testing.assert_allclose(root, exact, atol=2e-3 * abs(exact).max())
        assert error < 1e-3
    with jax.enable_x64(True):
        root, error = matrix_inverse_pth_root(jnp.asarray(positive()), p, error_tolerance=1e-12)
        np.testing.assert_allclose(root, expected(positive(), p, 1e-6), rtol=1e-6, atol=1e-9)


def test_roots_agree_with_the_peer():
    optax = pytest.importorskip("optax")
    A = jnp.asarray(positive(4), jnp.float32)
    with jax.numpy_dtype_promotion("standard"):
        theirs, _ = jax.jit(lambda A: optax.matrix_inverse_pth_root(A, 4))(A)
        value, _ = optax.power_iteration(A)
    np.testing.assert_allclose(matrix_inverse_pth_root(A, 4)[0], theirs, atol=1e-4)
    np.testing.assert_allclose(power_iteration(A)[0], value, rtol=1e-5)


def test_a_matrix_of_nan_and_of_one_element():
    root, error = matrix_inverse_pth_root(jnp.full((2, 2), jnp.nan), 2)
    assert jnp.isnan(error)
    assert root.shape == (2, 2)
    root, _ = matrix_inverse_pth_root(jnp.full((1, 1), 4.0), 2)
    np.testing.assert_allclose(root, [[0.5]], rtol=1e-5)


def test_power_iteration_of_functions_of_trees():
    A = positive(5, 1) - 2 * np.outer(*2 * (np.eye(5)[0],))

    def product(v):
        w = jnp.asarray(A, jnp.float32) @ jnp.concatenate([v["a"], v["b"]])
        return {"a": w[:2], "b": w[2:]}

    start = {"a": jnp.ones(2), "b": jnp.ones(3)}
    value, vector = jax.jit(lambda v: power_iteration(product, v0=v))(start)
    values, vectors = np.linalg.eigh(A)
    i = np.argmax(abs(values))
    np.testing.assert_allclose(value, values[i], rtol=1e-4)
    both = np.concatenate([vector["a"], vector["b"]])
    np.testing.assert_allclose(abs(both @ vectors[:, i]), 1, rtol=1e-4)


def test_power_iteration_of_zeros_and_of_what_is_none():
    value, vector = power_iteration(jnp.zeros((3, 3)))
    assert value == 0
    assert jnp.isfinite(vector).all()
    with pytest.raises(ValueError, match="expected a square matrix"):
        power_iteration(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="v0"):
        power_iteration(lambda v: v)
    with pytest.raises(ValueError, match="p is 0"):
        matrix_inverse_pth_root(jnp.eye(2), 0)
