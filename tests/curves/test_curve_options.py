"""What `curve_fit` shares with SciPy's beyond the plain fit."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.curves import OptimizeWarning
from fnopt.curves._curve_data import warn_if_coarse

X = np.linspace(0.0, 4.0, 30)
Y = 2.5 * np.exp(-1.3 * X) + 0.5 + 0.1 * np.random.default_rng(1).standard_normal(30)
SIGMA = np.linspace(0.1, 0.2, 30)


def curve(x, a, b, c):
    return a * jnp.exp(-b * x) + c


HOLE = np.where(np.arange(30) == 3, np.nan, Y)
CASES = {
    "bounds": (Y, {"bounds": (0, [3.0, 1.0, 0.6])}),
    "open bounds": (Y, {"bounds": ([-np.inf, 0.2, -1], [2.0, np.inf, 1.0]), "sigma": SIGMA}),
    "omit": (HOLE, {"nan_policy": "omit", "sigma": SIGMA}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_changing_the_import_is_enough(name, x64):
    optimize = pytest.importorskip("scipy.optimize")
    y, options = CASES[name]
    popt, pcov = fnopt.curve_fit(curve, X, y, **options)
    want, wanted_cov = optimize.curve_fit(
        lambda x, a, b, c: a * np.exp(-b * x) + c, X, y, **options
    )
    np.testing.assert_allclose(popt, want, rtol=1e-4)
    np.testing.assert_allclose(pcov, wanted_cov, rtol=2e-3)


class Column:
    """As a column of a data frame: something that becomes an array when asked to."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_columns_of_a_data_frame():
    objects = np.asarray(SIGMA, object)
    popt, _ = fnopt.curve_fit(curve, Column(X), Column(Y), sigma=objects)
    np.testing.assert_array_equal(popt, fnopt.curve_fit(curve, X, Y, sigma=SIGMA)[0])


def test_lists_of_numbers_and_of_strings():
    def listed(x, a, b, c):
        return [curve(t, a, b, c) for t in x]

    few = slice(0, 5)
    popt, _ = fnopt.curve_fit(listed, list(X[few]), [str(y) for y in Y[few]])
    np.testing.assert_allclose(popt, fnopt.curve_fit(curve, X[few], Y[few])[0], rtol=1e-4)


