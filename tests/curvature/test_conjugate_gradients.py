"""Conjugate gradients with Nyström's preconditioner against the dense solve."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.curvature._conjugate_gradients import conjugate_gradients, nystrom

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
