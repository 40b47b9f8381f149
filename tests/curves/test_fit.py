"""The result of `curve_fit`, and its way through every function that takes a fit."""

from __future__ import annotations

import functools
import math
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.curves import Fit, OptimizeWarning
from fnopt.curves._profile import _end as interval_end
from fnopt.curves._residuals import deviance_residuals

X = np.linspace(0.0, 4.0, 30)
Y = 2.5 * np.exp(-1.3 * X) + 0.5 + 0.1 * np.random.default_rng(1).standard_normal(30)


def curve(x, a, b, c):
    return a * jnp.exp(-b * x) + c


@functools.cache
def fitted() -> Fit:
    return fnopt.curve_fit(curve, X, Y)


def test_a_fit_is_scipys_pair_and_its_functions_agree():
    optimize = pytest.importorskip("scipy.optimize")
    fit = fitted()
    popt, pcov = fit
    want, wanted = optimize.curve_fit(lambda x, a, b, c: a * np.exp(-b * x) + c, X, Y)
    np.testing.assert_allclose(popt, want, rtol=1e-4)
    np.testing.assert_allclose(pcov, wanted, rtol=2e-3)
    assert isinstance(fit, tuple)
    assert len(fit) == 2
    assert list(fit.params) == ["a", "b", "c"]
    errors = np.asarray(list(fit.standard_errors.values()))
    np.testing.assert_allclose(errors, np.sqrt(np.diag(wanted)), rtol=1e-3)
    np.testing.assert_array_equal(fnopt.covariance(fit), pcov)
    np.testing.assert_allclose(
        fit.correlations, wanted / errors / errors[:, None], rtol=2e-3, atol=1e-4
    )
    lower, upper = fnopt.confidence_intervals(fit, 0.9)
    half = {name: (upper[name] - lower[name]) / 2 for name in fit.names}
    for name in fit.names:
        np.testing.assert_allclose(half[name], 1.7033 * fit.standard_errors[name], rtol=1e-3)
    np.testing.assert_allclose(fit.residuals, curve(X, *want) - Y, atol=1e-4)
    np.testing.assert_allclose(fit.predict(X[:3]), curve(X[:3], *want), rtol=1e-4)
    band = fit.predict_band(X[:3])
    other = fnopt.predict_band(lambda p: curve(X[:3], p["a"], p["b"], p["c"]), fit)
    np.testing.assert_allclose(band.error, other.error, rtol=1e-6)


def test_the_statistics_are_those_of_the_textbook():
    fit, m, k = fitted(), 30, 3
    chi2 = float(np.sum(np.square(fit.residuals)))
    np.testing.assert_allclose(fit.chi_square, chi2, rtol=1e-5)
    np.testing.assert_allclose(fit.reduced_chi_square, chi2 / (m - k), rtol=1e-5)
    np.testing.assert_allclose(fit.aic, m * np.log(chi2 / m) + 2 * k, rtol=1e-5)
    np.testing.assert_allclose(fit.bic, m * np.log(chi2 / m) + k * np.log(m), rtol=1e-5)
    np.testing.assert_allclose(fit.r_squared, 1 - chi2 / np.sum((Y - Y.mean()) ** 2), rtol=1e-5)
    text = str(fit)
    assert text.startswith("curve fit: converged")
    assert f"R² {float(fit.r_squared):.6g}" in text
    assert "  a  2.564 ± 0.061" in text


def test_the_r_squared_of_weighted_data_is_that_of_weighted_means():
    sigma = np.linspace(0.1, 0.2, 30)
    fit = fnopt.curve_fit(lambda x, a, b: a + b * x, X, Y, sigma=sigma, absolute_sigma=True)
    w = 1 / sigma**2
    mean = np.sum(w * Y) / np.sum(w)
    left = np.sum(w * np.square(fit.residuals))
    np.testing.assert_allclose(fit.r_squared, 1 - left / np.sum(w * (Y - mean) ** 2), rtol=1e-4)
    np.testing.assert_allclose(fit.aic, left + 4, rtol=1e-5)
    errors = list(fnopt.standard_errors(fit).values())
    np.testing.assert_allclose(errors, jnp.sqrt(jnp.diag(fit.pcov)), rtol=1e-6)
    full = fnopt.curve_fit(
        lambda x, a, b: a + b * x, X, Y, sigma=np.diag(sigma**2), absolute_sigma=True
    )
    np.testing.assert_allclose(full.r_squared, fit.r_squared, rtol=1e-4)


