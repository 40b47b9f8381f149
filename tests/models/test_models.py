"""Ready-made models against SciPy's functions, their guesses against the truth."""

from __future__ import annotations

import functools
import operator
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from benchmarks.problems import nist
from fnopt import models

special = pytest.importorskip("scipy.special")
stats = pytest.importorskip("scipy.stats")
X = np.linspace(0.1, 12.0, 60)


def pseudo_voigt(x, area, center, sigma, fraction):
    gaussian = stats.norm.pdf(x, center, sigma / np.sqrt(2 * np.log(2)))
    return area * ((1 - fraction) * gaussian + fraction * stats.cauchy.pdf(x, center, sigma))


# The model, the truth, and the function by SciPy.
CASES = {
    "Gaussian": ((4.0, 5.0, 0.8), lambda x, a, c, s: a * stats.norm.pdf(x, c, s)),
    "Lorentzian": ((4.0, 5.0, 0.8), lambda x, a, c, s: a * stats.cauchy.pdf(x, c, s)),
    "Voigt": ((4.0, 5.0, 0.6, 0.6), lambda x, a, c, s, g: a * special.voigt_profile(x - c, s, g)),
    "PseudoVoigt": ((4.0, 5.0, 0.8, 0.5), pseudo_voigt),
    "Constant": ((3.0,), lambda x, c: np.full(x.shape, c)),
    "Linear": ((2.0, -1.0), lambda x, a, b: a * x + b),
    "Polynomial": ((2.0, -1.0), lambda x, *c: np.polyval(c[::-1], x)),
    "Exponential": ((3.0, 4.0), lambda x, a, t: a * np.exp(-x / t)),
    "PowerLaw": ((3.0, -1.5), lambda x, a, k: a * x**k),
    "Step": ((3.0, 5.0, 1.5), lambda x, a, c, s: a * stats.norm.cdf(x, c, s / np.sqrt(2))),
    "Logistic": ((3.0, 5.0, 1.5), lambda x, a, c, s: a * stats.logistic.cdf(x, c, s)),
    "DampedOscillation": (
        (2.0, 6.0, 3.0, 0.5),
        lambda x, a, t, w, p: a * np.exp(-x / t) * np.sin(w * x + p),
    ),
    "MichaelisMenten": ((3.0, 2.0), lambda x, v, k: v * x / (k + x)),
    "Hill": ((3.0, 4.0, 2.0), lambda x, v, k, n: v * x**n / (k**n + x**n)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_scipy_and_the_guess_is_near(name):
    model, (truth, fn) = getattr(models, name)("m_"), CASES[name]
    y = fn(X, *truth)
    by_name = dict(zip(model.names, truth, strict=True))
    x = jnp.asarray(X, jnp.float32)
    np.testing.assert_allclose(model(x, *truth), y, rtol=2e-4, atol=1e-5)
    np.testing.assert_array_equal(model(x, **by_name), model(x, by_name))
    for found, true in zip(model.guess(X, y).values(), truth, strict=True):
        assert abs(found - true) <= 0.5 * max(abs(true), 1)


def test_the_faddeeva_function_is_scipys(x64):
    x = np.linspace(-30, 30, 401)
    for y in (0.0, 0.01, 1.0, 20.0):
        want = special.wofz(x + 1j * y).real
        np.testing.assert_allclose(models.faddeeva(x, np.full_like(x, y)), want, atol=1e-13)


@pytest.mark.skipif(nist.folder() is None, reason=nist.WHERE)
def test_gauss2_of_nist_without_a_start(x64):
    """lmfit's example: two overlapping Gaussians on a decay, here by the model's own guess."""
    problem = nist.load("Gauss2")
    model = models.Exponential("e_") + models.Gaussian("a_") + models.Gaussian("b_")
    fit = fnopt.curve_fit(model, problem.x, problem.y)
    b = np.asarray(problem.certified)
    want = {"e_amplitude": b[0], "e_decay": 1 / b[1]}
    for prefix, (height, center, width) in {"a_": b[2:5], "b_": b[5:8]}.items():
        want |= {
            f"{prefix}amplitude": height * width * np.sqrt(np.pi),
            f"{prefix}center": center,
            f"{prefix}sigma": width / np.sqrt(2),
        }
    for name, value in want.items():
        np.testing.assert_allclose(fit.params[name], value, rtol=1e-6)
    # lmfit 1.3.4 with the same models.
    np.testing.assert_allclose(fit.aic, 417.864631, rtol=1e-8)
    np.testing.assert_allclose(fit.bic, 446.036318, rtol=1e-8)
    np.testing.assert_allclose(fit.r_squared, 0.99648654, rtol=1e-7)
    np.testing.assert_allclose(fit.standard_errors["b_sigma"], 0.18680143, rtol=1e-4)
    parts = model.components(problem.x, fit.params)
    np.testing.assert_allclose(sum(parts.values()), fit.predict(problem.x), rtol=1e-12)
    assert list(parts) == ["e_", "a_", "b_"]


def test_the_sum_of_a_list_of_models():
    peaks = [models.Gaussian(f"{i}_") for i in "ab"]
    assert sum(peaks) == peaks[0] + peaks[1]


def test_bounds_ties_and_a_changed_start_by_name():
    rng = np.random.default_rng(0)
    y = 4 * special.voigt_profile(X - 5, 0.6, 0.6) + 0.2 * X + 0.01 * rng.standard_normal(60)
    model = models.Voigt("v_") + models.Linear()
    fit = fnopt.curve_fit(
        model,
        X,
        y,
        p0={"slope": 0.3},
        bounds={"v_center": (4.0, 6.0)},
        constraints={"v_gamma": fnopt.tied(lambda p: p["v_sigma"])},
    )
    np.testing.assert_allclose(fit.params["v_gamma"], fit.params["v_sigma"])
    for name, true in {"v_amplitude": 4, "v_center": 5, "v_sigma": 0.6, "slope": 0.2}.items():
        assert abs(fit.params[name] - true) < 4 * fit.standard_errors[name]
    assert fit.standard_errors["v_sigma"] < 0.02


def test_data_sets_share_params():
    x = (np.linspace(0, 5, 12), np.linspace(0, 9, 9))
    y = np.concatenate([3 * np.exp(-x[0] / 2), 7 * np.exp(-x[1] / 2)])
    many = models.Datasets(models.Exponential(), 2, ["decay"])
    assert many.names == ("amplitude_0", "decay", "amplitude_1")
    fit = fnopt.curve_fit(many, x, y)
    want = {"amplitude_0": 3.0, "amplitude_1": 7.0, "decay": 2.0}
    for name, value in want.items():
        np.testing.assert_allclose(fit.params[name], value, rtol=1e-4)
    assert models.Datasets(models.Gaussian(), 2, ["center"]).bounds == {
        "sigma_0": (0.0, None),
        "sigma_1": (0.0, None),
    }
    assert many == models.Datasets(models.Exponential(), 2, shared="decay")
    np.testing.assert_allclose(fnopt.curve_fit(many, list(x), y).popt, fit.popt)
    with pytest.raises(ValueError, match=r"2 arrays of different shapes.*jnp.concatenate"):
        fnopt.curve_fit(many, x, [y[:12], y[12:]])
    for ydata, shape in ((np.stack([y, y]), r"\(2, \d+\)"), (y[:12], r"\(12,\)")):
        with pytest.raises(ValueError, match=rf"ydata have shape {shape}, expected \({y.size},\)"):
            fnopt.curve_fit(many, x, ydata)
    for wrong, text in ((x[0], "has 12 entries"), (x[:1], "has 1 entry"), (1.0, "is one number")):
        with pytest.raises(ValueError, match=f"xdata {text}, expected a tuple of 2"):
            fnopt.curve_fit(many, wrong, y)
    with pytest.raises(ValueError, match=r"shared = \['rate'\], expected some of \('ampl"):
        models.Datasets(models.Exponential(), 2, ["rate"])


def test_a_model_unpacks_as_the_pair_of_scipy():
    rng = np.random.default_rng(0)
    y = 2 * X + 1 + 0.1 * rng.standard_normal(60)
    model = models.Linear()
    popt, pcov = fnopt.curve_fit(model, X, y)
    want, covariance = np.polyfit(X, y, 1, cov=True)
    np.testing.assert_allclose(popt, want, rtol=1e-4)
    np.testing.assert_allclose(pcov, covariance, rtol=1e-3)
    np.testing.assert_allclose(model(X, *popt), np.polyval(want, X), rtol=1e-4)


@pytest.mark.parametrize("model", [models.Linear(), models.Constant() + models.Gaussian()])
def test_a_guess_from_counts_is_positive(model, x64):
    counts = np.random.default_rng(3).poisson(0.05 * X).astype(float)
    counts[:20] = np.eye(20)[0]  # the first keeps the maximum off the bound of a mean of 0
    assert np.min(model(X, model.guess(X, counts))) <= 0
    fit = fnopt.curve_fit(model, X, counts, likelihood="poisson", maxfev=400)
    # At the maximum of the likelihood the means of a model with a constant sum to the counts.
    np.testing.assert_allclose(np.sum(fit.predict(X)), np.sum(counts), rtol=1e-3)


def test_a_model_is_a_value():
    model = models.Gaussian("a_") + models.Linear("b_")
    assert model == models.Gaussian("a_") + models.Linear("b_")
    assert model != models.Gaussian("a_") + models.Linear("c_")
    assert pickle.loads(pickle.dumps(model)) == model
    assert hash(model) == hash(pickle.loads(pickle.dumps(model)))
    assert "prefix='a_'" in repr(model)
    assert model.bounds == {"a_sigma": (0.0, None)}
    start = jax.jit(model.guess)(X, CASES["Gaussian"][1](X, 4.0, 5.0, 0.8))
    assert abs(start["a_center"] - 5) < 0.2
    product = models.model(lambda x, k: jnp.cos(k * x)) * models.Exponential()
    x = jnp.asarray([0.5, 1.0])
    np.testing.assert_allclose(
        product(x, k=2.0, amplitude=3.0, decay=4.0),
        3 * np.cos(2 * x) * np.exp(-x / 4),
        rtol=1e-5,
    )


@pytest.mark.parametrize("name", ["PowerLaw", "Hill"])
def test_derivatives_at_zero_are_finite(name):
    truth = CASES[name][0]
    J = jax.jacobian(lambda p: getattr(models, name)()(jnp.asarray([0.0, 1.0]), *p))(
        jnp.asarray(truth)
    )
    assert jnp.all(jnp.isfinite(J))


def test_mistakes_are_named():
    peak = models.Gaussian()
    with pytest.raises(
        ValueError, match=r"the params \['amplitude', 'center', 'sigma'\], expected"
    ):
        peak + peak
    with pytest.raises(TypeError, match=r"1\.0 can't be combined with a model"):
        peak + 1.0
    with pytest.raises(TypeError, match="2 can't be combined with a model"):
        2 * peak
    with pytest.raises(
        AttributeError, match=r"a model has no attribute 'fit'; write fnopt\.curve_fit"
    ):
        peak.fit(X, X)
    with pytest.raises(ValueError, match=r"x has shape \(60,\) and y has shape \(59,\)"):
        fnopt.curve_fit(peak, X, X[1:])
    with pytest.raises(TypeError, match=r"got 2 numbers, expected the params \['amplitude', "):
        peak(X, 1.0, 2.0)
    with pytest.raises(TypeError, match=r"got \['height'\], expected"):
        peak(X, height=1.0)
    with pytest.raises(ValueError, match="can't guess initial values, expected p0"):
        fnopt.curve_fit(models.model(lambda x, a: a * x), X, X)
    with pytest.raises(
        ValueError, match=r"unknown keys \['mean'\], expected names of params: \['amplitude'"
    ):
        fnopt.curve_fit(peak, X, X, p0={"mean": 1.0})


def test_many_terms():
    total = functools.reduce(operator.add, [models.Gaussian(f"p{i}_") for i in range(5)])
    assert len(total.names) == 15
    assert len(total.parts()) == 5
