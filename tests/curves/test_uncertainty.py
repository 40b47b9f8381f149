import functools

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

LEVELS, DOF = np.asarray([0.5, 0.95, 0.999])[:, None], np.asarray([1, 2, 7, 40, 1000])


def test_t_quantiles_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    want = stats.t.ppf(0.5 + LEVELS / 2, DOF)
    # 1 - 0.999 has four digits in float32.
    np.testing.assert_allclose(fnopt.curves.t_quantile(LEVELS, DOF), want, rtol=2e-3)
    np.testing.assert_allclose(fnopt.curves.t_quantile(LEVELS, DOF)[:2], want[:2], rtol=3e-4)


def test_t_quantiles_in_float64(x64):
    stats = pytest.importorskip("scipy.stats")
    want = stats.t.ppf(0.5 + LEVELS / 2, DOF)
    np.testing.assert_allclose(fnopt.curves.t_quantile(LEVELS, DOF), want, rtol=1e-10)
    np.testing.assert_allclose(
        fnopt.curves.t_quantile(0.95, jnp.inf), stats.norm.ppf(0.975), rtol=1e-12
    )


def test_a_straight_line_has_the_intervals_of_the_textbook(x64):
    stats = pytest.importorskip("scipy.stats")
    x = np.arange(10.0)
    y = 2 + 0.5 * x + 0.3 * np.cos(5 * x)
    want = stats.linregress(x, y)
    fit = fnopt.least_squares(lambda p: p["a"] + p["b"] * x - y, {"a": 0.0, "b": 0.0})
    t = stats.t.ppf(0.95, 8)
    lower, upper = fnopt.confidence_intervals(fit, 0.9)
    np.testing.assert_allclose(upper["b"] - lower["b"], 2 * t * want.stderr, rtol=1e-8)
    np.testing.assert_allclose(upper["a"] + lower["a"], 2 * want.intercept, rtol=1e-8)
    s2 = np.sum((want.intercept + want.slope * x - y) ** 2) / 8
    np.testing.assert_allclose(fnopt.curves.reduced_chi_square(fit), s2, rtol=1e-10)
    new = np.asarray([4.5, 20.0])
    leverage = 1 / 10 + (new - 4.5) ** 2 / np.sum((x - 4.5) ** 2)
    for noise, square in [(False, leverage), (True, 1 + leverage), (0.5, leverage + 0.25 / s2)]:
        band = fnopt.predict_band(lambda p: p["a"] + p["b"] * new, fit, 0.9, noise=noise)
        np.testing.assert_allclose(band.error, np.sqrt(s2 * square), rtol=1e-8)
        np.testing.assert_allclose(band.upper - band.value, t * band.error, rtol=1e-8)
    corr = -np.sum(x) / np.sqrt(10 * np.sum(x**2))
    np.testing.assert_allclose(fnopt.curves.correlation(fit), [[1, corr], [corr, 1]], rtol=1e-8)


@pytest.mark.parametrize("options", [{"sigma": 0.1}, {"likelihood": "poisson"}])
def test_the_noise_of_unequal_data_must_be_given(options):
    x = np.arange(1.0, 9.0)
    fit = fnopt.curve_fit(lambda x, a: a * x, x, 2 * x, [1.0], **options)
    with pytest.raises(ValueError, match="Pass noise=sigma at the new points"):
        fit.predict_band(2.0, noise=True)


def test_what_is_not_determined_has_infinite_intervals():
    fit = fnopt.least_squares(
        lambda p: (p["a"] + p["b"]) * jnp.arange(3.0) - 1, {"a": 1.0, "b": 1.0}
    )
    lower, upper = fnopt.confidence_intervals(fit)
    assert float(upper["a"]) == np.inf
    assert float(lower["b"]) == -np.inf
    assert np.all(np.isnan(fnopt.curves.correlation(fit)))
    assert np.all(np.isinf(fnopt.predict_band(lambda p: p["a"] * jnp.ones(2), fit).error))