def test_a_fit_passes_jit_vmap_and_pickle():
    fit = fitted()
    many = jax.jit(jax.vmap(lambda y: fnopt.curve_fit(curve, X, y)))(np.stack([Y, Y + 1]))
    np.testing.assert_allclose(many.params["c"], float(fit.params["c"]) + np.arange(2), rtol=1e-3)
    assert bool(many.converged.all())
    assert str(many).startswith("Fit(popt=")
    with pytest.raises(ValueError, match=r"chi_square: the fit is a batch of shape \(2,\)"):
        _ = many.aic
    np.testing.assert_allclose(jax.vmap(lambda fit: fit.aic)(many), [fit.aic] * 2, rtol=1e-3)
    again = jax.tree.map(lambda leaf: leaf[0], many)
    np.testing.assert_allclose(again.aic, fit.aic, rtol=1e-3)
    np.testing.assert_allclose(jax.jit(lambda fit: fit.predict(X))(fit), fit.predict(X), rtol=1e-5)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fit)).popt, fit.popt)
    with pytest.raises(AttributeError, match="because a Fit is immutable"):
        fit.popt = 1


PAIR = (jnp.ones(2), jnp.eye(2))


@pytest.mark.parametrize(
    "of",
    [
        fnopt.standard_errors,
        fnopt.covariance,
        fnopt.confidence_intervals,
        fnopt.curves.correlation,
        fnopt.curves.reduced_chi_square,
        lambda fit: fnopt.predict_band(lambda p: p, fit),
        fnopt.curves.profile_intervals,
    ],
)
@pytest.mark.parametrize("given", [PAIR, PAIR[0], X, None])
def test_what_is_no_fit_is_refused_by_what_to_give(of, given):
    with pytest.raises(TypeError, match="expected a result of curve_fit or least_squares"):
        of(given)


@pytest.mark.parametrize(
    ("predict", "text"),
    [
        (lambda p: curve(X, *p), r"TypeError: .*a dict with the keys \['a', 'b', 'c'\].*\*\*p\)"),
        (lambda p: p[0] * X, "KeyError: 0"),
        (lambda p: p["k"] * X, "KeyError: 'k'"),
        (curve, "missing 3 required positional"),
        (lambda p: p, "returned a dict, expected one array"),
        (lambda p: np.exp(p["a"]) * X, r"calls np\.exp; write jnp\.exp"),
        (lambda p: math.exp(p["a"] * X), r"calls math\.exp; write jnp\.exp"),
    ],
)
def test_a_prediction_that_cannot_take_the_params_is_explained(predict, text):
    with pytest.raises(TypeError, match=f"predict_band: predict.*{text}"):
        fnopt.predict_band(predict, fitted())


def test_positions_are_read_as_the_data_are():
    pandas = pytest.importorskip("pandas")
    want = fitted().predict(X[:2])
    for x in (X[:2].tolist(), pandas.Series(X[:2])):
        np.testing.assert_array_equal(fitted().predict(x), want)
        np.testing.assert_array_equal(fitted().predict_band(x).value, want)


@pytest.mark.parametrize(
    ("p0", "text"),
    [
        (lambda: fitted(), r"p0 is a Fit, expected params\. Pass p0=fit\.params"),
        (lambda: fitted().solution, "p0 is a Solution"),
        (lambda: ["1", "2", "3"], "contains text, expected numbers"),
        (lambda: {"a": 1.0, "b": 1.0}, "p0 has 2 numbers, expected 3"),
        (lambda: {"a": 1.0, "b": 1.0, "d": 1.0}, r"keys \['a', 'b', 'd'\].*\(x, a, b, c\)"),
    ],
)
def test_a_start_that_is_none_is_refused(p0, text):
    with pytest.raises((TypeError, ValueError), match=text):
        fnopt.curve_fit(curve, X, Y, p0=p0())


