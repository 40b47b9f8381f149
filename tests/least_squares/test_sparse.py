"""Least squares on narrow bands, without a pattern and without a full matrix."""

import jax
import jax.numpy as jnp
import numpy as np

import fnopt


def smoother(y, stiffness):
    """Whittaker's: near the data, and of small second differences."""

    def residuals(z):
        return {"data": z - y, "bend": stiffness * (z[2:] - 2 * z[1:-1] + z[:-2])}

    return residuals


def test_an_ill_conditioned_fit_with_gaps_is_solved_exactly(x64):
    # The normal equations have the condition number 1e9; conjugate gradients get nowhere.
    n, stiffness = 300, 1e4
    y = np.sin(np.linspace(0, 9, n)) + 0.3 * np.cos(np.arange(n) ** 2)
    w = np.ones(n)
    w[100:110] = 0
    fn = smoother(jnp.asarray(np.where(w > 0, y, np.nan)), stiffness)
    weights = {"data": jnp.asarray(w), "bend": jnp.asarray(2.0)}
    jac = fnopt.sparse_jacobian(fn)
    fit = fnopt.least_squares(fn, jnp.zeros(n), jac=jac, weights=weights)
    D = np.diff(np.eye(n), 2, axis=0)
    want = np.linalg.solve(np.diag(w) + 2 * stiffness**2 * D.T @ D, w * y)
    assert bool(fit.converged)
    np.testing.assert_allclose(fit.params, want, atol=1e-6)
    assert fit.jacobian is None
    assert fit.rank == -1


def test_memory_is_that_of_the_band():
    n = 10_000
    fn = smoother(jnp.zeros(n), 1.0)

    def solve(z):
        jac, loss = fnopt.sparse_jacobian(fn), {"data": "huber", "bend": None}
        return fnopt.least_squares(fn, z, jac=jac, loss=loss).params

    memory = jax.jit(solve).lower(jnp.ones(n)).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < n * n / 8  # a matrix has 4 n^2
