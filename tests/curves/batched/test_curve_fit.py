import jax
import numpy as np
import pytest

from fnopt.curves import OptimizeWarning, curve_fit, curve_fit_batch
from tests.curves.batched.problems import make


def test_curve_fit_takes_a_batch():
    f, x, y, p0 = make("decay", 5)
    popt, pcov = curve_fit(f, x, y, p0, batch=True)
    fit = curve_fit_batch(f, x, y, p0)
    np.testing.assert_allclose(popt, fit.params, rtol=1e-5)
    np.testing.assert_allclose(pcov, fit.covariance, rtol=1e-4)


@pytest.mark.usefixtures("x64")
def test_each_is_the_fit_that_it_is_alone():
    f, x, y, p0 = make("decay", 3, np.float64)
    popt, pcov = curve_fit(f, x, y, p0, batch=True)
    for i in range(3):
        alone, covariance = curve_fit(f, x, y[i], p0[i])
        errors = np.sqrt(np.diag(covariance))
        assert np.max(np.abs(popt[i] - alone) / errors) < 1e-6
        np.testing.assert_allclose(np.sqrt(np.diag(pcov[i])), errors, rtol=1e-6)


def test_starts_from_ones_and_warns_of_what_failed():
    f, x, y, _ = make("decay", 3)
    y[1, 0] = np.nan
    with pytest.warns(OptimizeWarning, match="1 of the fits did not converge"):
        popt, pcov, info, messages, numbers = curve_fit(f, x, y, batch=True, full_output=True)
    np.testing.assert_array_equal(popt[1], 1)
    assert np.all(np.isinf(pcov[1]))
    assert numbers[1] == 5
    assert "not finite" in messages[1]
    np.testing.assert_array_equal(info["solution"].converged, [True, False, True])


def test_a_batch_under_jit_says_it_in_the_status():
    f, x, y, p0 = make("decay", 3)
    y[1, 0] = np.nan
    solve = jax.jit(lambda y: curve_fit(f, x, y, p0, batch=True, full_output=True)[-1])
    np.testing.assert_array_equal(np.asarray(solve(y)) > 4, [False, True, False])
