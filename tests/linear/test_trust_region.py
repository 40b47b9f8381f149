import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from fnopt.linear import SingularFactors, singular_factors, trust_region_solution
from tests.linear.test_singular import problem

solve = jax.jit(trust_region_solution)


def test_takes_the_full_step_if_it_fits():
    A, r = problem(7, 3)
    factors = singular_factors(jnp.asarray(A), jnp.asarray(r))
    lam, z = solve(factors, jnp.float32(1e3))
    assert lam == 0
    expected = np.linalg.lstsq(A.astype(np.float64), -r, rcond=None)[0]
    np.testing.assert_allclose(-factors.Vt.T @ z, expected, rtol=1e-4)


@pytest.mark.parametrize(("m", "n"), [(7, 3), (2, 5)])
@pytest.mark.parametrize("radius", [1e-6, 1e-3, 0.1])
def test_a_step_that_does_not_fit_ends_near_the_boundary(m, n, radius):
    A, r = problem(m, n)
    factors = singular_factors(jnp.asarray(A), jnp.asarray(r))
    lam, z = solve(factors, jnp.float32(radius))
    assert lam > 0
    assert 0.85 * radius <= np.linalg.norm(z) <= 1.15 * radius


@given(
    st.lists(st.floats(-8, 4), min_size=3, max_size=3),
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=4, max_size=4),
    st.floats(-10, 10),
)
@settings(max_examples=60, deadline=None)
def test_is_finite_and_never_far_outside(powers, r, log_radius):
    # Singular values over twelve orders of magnitude, most beyond what float32 resolves.
    A, _ = problem(4, 3)
    A = (A * np.power(10.0, powers)).astype(np.float32)
    factors = singular_factors(jnp.asarray(A), jnp.asarray(r, jnp.float32))
    radius = np.float32(10.0**log_radius)
    lam, z = solve(factors, jnp.asarray(radius))
    assert np.isfinite(lam)
    assert lam >= 0
    assert np.all(np.isfinite(z))
    assert np.linalg.norm(z) <= 2 * radius


@pytest.mark.parametrize("r", [[0.0, 0.0, 0.0], [0.0, 0.0, 5.0]])
def test_no_slope_no_step(r):
    A = jnp.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    lam, z = solve(singular_factors(A, jnp.asarray(r)), jnp.float32(1))
    np.testing.assert_allclose(z, 0, atol=1e-6)
    assert np.isfinite(lam)


@pytest.mark.parametrize("spread", [1e-2, 1e-6, 1e-10])
@pytest.mark.parametrize("radius", [1e-4, 1.0, 1e4])
def test_the_damping_is_the_root_found_by_bisection(x64, spread, radius):
    s = np.geomspace(1, spread, 6)
    b = np.random.default_rng(0).standard_normal(6)
    factors = SingularFactors(jnp.asarray(s), jnp.eye(6), jnp.asarray(b))
    lam, _ = solve(factors, jnp.float64(radius))
    if np.linalg.norm(b / s) <= 1.1 * radius:
        assert lam == 0
        return

    def damping(length):
        return optimize.brentq(
            lambda log: np.linalg.norm(s * b / (s**2 + np.exp(log))) - length, -70, 20
        )

    # It comes from the side of too little damping, and is content with 10 % too long a step.
    assert damping(1.1 * radius) <= np.log(lam) + 1e-6
    assert np.log(lam) <= damping(radius) + 1e-6


def test_directions_that_nothing_determines_stay_where_they_are():
    factors = SingularFactors(jnp.asarray([1.0, 1e-3, 0.0]), jnp.eye(3), jnp.ones(3))
    lam, z = solve(factors, jnp.float32(1e6))
    assert lam == 0
    np.testing.assert_allclose(z, [1, 1000, 0], rtol=1e-5)
