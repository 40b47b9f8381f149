"""Conjugate gradients with Nyström's preconditioner against the dense solve."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.curvature._damped_gram import conjugate_gradients, nystrom, solve_by_cg

N, LAM = 120, 1e-6


def kernel():
    """A few large eigenvalues, then ever smaller ones: that of a network."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((N, N)))[0]
    return (Q * 0.75 ** np.arange(N)) @ Q.T, rng.standard_normal(N)


@pytest.mark.usefixtures("x64")
def test_fewer_iterations_to_the_dense_solution():
    K, b = kernel()

    @jax.jit
    def solved(K, b):
        def damped(x):
            return K @ x + LAM * x

        found = {}
        for rank in (0, 20, 40):
            near = nystrom(lambda x: K @ x, N, rank, K.dtype) if rank else None
            precondition = near.preconditioner(jnp.asarray(LAM)) if near else lambda r: r
            found[rank] = conjugate_gradients(damped, b, precondition, 1e-12, 2000)
        return found

    wanted = np.linalg.solve(K + LAM * np.eye(N), b)
    found = solved(K, b)
    for x, _ in found.values():
        np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-8 * np.max(np.abs(wanted)))
    counts = {rank: int(count) for rank, (_, count) in found.items()}
    assert counts[20] < counts[0] / 2
    assert counts[40] < counts[0] / 6


def test_of_a_matrix_of_low_rank_it_is_exact_and_of_zero_it_is_zero():
    rng = np.random.default_rng(1)
    A = jnp.asarray(rng.standard_normal((30, 4)), jnp.float32)

    @jax.jit
    def both(K):
        near = nystrom(lambda x: K @ x, 30, 8, K.dtype)
        damping = jnp.float32(1e-2)
        x, _ = conjugate_gradients(
            lambda x: K @ x + damping * x, K[0] + 1, near.preconditioner(damping), 1e-5, 50
        )
        return (near.vectors * near.values) @ near.vectors.T, x

    K = A @ A.T
    near, _ = both(K)
    np.testing.assert_allclose(near, K, rtol=0, atol=1e-4 * float(jnp.max(jnp.abs(K))))
    near, x = both(jnp.zeros((30, 30)))
    np.testing.assert_allclose(near, 0, atol=1e-30)
    np.testing.assert_allclose(x, 100.0, rtol=1e-5)


@functools.cache
def preconditioned():
    """A few iterations in float32, and the preconditioner as a matrix."""

    def run(K, b, damping):
        near = nystrom(lambda x: K @ x, 30, 8, K.dtype)
        precondition = near.preconditioner(damping)
        x, _ = conjugate_gradients(lambda x: K @ x + damping * x, b, precondition, 1e-5, 50)
        P = jax.vmap(precondition)(jnp.eye(30))
        least = solve_by_cg(lambda x: K @ x, 30, K.dtype, damping * 1e-10, 50, 8).inverse(b)
        return (near.vectors * near.values) @ near.vectors.T, x, P, least

    return jax.jit(run)


def low_rank():
    rng = np.random.default_rng(1)
    A = rng.standard_normal((30, 4))
    return jnp.asarray(A @ A.T, jnp.float32), jnp.asarray(A @ rng.standard_normal(4), jnp.float32)


@pytest.mark.parametrize("size", [1e-24, 1.0, 1e20])
def test_numbers_whose_squares_leave_the_range(size):
    K, b = low_rank()
    _, wanted, *_ = preconditioned()(K, b, jnp.float32(1e-2))
    near, x, *_ = preconditioned()(K * size, b, jnp.float32(1e-2) * size)
    np.testing.assert_allclose(near / size, K, rtol=0, atol=1e-4 * float(jnp.max(jnp.abs(K))))
    np.testing.assert_allclose(x * size, wanted, rtol=0, atol=1e-3 * np.max(np.abs(wanted)))
    _, x, *_ = preconditioned()(K, b * size, jnp.float32(1e-2))
    np.testing.assert_allclose(x / size, wanted, rtol=0, atol=1e-3 * np.max(np.abs(wanted)))


def test_a_damping_below_rounding():
    K, b = low_rank()
    *_, P, _ = preconditioned()(K, b, jnp.float32(1e-12))
    P = np.asarray(P, np.float64)
    assert np.linalg.eigvalsh((P + P.T) / 2)[0] > 0
    *_, x = preconditioned()(K, b, jnp.float32(1e-2))
    np.testing.assert_allclose(K @ x, b, rtol=0, atol=1e-4 * float(jnp.max(jnp.abs(b))))


def test_what_is_not_finite_and_what_is_not_positive():
    def run(d, b):
        return conjugate_gradients(lambda x: d * x, b, lambda r: r, 1e-5, 5)[0]

    run = jax.jit(run)
    one = jnp.ones(2)
    assert np.all(np.isnan(run(one, one.at[0].set(jnp.nan))))
    assert not np.any(run(one, 0 * one))
    # Its curvature along the first direction is 0, and then below.
    for least in (-1.0, -2.0):
        assert not np.any(run(one.at[1].set(least), one))
