import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.linear import gauss_newton_solution, numerical_rank, singular_factors

SHAPES = [(7, 3), (3, 3), (4, 3), (2, 5), (1, 4), (5, 1)]
TOLERANCE = {np.float32: 2e-6, np.float64: 1e-13}


def problem(m, n, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, n)).astype(dtype), rng.standard_normal(m).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_factors_give_back_the_products(m, n, dtype):
    with jax.enable_x64(dtype == np.float64):
        A, r = problem(m, n, dtype)
        s, Vt, b = map(np.asarray, singular_factors(jnp.asarray(A), jnp.asarray(r)))
    assert s.dtype == Vt.dtype == b.dtype == dtype
    assert s.shape == b.shape == (min(m, n),)
    A, r = A.astype(np.float64), r.astype(np.float64)
    # A^T A = V s^2 V^T and A^T r = V s b hold whatever the signs of the vectors.
    np.testing.assert_allclose((Vt.T * s**2) @ Vt, A.T @ A, atol=20 * TOLERANCE[dtype])
    np.testing.assert_allclose(Vt.T @ (s * b), A.T @ r, atol=20 * TOLERANCE[dtype])
    np.testing.assert_allclose(s, np.linalg.svd(A)[1], rtol=1e-5, atol=TOLERANCE[dtype])


def test_a_wide_matrix_makes_nothing_of_the_size_of_its_longer_side_squared():
    m, n = 4, 3000
    A, r = problem(m, n)
    text = jax.jit(singular_factors).lower(A, r).as_text()
    assert f"{n}x{n}" not in text


def test_rank_counts_what_is_above_rounding():
    A, r = problem(6, 3)
    A[:, 2] = A[:, 0] - 2 * A[:, 1]
    assert int(numerical_rank(singular_factors(jnp.asarray(A), jnp.asarray(r)).s, 6)) == 2
    zero = singular_factors(jnp.zeros((3, 2)), jnp.ones(3))
    assert int(numerical_rank(zero.s, 3)) == 0


@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_gauss_newton_solution_is_the_one_of_least_norm(m, n):
    A, r = problem(m, n)
    factors = singular_factors(jnp.asarray(A), jnp.asarray(r))
    step = -factors.Vt.T @ gauss_newton_solution(factors, max(m, n))
    expected = np.linalg.lstsq(A.astype(np.float64), -r, rcond=None)[0]
    np.testing.assert_allclose(step, expected, rtol=2e-4, atol=2e-6)


def test_undetermined_directions_get_no_step():
    factors = singular_factors(jnp.zeros((3, 2)), jnp.ones(3))
    np.testing.assert_array_equal(gauss_newton_solution(factors, 3), 0)


def test_the_rank_does_not_depend_on_the_number_of_rows():
    # What rounding leaves of a dependent column doesn't grow with them, so neither does what counts
    # as noise: 1e-4 of the largest is three digits above that.
    s = jnp.asarray([1.0, 1e-4, 1e-7], jnp.float32)
    assert [int(numerical_rank(s, size)) for size in (3, 100, 100_000)] == [2, 2, 2]
