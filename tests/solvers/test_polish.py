"""The last steps of fits by normal equations, and claims that no step is left to test."""

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status

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


def test_cholesky_in_float32_has_the_digits_of_qr(fit):
    best, cost = np.linalg.lstsq(POWERS, Y.astype(np.float64), rcond=None)[:2]
    errors = np.sqrt(np.diag(np.linalg.inv(POWERS.T @ POWERS)) * cost / (T.size - 6))
    assert fit.converged
    # Of normal equations alone it is 1e-2.
    assert np.max(np.abs(np.asarray(fit.params, np.float64) - best) / errors) < 3e-4


def test_its_last_steps_are_counted_and_noted(fit):
    accepted = np.asarray(fit.history.accepted)[: int(fit.steps)]
    costs = np.asarray(fit.history.cost)[: int(fit.steps)]
    assert accepted[-1]
    assert np.all(np.isfinite(costs))
    assert np.all(~np.isfinite(np.asarray(fit.history.cost)[int(fit.steps) :]))
    np.testing.assert_allclose(costs[-1], fit.cost, rtol=1e-6)
    assert int(fit.nfev) == int(fit.steps) + 1


def test_a_claim_that_no_step_is_left_to_test_is_not_made():
    def saddle(p):
        return jnp.stack([p[0] - 1, p[1] ** 2 - 4])

    start = jnp.asarray([1.0, 0.0])
    assert fnopt.least_squares(saddle, start, max_steps=0).status == Status.MAX_STEPS
    assert fnopt.least_squares(saddle, start).converged


def test_a_claim_of_the_last_step_without_doubt_stands():
    def line(p):
        return p - jnp.asarray([1.0, 2.0])

    end = fnopt.least_squares(line, jnp.asarray([1.0, 2.0]), max_steps=0)
    assert end.converged
    assert (int(end.nfev), int(end.njev)) == (1, 1)
