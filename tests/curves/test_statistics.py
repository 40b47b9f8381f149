"""Statistics of fits with infinite standard deviations, and with data of any magnitude."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

X = np.linspace(0.0, 5.0, 30)
Y = 2 * X + 1 + 0.3 * np.cos(7 * X)
SIGMA = np.where(np.arange(30) % 2, 1.0, np.inf)


def line(x, a, b):
    return a * x + b


def statistics(x, y, sigma):
    fit = fnopt.curve_fit(line, x, y, [1.0, 1.0], sigma=sigma)
    return fit.pcov, fit.size, fit.reduced_chi_square, fit.r_squared, fit.aic, fit.bic


@pytest.mark.parametrize("run", [statistics, jax.jit(statistics)], ids=["eager", "jit"])
def test_a_point_of_infinite_sigma_does_not_count(run):
    y = np.where(np.isinf(SIGMA), 1e3, Y)
    kept = np.isfinite(SIGMA)
    want = statistics(X[kept], Y[kept], SIGMA[kept])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3), run(X, y, SIGMA), want)


def test_a_residual_of_infinite_sigma_does_not_count_even_if_it_is_nan():
    y = np.where(np.isinf(SIGMA), np.nan, Y)
    fit = fnopt.least_squares(lambda p: line(X, *p) - y, [1.0, 1.0], sigma=SIGMA)
    assert int(fit.dof) == 13
    kept = np.isfinite(SIGMA)
    want = np.polyfit(X[kept], Y[kept], 1, cov=True)
    np.testing.assert_allclose(fit.params, want[0], rtol=1e-4)
    np.testing.assert_allclose(fnopt.covariance(fit), want[1], rtol=1e-3)


@pytest.mark.parametrize("unit", [1e-30, 1e-20, 1e-19, 1e20, 1e30])
def test_statistics_are_right_where_squares_are_out_of_range(unit):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pcov
        plain = fnopt.curve_fit(line, X, Y, [1.0, 1.0])
        scaled = fnopt.curve_fit(line, X, Y * unit, [unit, unit])
        divided = fnopt.curve_fit(line, X, Y, [1.0, 1.0], sigma=np.full(30, 1 / unit))
    for fit, size in ((scaled, unit), (divided, 1)):
        np.testing.assert_allclose(fit.r_squared, plain.r_squared, rtol=1e-5)
        for name in ("aic", "bic"):
            want = getattr(plain, name) + 60 * np.log(unit)
            np.testing.assert_allclose(getattr(fit, name), want, rtol=1e-4)
        for name, error in plain.standard_errors.items():
            np.testing.assert_allclose(fit.standard_errors[name] / size, error, rtol=1e-3)


def test_errors_are_right_where_only_twice_the_cost_is_out_of_range():
    """The cost is between a half and all of float32's largest number."""
    r = np.asarray([1.0, -1.0, 2.0, -2.0]) * np.sqrt(0.75 * np.finfo(np.float32).max / 5)
    fit = fnopt.least_squares(lambda p: p - r.astype(np.float32), jnp.float32(0.0))
    np.testing.assert_allclose(fnopt.standard_errors(fit), np.std(r, ddof=1) / 2, rtol=1e-4)
    assert np.isfinite(fnopt.curves.reduced_chi_square(fit))
