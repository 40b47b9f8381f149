"""Least squares on narrow bands, without a pattern and without a full matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def smoother(y, stiffness):
    """Whittaker's: near the data, and of small second differences."""

    def residuals(z):
        return {"data": z - y, "second_derivative": stiffness * (z[2:] - 2 * z[1:-1] + z[:-2])}

    return residuals


def solved(w, y, stiffness):
    """Its minimum by SciPy's banded solver: the normal equations have two diagonals aside."""
    linalg = pytest.importorskip("scipy.linalg")
    n = y.size
    stencil = np.asarray([1.0, -2.0, 1.0])
    G = np.zeros((3, n))  # G[k, j] is the entry k below the diagonal of column j
    G[0] = w
    for k in range(3):
        for i in range(3 - k):
            G[k, i : n - 2 + i] += stiffness**2 * stencil[i] * stencil[i + k]
    return linalg.solveh_banded(G, w * y, lower=True)


def test_a_large_ill_conditioned_fit_with_gaps_is_solved_in_little_memory(x64):
    # The normal equations have the condition number 3e7; conjugate gradients get nowhere.
    n, stiffness = 10_000, 1e3
    y = np.sin(np.linspace(0, 9, n)) + 0.3 * np.cos(np.arange(n) ** 2)
    w = np.ones(n)
    w[100:110] = 0
    fn = smoother(jnp.asarray(np.where(w > 0, y, np.nan)), stiffness)
    weights = {"data": jnp.asarray(w), "second_derivative": jnp.asarray(2.0)}

    def solve(z):
        return fnopt.least_squares(fn, z, jac=fnopt.sparse_jacobian(fn), weights=weights)

    compiled = jax.jit(solve).lower(jnp.zeros(n)).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 8 * n * n / 32  # of the size of a matrix
    fit = compiled(jnp.zeros(n))
    assert bool(fit.converged)
    np.testing.assert_allclose(fit.params, solved(w, y, np.sqrt(2) * stiffness), atol=1e-6)
    assert fit.jacobian is None
    assert fit.rank == -1