X = jnp.arange(8.0)


@functools.cache
def fitted(unit, of_residuals):
    """A line, whose data or whose residuals are in a unit; one compilation for all."""

    def residuals(p, data, factor):
        return factor * (p["a"] + p["b"] * X - data)

    data = (2 + 3 * X + jnp.cos(9 * X)) * (1 if of_residuals else unit)
    factor = jnp.float32(unit if of_residuals else 1)
    start = {"a": jnp.float32(0), "b": jnp.float32(1 if of_residuals else unit)}
    return fnopt.least_squares(residuals, start, args=(data, factor))


@pytest.mark.parametrize("of_residuals", [False, True])
@pytest.mark.parametrize("unit", [1e-30, 1e-24, 1e20, 1e30])
def test_errors_are_right_in_any_unit_though_their_squares_are_out_of_range(unit, of_residuals):
    # In float32: of C itself there may be nothing to be had.
    plain, fit = fitted(1.0, False), fitted(unit, of_residuals)
    size = 1 if of_residuals else unit
    for known, of_unit in (
        (lambda fit: fnopt.standard_errors(fit)["b"], size),
        (lambda fit: fnopt.confidence_intervals(fit)[1]["a"], size),
        (fnopt.curves.correlation, 1),
        (lambda fit: fnopt.predict_band(lambda p: p["a"] + p["b"] * 9, fit).error, size),
    ):
        np.testing.assert_allclose(known(fit) / of_unit, known(plain), rtol=1e-3)
    band = fnopt.predict_band(lambda p: p["a"] + p["b"] * 9, fit, noise=True)
    spread = fnopt.predict_band(lambda p: p["a"] + p["b"] * 9, plain, noise=True)
    if not of_residuals:
        np.testing.assert_allclose(band.error / unit, spread.error, rtol=1e-3)
    text = str(fit)
    assert "half the sum of 8 squares" in text
    assert "± 0\n" not in text
    assert "6 degrees of freedom" in text
    if of_residuals:
        assert text.splitlines()[-2:] == str(plain).splitlines()[-2:]
        np.testing.assert_allclose(fnopt.covariance(fit), fnopt.covariance(plain), rtol=1e-3)


@pytest.mark.parametrize("unit", [1e-170, 1e200])
def test_errors_are_right_where_squares_leave_the_range_of_float64(x64, unit):
    def errors(unit):
        x = np.arange(8.0)
        data = unit * (2 + 3 * x + np.cos(9 * x))
        start = {"a": 0.0, "b": unit}
        fit = fnopt.least_squares(lambda p, y: p["a"] + p["b"] * x - y, start, args=(data,))
        return np.asarray(list(fnopt.standard_errors(fit).values())) / unit

    np.testing.assert_allclose(errors(unit), errors(1.0), rtol=1e-9)


def test_a_level_in_percent_is_refused():
    fit = fnopt.least_squares(lambda p: p - jnp.arange(3.0), 0.0)
    with pytest.raises(ValueError, match=r"level = 95, expected a fraction"):
        fnopt.confidence_intervals(fit, 95)


def test_a_prediction_comes_before_the_solution():
    with pytest.raises(TypeError, match="predict is Solution, expected a function of the params"):
        fnopt.predict_band(fnopt.solvers.Solution(*[None] * 10), lambda p: p)


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (3, "covariance: of is int, expected a function of the params"),
        (lambda p: {"a": p[0]}, "covariance: of returned a dict, expected one array"),
        (lambda p: p["a"], r"covariance: of\(params\) raised TypeError"),
    ],
)
def test_errors_of_a_function_of_the_params_name_covariance(of, text):
    fit = fnopt.least_squares(lambda p: p - jnp.arange(3.0), jnp.zeros(1))
    with pytest.raises(TypeError, match=text) as caught:
        fnopt.covariance(fit, of=of)
    assert "predict" not in str(caught.value)