def test_names_of_lmfit_and_uncalled_models_are_explained():
    with pytest.raises(AttributeError, match=r"no attribute 'redchi'; write fit\.reduced_chi_sq"):
        _ = fitted().redchi
    with pytest.raises(AttributeError, match=r"'GaussianModel'\. Did you mean Gaussian\?"):
        _ = fnopt.models.GaussianModel
    with pytest.raises(
        TypeError, match=r"the class Gaussian, expected an instance\. Pass Gaussian\(\)"
    ):
        fnopt.curve_fit(fnopt.models.Gaussian, X, Y)
    with pytest.raises(TypeError, match=r"expected \(\)\. Pass the value in p0: p0="):
        fnopt.fixed(0.5)
    for of in (fnopt.curves.plot_fit, fnopt.curves.profile_intervals):
        with pytest.raises(TypeError, match="Solution of least_squares without data"):
            of(fitted().solution)


def test_a_batch_is_refused_where_one_fit_is_expected():
    fit = fnopt.curve_fit_batch(curve, X, np.stack([Y, Y]), [1.0, 1.0, 1.0])
    with pytest.raises(TypeError, match=r"standard_errors: the fit is a BatchFit.*fit\.errors"):
        fnopt.standard_errors(fit)
    with pytest.raises(
        AttributeError, match=r"a BatchFit has no attribute 'popt'; write fit\.params"
    ):
        _ = fit.popt
    with pytest.raises(TypeError, match="curve_fit_batch: p0 is a Fit, expected params"):
        fnopt.curve_fit_batch(curve, X, np.stack([Y, Y]), fitted())


def test_the_note_on_p0_stands_only_at_faults_of_the_function():
    with pytest.raises(TypeError, match="ftol = '1e-8' is a str") as caught:
        fnopt.curve_fit(curve, X, Y, ftol="1e-8")
    assert not [note for note in getattr(caught.value, "__notes__", []) if "p0" in note]


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"bounds": {"a": (5, 1)}}, "bounds of a are crossed: lower 5"),
        ({"bounds": ([0, 2, 0], [1, 1, 1])}, "curve_fit: bounds of b are crossed"),
        ({"bounds": {"a": (math.nan, 1)}}, "bounds of a are NaN: lower nan and upper 1"),
        ({"p0": [1, 1, 3], "bounds": {"c": (0, 2)}}, r"c starts at 3\.0, outside .*\[0\.0, 2\.0\]"),
        ({"f": lambda x, a, b: a * math.exp(-b * x)}, r"f calls math\.exp; write jnp\.exp"),
    ],
)
def test_crossed_bounds_and_functions_of_math_are_explained(keywords, text):
    with pytest.raises((TypeError, ValueError), match=text):
        fnopt.curve_fit(**{"f": curve, "xdata": X, "ydata": Y, **keywords})


def test_params_bounds_and_constraints_by_name():
    fit = fnopt.curve_fit(curve, X, Y, p0={"a": 1, "b": 1, "c": 0.0}, bounds={"a": (None, 2.4)})
    assert "a  2.400   (at its upper bound)" in str(fit)
    same = fnopt.curve_fit(curve, X, Y, bounds={"a": (None, 2.4)})
    np.testing.assert_allclose(same.popt, fit.popt, rtol=1e-4)
    held = fnopt.curve_fit(
        curve,
        X,
        Y,
        [1.0, 1.0, 0.5],
        constraints={"c": fnopt.fixed(), "b": fnopt.tied(lambda p: p["a"] / 2)},
    )
    np.testing.assert_allclose(held.params["b"], held.params["a"] / 2)
    assert "c  0.5     (fixed)" in str(held)
    with pytest.raises(
        ValueError, match=r"unknown keys \['d'\], expected names of params: \['a', 'b', 'c'"
    ):
        fnopt.curve_fit(curve, X, Y, bounds={"d": (0, 1)})
    with pytest.raises(ValueError, match=r"bounds\['a'\] = 3, expected \(lower, upper\)"):
        fnopt.curve_fit(curve, X, Y, bounds={"a": 3})


