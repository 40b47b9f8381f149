import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fnopt.linear import TriangleSystem, damped_triangle, noise_damping, triangle
from tests.linear.test_singular import TOLERANCE, problem

SHAPES = [(7, 3), (3, 3), (4, 3), (5, 1), (1, 1)]


@jax.jit
def trust_region(A, r, radius, start):
    system = TriangleSystem(triangle(A, r), A.shape[0], start, lambda w: w @ A)
    step = system.trust_region(radius)
    return step.p, step.lam


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "n"), SHAPES)
def test_a_triangle_gives_back_the_products(m, n, dtype):
    A, r = problem(m, n, dtype)
    d = dtype(1.5)
    with jax.enable_x64(dtype == np.float64):
        factors = triangle(jnp.asarray(A), jnp.asarray(r))
        plain = [np.asarray(a, np.float64) for a in factors]
        damped = [np.asarray(a, np.float64) for a in damped_triangle(factors, jnp.asarray(d))]
    A, r = A.astype(np.float64), r.astype(np.float64)
    for (L, c), extra in ((plain, 0), (damped, 2.25 * np.eye(n))):
        np.testing.assert_array_equal(L, np.tril(L))
        np.testing.assert_allclose(L @ L.T, A.T @ A + extra, atol=40 * TOLERANCE[dtype])
        np.testing.assert_allclose(L @ c, A.T @ r, atol=40 * TOLERANCE[dtype])


@given(
    st.lists(st.floats(-8, 4), min_size=3, max_size=3),
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4),
    st.floats(-10, 10),
    st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_is_finite_and_never_far_outside(powers, r, log_radius, start):
    # Columns over twelve orders of magnitude, most beyond what float32 resolves.
    A, _ = problem(4, 3)
    A = (A * np.power(10.0, powers)).astype(np.float32)
    radius = np.float32(10.0**log_radius)
    p, lam = trust_region(A, np.asarray(r, np.float32), radius, np.float32(start))
    assert np.isfinite(lam)
    assert lam >= 0
    assert np.all(np.isfinite(p))
    assert np.linalg.norm(p) <= 1.5 * radius * (1 + 1e-5)


