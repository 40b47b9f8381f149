"""The numbers of a certificate, recomputed from the solution with NumPy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.residuals import huber

DTYPES = ["float32", "float64"]
T = np.linspace(0.0, 3.0, 12)
Y = 2 * np.exp(-0.7 * T) + 0.3 + 0.05 * np.sin(9 * T)


def recomputed(J, r, squares, eps, free=None):
    """In float64: optimality, decrement, rank, and the params with a part in the null space."""
    J, r = np.asarray(J, np.float64), np.asarray(r, np.float64)
    columns = np.linalg.norm(J, axis=0)
    units = J / np.where(columns > 0, columns, 1)
    noise = min(32, max(J.shape)) * eps
    s, Vt = np.linalg.svd(units, full_matrices=False)[1:]
    rank = int(np.sum(s > noise * s[0]))
    null = np.sum(Vt[:rank] ** 2, axis=0) < 1 - eps**0.5
    part = units if free is None else units * free
    U, s, _ = np.linalg.svd(part, full_matrices=False)
    within = U[:, s > noise * s[0]].T @ r
    optimality = np.max(np.abs(part.T @ r)) / np.sqrt(squares)
    return optimality, within @ within / squares, rank, null | (columns == 0)


def check(end, expected):
    optimality, decrement, rank, undetermined = expected
    found, eps = end.certificate, jnp.finfo(end.cost.dtype).eps
    assert found.optimality.dtype == found.decrement.dtype == end.cost.dtype
    # At a solution both are rounding: some units of what cancels in them, the parts of |r|.
    np.testing.assert_allclose(found.optimality, optimality, rtol=1e3 * eps, atol=20 * eps)
    roots = np.sqrt(np.float64(found.decrement)), np.sqrt(decrement)
    np.testing.assert_allclose(*roots, rtol=1e3 * eps, atol=20 * eps)
    assert int(end.rank) == rank
    np.testing.assert_array_equal(found.undetermined, undetermined)


# --- At a solution, on the way, and at the start. -------------------------------------------------


def decay(p, y):
    t = jnp.asarray(T, p.dtype)
    return p[0] * jnp.exp(-p[1] * t) + p[2] - y


FITS = {
    "free": {},
    "in another unit": {"sigma": 1e3},
    "one bound active": {"bounds": ([0.0, 0.9, -1.0], [9.0, 9.0, 9.0])},
    "no bound active": {"bounds": ([-9.0] * 3, [9.0] * 3)},
    "huber": {"loss": huber(scale=0.02)},
    "cauchy": {"loss": fnopt.residuals.cauchy(scale=0.1)},
}


def fitted(name, start, y, max_steps):
    return fnopt.least_squares(decay, start, args=(y,), max_steps=max_steps, **FITS[name])


def corrected(end, loss):
    """Derivatives, residuals and their squares, as the linear model of a loss has them."""
    p, r = (np.asarray(a, np.float64) for a in (end.params, end.residuals))
    J = np.stack([np.exp(-p[1] * T), -p[0] * T * np.exp(-p[1] * T), np.ones(T.size)], 1)
    z = r**2 / float(loss.scale) ** 2
    if isinstance(loss, huber):
        far = np.maximum(z, 1)
        slope, bend = far**-0.5, -0.5 * far**-1.5
        bend = np.where(z > 1, bend, 0)
    else:
        slope, bend = 1 / (1 + z), -1 / (1 + z) ** 2
    w = np.maximum(slope + 2 * z * bend, 0.6 * slope)  # Triggs et al. (2000), and its floor
    r = slope * r / np.sqrt(w)
    return J * np.sqrt(w)[:, None], r, r @ r


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FITS)
def test_every_number_follows_from_the_solution(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        eps = jnp.finfo(dtype).eps
        for most in (1000, 2, 0):
            end = fitted(name, jnp.asarray([1, 1, 0], dtype), jnp.asarray(Y, dtype), most)
            assert bool(end.converged) == (most == 1000), end.message
            free = None if end.at_bound is None else np.asarray(end.at_bound) == 0
            parts = end.jacobian, end.residuals, np.sum(np.float64(end.residuals) ** 2)
            if "loss" in FITS[name]:
                parts = corrected(end, FITS[name]["loss"])
            check(end, recomputed(*parts, eps, free))
            if most == 1000:
                assert float(end.certificate.decrement) < 1e-4
                np.testing.assert_array_equal(end.certificate.undetermined, [False] * 3)
                assert name != "one bound active" or list(free) == [True, False, True]


# --- Minima of deficient rank. --------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0))
def linear(bounds, A, b, start):
    def residuals(p, A, b):  # JAX's default precision on a GPU, TF32, makes the columns independent
        return jnp.matmul(A, p, precision="highest") - b

    return fnopt.least_squares(residuals, start, args=(A, b), bounds=bounds)


def exact(A, b):
    """By draw the least cost, of a matrix whose dependent columns agree to a hundred roundings."""
    units = A / np.linalg.norm(A, axis=1, keepdims=True)
    best = [np.linalg.lstsq(M, v, rcond=1e-4)[0] for M, v in zip(units, b, strict=True)]
    return 0.5 * np.sum((np.einsum("kij,kj->ki", units, best) - b) ** 2, axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("bounds", [None, (-1e9, 1e9)], ids=["free", "bounds"])
def test_linear_minima_of_deficient_rank_are_converged_and_flagged(ratio, dtype, bounds):
    rng = np.random.default_rng(0)
    a, c = rng.standard_normal((2, 40, 12))
    A, b = np.stack([a, ratio * a, c], 2).astype(dtype), rng.standard_normal((40, 12)).astype(dtype)
    start = rng.standard_normal((40, 3)).astype(dtype)
    with jax.enable_x64(dtype == "float64"):
        end = linear(bounds, A, b, start)
        assert np.all(end.converged), end.message
        np.testing.assert_array_equal(end.rank, 2)
        np.testing.assert_array_equal(end.dof, 10)
        np.testing.assert_array_equal(end.certificate.undetermined, [[True, True, False]] * 40)
        # From a start near one the residuals are differences of terms as large as the ratio.
        least = exact(A.astype(float), b.astype(float))
        off = np.abs(end.cost / least - 1)
        assert np.all(off <= 2 * end.certificate.rounding), off  # errors have random signs
        # A GPU rounds the last two steps to another side.
        assert np.median(end.nfev) <= 10, end.nfev
        eps = float(jnp.finfo(dtype).eps)
        for k in range(0, 40, 13):
            one = jax.tree.map(lambda leaf, k=k: leaf[k], end)
            check(one, recomputed(one.jacobian, one.residuals, 2 * float(one.cost), eps))


@pytest.mark.parametrize("dtype", DTYPES)
def test_wide_minima_of_deficient_rank_are_converged(dtype):
    # Rows of zeros and ones, which agree, or add up to each other, with data that do not.
    rng = np.random.default_rng(1)
    A, b = rng.integers(0, 2, (40, 6, 7)).astype(dtype), rng.standard_normal((40, 6)).astype(dtype)
    A[:, 5] = A[:, 0]
    with jax.enable_x64(dtype == "float64"):
        end = linear(None, A, b, np.zeros((40, 7), dtype))
        costs = [
            0.5 * np.sum((M @ np.linalg.lstsq(M, v, rcond=1e-4)[0] - v) ** 2)
            for M, v in zip(A.astype(float), b.astype(float), strict=True)
        ]
        np.testing.assert_array_equal(end.rank, np.linalg.matrix_rank(A.astype(float)))
        np.testing.assert_allclose(end.cost, costs, rtol=1e-4, atol=1e-10)
        assert np.all(end.converged), end.message


@pytest.mark.parametrize("dtype", DTYPES)
def test_params_without_a_column_are_flagged(dtype):
    with jax.enable_x64(dtype == "float64"):

        def residuals(p, y):
            return decay(p[:3], y) + 0 * p[3]

        end = fnopt.least_squares(residuals, jnp.ones(4, dtype), args=(jnp.asarray(Y, dtype),))
        assert bool(end.converged), end.message
        assert int(end.rank) == 3
        np.testing.assert_array_equal(end.certificate.undetermined, [False, False, False, True])


def test_params_whose_column_is_lost_on_the_way_are_flagged():
    # exp(-p) + 1 has its infimum at infinity: the cost is right to rounding, the param is not.
    end = fnopt.least_squares(lambda p: jnp.stack([jnp.exp(-p[0]) + 1, p[1] - 2]), jnp.ones(2))
    assert not bool(end.converged) or bool(end.certificate.undetermined[0]), end
    np.testing.assert_allclose(end.cost, 0.5, rtol=1e-3)
    np.testing.assert_allclose(end.params[1], 2, rtol=1e-3)
    assert not bool(end.certificate.undetermined[1])


@pytest.mark.parametrize("linear_solver", ["auto", "qr", "cholesky"])
def test_fewer_residuals_than_params_leave_some_undetermined(linear_solver):
    A = jnp.asarray([[1.0, 0, 0, 0], [0, 1, 1, 0]])
    solver = fnopt.levenberg_marquardt(linear_solver=linear_solver)
    solution = fnopt.least_squares(lambda p: A @ p - 1, jnp.ones(4), solver=solver)
    assert solution.converged
    assert int(solution.rank) == 2
    assert solution.certificate.undetermined.tolist() == [False, True, True, True]
