import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.linear import (
    damped_gram_solution,
    damped_solution,
    gauss_newton_solution,
    singular_factors,
)
from tests.linear.test_singular import SHAPES, problem


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_damped_solution_solves_the_damped_normal_equations(m, n):
    A, r = problem(m, n)
    factors = singular_factors(jnp.asarray(A), jnp.asarray(r))
    step = -factors.Vt.T @ damped_solution(factors, jnp.float32(0.3))
    normal = A.T.astype(np.float64) @ A + 0.3 * np.eye(n)
    np.testing.assert_allclose(step, np.linalg.solve(normal, -A.T @ r), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_gauss_newton_solution_is_the_one_of_least_norm(m, n):
    A, r = problem(m, n)
    factors = singular_factors(jnp.asarray(A), jnp.asarray(r))
    step = -factors.Vt.T @ gauss_newton_solution(factors, m)
    expected = np.linalg.lstsq(A.astype(np.float64), -r, rcond=None)[0]
    np.testing.assert_allclose(step, expected, rtol=2e-4, atol=2e-6)


def test_damped_gram_solution_takes_another_right_hand_side():
    A, r = problem(7, 3)
    g = np.asarray([1.0, -2.0, 0.5], np.float32)
    factors = singular_factors(jnp.asarray(A), jnp.asarray(r))
    solution = damped_gram_solution(factors, jnp.asarray(g), jnp.float32(0.1))
    expected = np.linalg.solve(A.T.astype(np.float64) @ A + 0.1 * np.eye(3), g)
    np.testing.assert_allclose(solution, expected, rtol=1e-5)


def test_undetermined_directions_get_no_step():
    factors = singular_factors(jnp.zeros((3, 2)), jnp.ones(3))
    for z in (damped_solution(factors, jnp.float32(0)), gauss_newton_solution(factors, 3)):
        np.testing.assert_array_equal(z, 0)