@pytest.mark.parametrize("spread", [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize("radius", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("lam", [0.0, 1e-8, 10.0])
def test_a_step_has_the_closed_form_of_the_singular_basis(x64, spread, radius, lam):
    rng = np.random.default_rng(0)
    s, b = np.geomspace(1, spread, 6), rng.standard_normal(6)
    U, V = (np.linalg.qr(rng.standard_normal((6, 6)))[0] for _ in range(2))
    p, _ = trust_region((U * s) @ V.T, U @ b, np.float64(radius), np.float64(lam))
    full = -V @ (s * b / (s**2 + lam))
    full *= min(1, 1.5 * radius / np.linalg.norm(full))
    # A singular value that rounding moves by 1e-16 moves what is along it by as much over itself.
    # A QR decomposition of 12 x 6 numbers rounds by some 72 units (Higham 2002, theorem 19.4).
    least, units = min(1, max(spread, lam**0.5)), 72 * np.finfo(np.float64).eps
    np.testing.assert_allclose(p, full, rtol=0, atol=units / least * np.linalg.norm(full))


def test_what_nothing_moves_stays_where_it_is(x64):
    A = np.asarray([[1.0, 0.0, 2.0], [1.0, 0.0, -1.0], [0.0, 0.0, 1.0], [2.0, 0.0, 0.5]])
    r = np.asarray([1.0, 2.0, 3.0, 4.0])
    p, lam = trust_region(A, r, np.float64(1e6), np.float64(0))
    assert lam == 0
    np.testing.assert_allclose(p, np.linalg.lstsq(A, -r, rcond=None)[0], rtol=1e-12, atol=1e-300)
    assert p[1] == 0


@pytest.mark.parametrize("power", [-60, 0, 8, 60])
def test_a_step_keeps_its_digits_at_any_damping(x64, power):
    # The damping is up to 1e60 times the matrix, or as much smaller.
    rng = np.random.default_rng(0)
    A, r, d = rng.standard_normal((7, 3)), rng.standard_normal(7), 10.0**power
    L, c = damped_triangle(triangle(jnp.asarray(A), jnp.asarray(r)), jnp.asarray(d))
    p = np.linalg.solve(np.asarray(L).T, np.asarray(c))
    exact = np.linalg.solve(A.T @ A + d * d * np.eye(3), A.T @ r)
    np.testing.assert_allclose(p, exact, rtol=1e-13)


@pytest.mark.parametrize("A", [np.ones((3, 2)), np.eye(3, 2, 1), np.zeros((3, 2))])
def test_a_singular_matrix_gets_the_full_step_by_hebdens_iteration(x64, A):
    # The undamped solution is all noise, of any length; four more dampings are enough.
    r, radius, lam = np.asarray([1.0, 2.0, 4.0]), np.float64(10.0), np.float64(0)
    factors = triangle(jnp.asarray(A), jnp.asarray(r))
    for _ in range(5):
        step = TriangleSystem(factors, 3, jnp.asarray(lam), lambda w: w @ A).trust_region(radius)
        assert np.linalg.norm(step.p) <= 15.0 * (1 + 1e-9)
        lam = np.maximum(lam + (step.solution_length / radius - 1) * step.hebden, 0)
    best = r + A @ np.linalg.lstsq(A, -r, rcond=None)[0]
    np.testing.assert_allclose(r + A @ np.asarray(step.p), best, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e6])
def test_dependent_columns_are_held_still_in_an_undamped_step(dtype, ratio):
    # One of them stands between others, so that rows of the triangle below it count.
    rng = np.random.default_rng(0)
    a, b, c = rng.standard_normal((3, 12))
    A, r = np.stack([b, a, ratio * a, c], 1).astype(dtype), rng.standard_normal(12).astype(dtype)
    A /= np.linalg.norm(A, axis=0)
    exact = np.linalg.lstsq(A.astype(float), -r.astype(float), rcond=1e-4)[0]
    with jax.enable_x64(dtype == np.float64):
        factors = triangle(jnp.asarray(A), jnp.asarray(r))
        held, zero = noise_damping(factors.L), jnp.zeros((), dtype)
        system = TriangleSystem(factors, 12, zero, lambda w: w @ A, held)
        p = np.asarray(system.trust_region(dtype(10)).p, float)
    np.testing.assert_array_equal(np.asarray(held) > 0, [False, False, True, False])
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(A @ p, A @ exact, rtol=0, atol=100 * eps)


@pytest.mark.parametrize("r", [[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
def test_no_slope_no_step(r):
    A = np.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], np.float32)
    p, lam = trust_region(A, np.asarray(r, np.float32), np.float32(1), np.float32(0))
    np.testing.assert_allclose(p, 0, atol=1e-6)
    assert np.isfinite(lam)


@pytest.mark.parametrize("place", [0, 2, 30])
def test_an_outlier_among_the_first_rows_costs_no_digits(place):
    # As under a robust loss: a residual of 1e10, whose derivatives are as much smaller.
    rng = np.random.default_rng(0)
    A, r = rng.standard_normal((40, 3)), rng.standard_normal(40)
    A[place], r[place] = 1e-10 * A[place], 1e10
    A, r = A.astype(np.float32), r.astype(np.float32)
    exact = np.linalg.lstsq(A.astype(float), r.astype(float), rcond=None)[0]
    L, c = triangle(jnp.asarray(A), jnp.asarray(r), graded=True)
    found = np.linalg.solve(np.asarray(L, float).T, np.asarray(c, float))
    np.testing.assert_allclose(found, exact, rtol=0, atol=16 * np.finfo(np.float32).eps)