def test_profile_intervals_are_those_of_a_scan(x64):
    """Against the chi-square of the fits of the other params, which are linear."""
    t = 2.051830516480  # scipy.stats.t.ppf(0.975, 27)
    fit = fnopt.curve_fit(curve, X, Y)
    lower, upper = fit.profile_intervals()["b"]
    with pytest.raises(ValueError, match="level = 'a', expected a fraction"):
        fit.profile_intervals("a")  # pyright: ignore[reportArgumentType]

    def chi_square(b):  # linear in the other two
        A = np.stack([np.exp(-b * X), np.ones(30)], 1)
        return np.sum(np.square(Y - A @ np.linalg.lstsq(A, Y)[0]))

    limit = float(fit.chi_square) * (1 + t**2 / 27)
    np.testing.assert_allclose([chi_square(lower), chi_square(upper)], limit, rtol=1e-3)
    bounded = fnopt.curve_fit(curve, X, Y, bounds={"b": (1.2, 3.0)}).profile_intervals()["b"]
    np.testing.assert_allclose(bounded, (1.2, upper), rtol=1e-3)


def test_variances_out_of_range_are_warned_of_and_their_roots_are_right():
    """astropy#6269: a mean near 1.6e-19 has a variance that float32 doesn't have."""
    d = 1.6e-19 * (1 + 0.01 * np.random.default_rng(0).standard_normal(24))
    with pytest.warns(OptimizeWarning, match="Use fit.standard_errors, their square roots"):
        fit = fnopt.curve_fit(lambda x, a: a * jnp.ones(24), np.arange(24.0), d, p0=[1e-19])
    np.testing.assert_allclose(fit.standard_errors["a"], np.std(d, ddof=1) / np.sqrt(24), rtol=1e-3)


def test_absolute_sigma_without_sigma_warns():
    with pytest.warns(OptimizeWarning, match="assumes a standard deviation of 1"):
        fnopt.curve_fit(lambda x, a: a * x, X, Y, absolute_sigma=True)


