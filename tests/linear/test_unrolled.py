import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.linear import (
    normal_equations,
    unrolled_cholesky,
    unrolled_inverse,
    unrolled_rank,
    unrolled_solve,
)

LANES = 5


def jacobians(m, n, seed=0):
    rng = np.random.default_rng(seed)
    J = rng.standard_normal((m, n, LANES)).astype(np.float32)
    return J, rng.standard_normal((m, LANES)).astype(np.float32)


def sums(J, r):
    return normal_equations([jnp.asarray(J[:, j]) for j in range(J.shape[1])], jnp.asarray(r))


def full(rows):
    n = len(rows)
    return np.asarray([[rows[max(i, j)][min(i, j)] for j in range(n)] for i in range(n)])


# One block, a block with a rest, blocks, blocks with a rest, and blocks of blocks; more terms than
# are summed at a time.
@pytest.mark.parametrize("m", [1, 5, 7, 50, 64, 5000])
def test_sums_agree_with_float64(m):
    J, r = jacobians(m, 4)
    found = sums(J, r)
    J, r = J.astype(np.float64), r.astype(np.float64)
    tolerance = 2e-6 * m
    np.testing.assert_allclose(found.square, np.sum(r**2, 0), rtol=1e-6)
    np.testing.assert_allclose(found.g, np.einsum("mjl,ml->jl", J, r), atol=tolerance)
    np.testing.assert_allclose(full(found.A), np.einsum("mil,mjl->ijl", J, J), atol=tolerance)


def test_long_sums_keep_their_digits():
    ones = jnp.full((100_000, 1), 0.1, jnp.float32)
    exact = 100_000 * float(np.float32(0.1)) ** 2
    np.testing.assert_allclose(normal_equations([ones], ones).square, exact, rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_solve_agrees_with_numpy(n):
    J, r = jacobians(12, n)
    found = sums(J, r)
    damping = jnp.linspace(0.0, 0.4, LANES)
    x = np.asarray(unrolled_solve(unrolled_cholesky(found.A, damping), found.g))
    for lane in range(LANES):
        A = J[..., lane].astype(np.float64)
        normal = A.T @ A + float(damping[lane]) * np.eye(n)
        np.testing.assert_allclose(x[:, lane], np.linalg.solve(normal, A.T @ r[:, lane]), rtol=1e-3)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_inverse_agrees_with_numpy(n):
    J, r = jacobians(20, n)
    factor = unrolled_cholesky(sums(J, r).A, jnp.zeros(LANES))
    inverse = full(unrolled_inverse(factor))
    np.testing.assert_array_equal(unrolled_rank(factor), n)
    for lane in range(LANES):
        A = J[..., lane].astype(np.float64)
        np.testing.assert_allclose(inverse[..., lane], np.linalg.inv(A.T @ A), rtol=1e-3, atol=1e-6)


def test_rank_and_finite_solutions_where_columns_depend():
    J, r = jacobians(9, 3)
    J[:, 2, 1] = J[:, 0, 1] - J[:, 1, 1]
    J[:, 1, 2] = 0
    J[..., 3] = 0
    J /= np.maximum(np.linalg.norm(J, axis=0), 1e-30)
    found = sums(J, r)
    factor = unrolled_cholesky(found.A, jnp.zeros(LANES), least=1e-5)
    np.testing.assert_array_equal(unrolled_rank(factor), [3, 2, 2, 0, 3])
    assert np.all(np.isfinite(unrolled_solve(factor, found.g)))
    assert np.all(np.isfinite(full(unrolled_inverse(factor))))


def test_one_lane_that_is_not_finite_leaves_the_others_alone():
    J, r = jacobians(9, 3)
    clean = np.asarray(unrolled_solve(unrolled_cholesky(sums(J, r).A, jnp.ones(LANES)), [*J[0]]))
    J[4, 1, 2] = np.nan
    dirty = np.asarray(unrolled_solve(unrolled_cholesky(sums(J, r).A, jnp.ones(LANES)), [*J[0]]))
    others = np.asarray([0, 1, 3, 4])
    np.testing.assert_array_equal(dirty[:, others], clean[:, others])
