"""The digits of fits by normal equations, their history, and ends at the start."""

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

T = np.linspace(0, 4, 50).astype(np.float32).astype(np.float64)
POWERS = T[:, None] ** np.arange(6)  # columns of condition number 1e5
Y = POWERS @ np.asarray([1.0, -1.0, 0.5, 0.2, -0.1, 0.01])
Y = (Y + 0.05 * np.random.default_rng(0).normal(size=T.size)).astype(np.float32)


def fitted(**options):
    t, y = jnp.asarray(T, jnp.float32), jnp.asarray(Y)
    solver = fnopt.levenberg_marquardt(linear_solver="cholesky")
    return fnopt.least_squares(
        lambda p: sum(p[i] * t**i for i in range(6)) - y,
        jnp.ones(6, jnp.float32),
        solver=solver,
        **options,
    )


@pytest.fixture(scope="module")
def fit():
    return fitted(history=True)


def test_normal_equations_in_float32_find_params_within_their_errors(fit):
    best, cost = np.linalg.lstsq(POWERS, Y.astype(np.float64), rcond=None)[:2]
    errors = np.sqrt(np.diag(np.linalg.inv(POWERS.T @ POWERS)) * cost / (T.size - 6))
    assert fit.converged
    # The square of a condition number of 1e5 takes ten digits; what is left is 1e-2 of an error.
    assert np.max(np.abs(np.asarray(fit.params, np.float64) - best) / errors) < 0.05


def test_every_step_is_counted_and_noted(fit):
    steps = int(fit.steps)
    costs = np.asarray(fit.history.cost)
    assert np.all(np.isfinite(costs[:steps]))
    assert np.all(~np.isfinite(costs[steps:]))
    np.testing.assert_allclose(costs[steps - 1], fit.cost, rtol=1e-6)
    assert steps < int(fit.nfev) <= steps + 3  # the start, and again after a restart
    assert int(fit.njev) == int(fit.nfev)


def test_a_start_without_a_column_is_flagged():
    def saddle(p):
        return jnp.stack([p[0] - 1, p[1] ** 2 - 4])

    for options in ({"max_steps": 0}, {}):
        end = fnopt.least_squares(saddle, jnp.asarray([1.0, 0.0]), **options)
        np.testing.assert_array_equal(end.certificate.undetermined, [False, True])
        assert int(end.rank) == 1


def test_a_start_at_the_solution_takes_one_evaluation():
    def line(p):
        return p - jnp.asarray([1.0, 2.0])

    end = fnopt.least_squares(line, jnp.asarray([1.0, 2.0]), max_steps=0)
    assert end.converged
    assert (int(end.nfev), int(end.njev)) == (1, 1)


@pytest.mark.parametrize("is_dependent", [False, True])
def test_the_rank_in_float32_is_that_of_the_jacobian(is_dependent):
    # With a condition number of 1e3, the smallest eigenvalues of J^T J are below rounding error.
    m, n = 100, 80
    rng = np.random.default_rng(0)
    U, V = np.linalg.qr(rng.normal(size=(m, n)))[0], np.linalg.qr(rng.normal(size=(n, n)))[0]
    A = (U * np.geomspace(1, 1e-3, n)) @ V
    if is_dependent:
        A[:, 5] = 2 * A[:, 3]
    A = jnp.asarray(A, jnp.float32)
    fit = fnopt.least_squares(lambda p: A @ p - 1, jnp.zeros(n))
    assert fit.rank == n - is_dependent
    np.testing.assert_array_equal(
        np.flatnonzero(fit.certificate.undetermined), [3, 5] if is_dependent else []
    )


def test_the_rank_in_float32_of_a_wide_jacobian():
    m, n = 80, 1100
    rng = np.random.default_rng(0)
    U, V = np.linalg.qr(rng.normal(size=(m, m)))[0], np.linalg.qr(rng.normal(size=(n, m)))[0]
    A = jnp.asarray((U * np.geomspace(1, 1e-3, m)) @ V.T, jnp.float32)
    assert fnopt.least_squares(lambda p: A @ p - 1, jnp.zeros(n)).rank == m
