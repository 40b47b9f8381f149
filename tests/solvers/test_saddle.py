"""The second-order test of a certificate: saddle points are left, or reported."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def two_wells(p):  # minima at (-1, 2) and (1, 2), a saddle at (0, 2)
    return jnp.stack([p[0] ** 2 - 1, p[1] - 2])


def wood(p):  # Moré, Garbow and Hillstrom (1981), problem 14
    a, b, c, d = p
    rows = [10 * (b - a**2), 1 - a, 90**0.5 * (d - c**2), 1 - c]
    return jnp.stack([*rows, 10**0.5 * (b + d - 2), (b - d) / 10**0.5])


def test_a_saddle_is_left():
    start = jnp.asarray([0.0, 1.0])
    first = fnopt.least_squares(two_wells, start)
    assert float(first.cost) == pytest.approx(0.5)
    end = jax.jit(lambda p: fnopt.least_squares(two_wells, p, certify="full"))(start)
    assert bool(end.converged)
    assert bool(end.certificate.certified)
    np.testing.assert_allclose(np.abs(end.params), [1, 2], rtol=1e-5)


def test_a_saddle_in_a_curved_valley_is_reported():
    # No point on the straight line of negative curvature is lower by 1e-4 of the cost.
    end = fnopt.least_squares(wood, jnp.asarray([-3.0, -1.0, -3.0, -1.0]), certify="full")
    assert 2 * float(end.cost) == pytest.approx(7.877, rel=1e-3)
    assert float(end.certificate.least_curvature) < 0
    assert not bool(end.certificate.certified)
    assert "negative curvature" in end.message


def test_the_least_curvature_is_that_of_the_scaled_hessian():
    x, y = np.linspace(0, 2, 15), np.exp(-0.8 * np.linspace(0, 2, 15)) + 0.1
    with jax.enable_x64(True):
        end = fnopt.least_squares(
            lambda p: p[0] * jnp.exp(-p[1] * x) - y, jnp.ones(2, float), certify="full"
        )
    a, b = np.asarray(end.params)
    e = np.exp(-b * x)
    r, J = a * e - y, np.stack([e, -a * x * e], axis=1)
    H = J.T @ J + np.array([[0, -r @ (x * e)], [-r @ (x * e), r @ (a * x**2 * e)]])
    d = np.linalg.norm(J, axis=0)
    least = np.linalg.eigvalsh(H / np.outer(d, d))[0]
    np.testing.assert_allclose(end.certificate.least_curvature, least, rtol=1e-9)
    assert bool(end.certificate.certified)


def test_params_on_bounds_take_no_part():
    bounds = (jnp.asarray([0.5, -5.0]), jnp.asarray([5.0, 1.0]))  # ends at (1, 1)
    end = fnopt.least_squares(two_wells, jnp.asarray([0.6, 0.0]), bounds=bounds, certify="full")
    np.testing.assert_allclose(end.params, [1, 1], rtol=1e-5)
    assert bool(end.certificate.certified)
    assert float(end.certificate.least_curvature) >= -1e-6


def test_a_saddle_on_a_bound_is_left():
    bounds = (jnp.asarray([0.0, -jnp.inf]), jnp.full(2, jnp.inf))
    end = fnopt.least_squares(two_wells, jnp.asarray([0.0, 1.0]), bounds=bounds, certify="full")
    np.testing.assert_allclose(end.params, [1, 2], rtol=1e-5)


def test_a_failed_fit_is_not_certified():
    end = fnopt.least_squares(lambda p: p**3 - 1, jnp.zeros(2))
    assert not bool(end.converged)
    assert not bool(end.certificate.certified)


def test_an_unknown_test_is_refused():
    with pytest.raises(ValueError, match=r"certify .*'first-order'.*'full'"):
        fnopt.least_squares(two_wells, jnp.ones(2), certify="second")