def test_data_that_float32_cannot_tell_apart():
    t = 1.6e9 + np.arange(30)
    with pytest.warns(OptimizeWarning, match=r"to float32 changes xdata by up to 29, expected.*29"):
        fnopt.curve_fit(lambda x, a: a + 0 * x, t, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fnopt.curve_fit(lambda x, a: a + 0 * x, t - t[0], Y)


@pytest.mark.parametrize("offset", [0.0, 3e2, 3e3, 3e4, 3e6])
def test_data_that_lose_half_of_their_digits_in_float32(offset):
    y = offset + Y
    lost = np.max(np.abs(y.astype(np.float32) - y)) / np.ptp(y)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_if_coarse(y, np.dtype("float32"), "ydata")
    assert bool(found) == (lost > 2.0**-11.5)


def test_rounding_errors_of_constant_data_do_not_warn():
    n = np.arange(1.0, 31.0)
    y = np.cumsum(np.full(30, 1e7 / 3)) / n
    assert np.ptp(y) > 0
    warn_if_coarse(y, np.dtype("float32"), "ydata")


def test_a_covariance_says_why_it_is_infinite():
    with pytest.warns(OptimizeWarning, match="freedom with 1 data point and 1 param "):
        fnopt.curve_fit(lambda x, a: a * x, [1, 2][:1], [2])
    with pytest.warns(OptimizeWarning, match=r"don't determine a, b \(rank 1 of 2, 30 data"):
        fit = fnopt.curve_fit(lambda x, a, b: a * b * x, X, Y)
    assert fit.message.endswith("; the data don't determine a, b")


def test_a_loss_by_name():
    by_name, _ = fnopt.curve_fit(curve, X, Y, loss="soft_l1", f_scale=0.1, method="trf")
    by_function, _ = fnopt.curve_fit(
        curve, X, Y, loss=lambda z: 2 * (jnp.sqrt(1 + z) - 1), f_scale=0.1
    )
    np.testing.assert_allclose(by_function, by_name, rtol=1e-3)
    fit = fnopt.least_squares(
        lambda p: curve(X, *p) - Y, jnp.ones(3), loss=fnopt.residuals.soft_l1(scale=0.1)
    )
    np.testing.assert_allclose(by_name, fit.params, rtol=1e-4)


def test_a_given_jacobian_is_used():
    calls = []

    def jac(x, *p):
        calls.append(p)
        a, b, _ = p
        e = jnp.exp(-b * x)
        return jnp.stack([e, -a * x * e, jnp.ones_like(x)], axis=1)

    # A model through which nothing can be differentiated.
    def opaque(x, a, b, c):
        return curve(x, *map(jax.lax.stop_gradient, (a, b, c)))

    popt, _ = fnopt.curve_fit(opaque, X, Y, jac=jac)
    want, _ = fnopt.curve_fit(curve, X, Y)
    assert calls
    np.testing.assert_allclose(popt, want, rtol=1e-3)


def test_masked_points_are_left_out():
    masked = np.ma.masked_greater(np.where(np.arange(30) == 3, 99.0, Y), 9.0)
    popt, _ = fnopt.curve_fit(curve, X, masked, nan_policy="omit")
    np.testing.assert_array_equal(popt, fnopt.curve_fit(curve, X, HOLE, nan_policy="omit")[0])
    with pytest.raises(ValueError, match="ydata contain 1 NaN"):
        fnopt.curve_fit(curve, X, masked)


BAD = [
    ({"nan_policy": "propagate"}, "nan_policy = 'propagate', expected None"),
    ({"nan_policy": "raise", "ydata": HOLE}, "contain NaN at 1 point,"),
    ({"method": "newton"}, "method = 'newton', expected None, 'lm'"),
    ({"method": "lm", "bounds": (0, 1)}, "got bounds with method = 'lm'"),
    ({"bounds": ([0, 0], [1, 1])}, r"expected \(3,\), one number for each param"),
    ({"bounds": (0, 1), "p0": [2.0, 0.5, 0.5]}, r"starts at 2\.0, outside its bounds"),
    ({"bounds": [(0, 2), (0, 3), (0, 1)]}, r"expected a pair.* tuple\(zip\(\*bounds\)\)"),
    ({"weights": SIGMA}, r"unexpected keyword 'weights'. Pass sigma=1 / jnp.sqrt"),
    ({"jac": "4-point"}, "jac = '4-point', expected a function"),
]


@pytest.mark.parametrize(("options", "text"), BAD)
def test_bad_options_are_refused_by_name(options, text):
    options = {"ydata": Y, **options}
    with pytest.raises((TypeError, ValueError), match=text):
        fnopt.curve_fit(curve, X, **options)


def test_the_derivative_of_a_fit_by_its_data_outside_of_jit():
    x = jnp.arange(4.0)

    def slope(y):
        return fnopt.curve_fit(lambda x, a, b: a + b * x, x, y)[0][1]

    expected = np.linalg.pinv(np.stack([np.ones(4), np.arange(4.0)], 1))[1]
    np.testing.assert_allclose(jax.grad(slope)(jnp.asarray([1.0, 2.5, 3, 5])), expected, atol=1e-5)
    # what is said about a bad fit is said here too
    with pytest.raises(fnopt.curves.FitError, match="not found"):
        jax.grad(
            lambda y: fnopt.curve_fit(lambda x, a: a + jnp.exp(jnp.exp(a * x)), x, y, maxfev=1)[0][
                0
            ]
        )(x)
    with pytest.warns(fnopt.curves.OptimizeWarning, match="could not be estimated"):
        jax.grad(lambda y: fnopt.curve_fit(lambda x, a, b: (a + b) * x, x, y)[0].sum())(x)


def test_complex_data_of_a_real_model_are_refused():
    """Imaginary parts of zero counted as data: standard errors were too small by a root of two."""
    t = jnp.linspace(0.0, 4.0, 30)
    y = 2 * jnp.exp(-0.7 * t) + 0.01 * jnp.cos(9 * t)

    def as_complex(x):
        return jax.lax.complex(x, jnp.zeros_like(x))

    with pytest.raises(TypeError, match=r"ydata are complex64, but f returned float32.*ydata.real"):
        fnopt.curve_fit(lambda t, a, b: a * jnp.exp(-b * t), t, as_complex(y))
    popt, _ = fnopt.curve_fit(lambda t, a, b: as_complex(a * jnp.exp(-b * t)), t, as_complex(y))
    assert jnp.allclose(popt, jnp.asarray([2.0, 0.7]), atol=0.02)