def test_positions_closer_than_float32_are_warned_of():
    """scipy#22568: 600 Hz at 5.99 GHz are one unit in the last place."""
    x = 5.99e9 + 600.0 * np.arange(2000)
    y = np.ones(2000)
    with pytest.warns(
        OptimizeWarning, match=r"conversion to float32 changes xdata.*jax_enable_x64"
    ):
        fnopt.curve_fit(lambda x, a: a + 0 * x, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fnopt.curve_fit(lambda x, a: a + 0 * x, x - x[0], y)


class Experiment:
    def __init__(self, t):
        self.t = t


def test_a_tuple_or_an_object_as_positions():
    y = np.concatenate([2 * X, 2 * X[:4]])
    both = fnopt.curve_fit(lambda x, a: jnp.concatenate([a * x[0], a * x[1]]), (X, X[:4]), y)
    np.testing.assert_allclose(both.popt, 2, rtol=1e-5)
    named = fnopt.curve_fit(lambda x, a: a * x["t"], {"t": X, "what": "decay"}, 2 * X)
    np.testing.assert_allclose(named.predict({"t": 3.0}), 6, rtol=1e-5)
    own = fnopt.curve_fit(lambda x, a: a * x.t, Experiment(jnp.asarray(X)), 2 * X)
    np.testing.assert_allclose(own.popt, 2, rtol=1e-5)


def test_first_mistakes_are_named():
    with pytest.raises(ValueError, match="f returned one number for 30 values of ydata"):
        fnopt.curve_fit(lambda x, a, b: jnp.sum(a * x + b), X, Y)
    with pytest.raises(TypeError, match=r"f is float32\[30\], expected a function f\(x, a, b"):
        fnopt.curve_fit(jnp.asarray(X, jnp.float32), Y, curve)
    with pytest.raises(
        ValueError, match=r"above its upper bound, or only equal.*tuple\(zip\(\*bounds\)\)"
    ):
        fnopt.curve_fit(lambda x, a, b: a + b * x, X, Y, [1.0, 1.0], bounds=[(0, 10), (0, 10)])


def test_counts_by_their_likelihood(x64):
    """Against Newton's iteration of a log-linear Poisson model, whose errors are in closed form."""
    rng = np.random.default_rng(2)
    A = np.stack([np.ones(30), X], 1)
    counts = rng.poisson(np.exp(A @ [1.5, -0.8])).astype(float)  # many zeros
    beta = np.zeros(2)
    for _ in range(30):
        mu = np.exp(A @ beta)
        beta += np.linalg.solve(A.T @ (mu[:, None] * A), A.T @ (counts - mu))
    information = A.T @ (np.exp(A @ beta)[:, None] * A)
    fit = fnopt.curve_fit(
        lambda x, a, b: jnp.exp(a + b * x), X, counts, [0.0, 0.0], likelihood="poisson"
    )
    want = np.linalg.inv(information)  # the fit ends within 1e-3 of a standard error
    assert np.all(np.abs(fit.popt - beta) < 1e-3 * np.sqrt(np.diag(want)))
    np.testing.assert_allclose(fit.pcov, want, rtol=1e-3)
    mu = np.exp(A @ beta)
    deviance = 2 * np.sum(
        mu - counts + np.where(counts > 0, counts * np.log(np.maximum(counts, 1) / mu), 0)
    )
    np.testing.assert_allclose(fit.chi_square, deviance, rtol=1e-6)
    with pytest.raises(ValueError, match="with sigma or loss, expected neither"):
        fnopt.curve_fit(curve, X, counts, sigma=1.0, likelihood="poisson")
    with pytest.raises(ValueError, match="likelihood = 'gamma', expected one of"):
        fnopt.curve_fit(curve, X, counts, likelihood="gamma")
    for wrong in (-3.0, np.nan, np.inf):
        counts[4] = wrong
        with pytest.raises(ValueError, match=r"ydata\[4\] = .*expected finite counts >= 0"):
            fnopt.curve_fit(curve, X, counts, likelihood="poisson", check_finite=False)
    assert np.isnan(deviance_residuals(jnp.ones(2), jnp.asarray([-1.0, 1.0]))[0])


def test_the_mean_of_counts_is_named_where_its_logarithm_fails():
    with pytest.raises(fnopt.curves.FitError, match=r"positive for every positive count"):
        fnopt.curve_fit(
            lambda x, a, b: a * x + b, X, jnp.ones(30), p0=[1.0, -20.0], likelihood="poisson"
        )


def test_params_by_name_unpack_in_the_order_of_the_arguments():
    def line(x, slope, b):
        return slope * x + b

    start = {"b": 1.0, "slope": 1.0}
    want = fnopt.curve_fit(line, X, Y, [1.0, 1.0])
    box = ({"b": -np.inf, "slope": -9.0}, {"b": np.inf, "slope": 9.0})
    for bounds, constraints in ((None, None), (box, None), (None, {"b": fnopt.positive()})):
        fit = fnopt.curve_fit(line, X, Y, start, bounds=bounds, constraints=constraints)
        popt, pcov = fit
        assert fit.names == tuple(fit.params) == tuple(fit.standard_errors) == ("slope", "b")
        np.testing.assert_allclose(popt, want.popt, rtol=1e-3)
        np.testing.assert_allclose(pcov, want.pcov, rtol=1e-2)
        np.testing.assert_allclose(fit.predict(X), line(X, *popt), rtol=1e-5)
        np.testing.assert_array_equal(jax.jit(lambda fit: fit)(fit)[0], popt)
        assert str(fit).index("slope") < str(fit).index(" b ")


def test_a_jacobian_as_scipy_has_them():
    sparse = pytest.importorskip("scipy.sparse")
    A = np.stack([np.ones(30), X], 1)
    want = np.linalg.lstsq(A, Y)[0]
    for made in (sparse.csr_matrix(A), sparse.linalg.aslinearoperator(A)):
        fit = fnopt.curve_fit(lambda x, a, b: a + b * x, X, Y, jac=lambda x, a, b, J=made: J)
        np.testing.assert_allclose(fit.popt, want, rtol=1e-4)


def test_a_profile_interval_ends_at_a_bound_that_rounding_misses(x64):
    assert 1.37 + (0.3 - 1.37) != 0.3
    refit = lambda j, value, point: (abs(value - 1.37) / 2, point)  # noqa: E731
    assert interval_end(refit, 0, jnp.asarray([1.37]), -1.0, 2.0, 0.3) == 0.3
