"""curve_fit against SciPy's, with the same calls."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt import curve_fit
from fnopt.curves import FitError, OptimizeWarning, curve_fit_batch

scipy = pytest.importorskip("scipy.optimize")

RNG = np.random.default_rng(0)
X = np.linspace(0, 4, 50)
Y = 2.5 * np.exp(-1.3 * X) + 0.5 + 0.05 * RNG.standard_normal(50)
SIGMA = RNG.uniform(0.5, 2, 50)
MATRIX = np.diag(SIGMA**2) + 0.1


def decay(np):
    return lambda x, a, b, c: a * np.exp(-b * x) + c


def theirs(*args, **kwargs):
    return scipy.curve_fit(*args, **kwargs, ftol=1e-15, xtol=1e-15, gtol=1e-15)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"p0": [2, 1, 0]},
        {"sigma": SIGMA},
        {"sigma": SIGMA, "absolute_sigma": True},
        {"sigma": MATRIX},
        {"sigma": MATRIX, "absolute_sigma": True},
        {"sigma": 0.3, "absolute_sigma": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_params_and_covariance_agree(options, x64):
    popt, pcov = curve_fit(decay(jnp), X, Y, **options)
    expected, covariance = theirs(decay(np), X, Y, **options)
    np.testing.assert_allclose(popt, expected, rtol=1e-7)
    np.testing.assert_allclose(pcov, covariance, rtol=1e-5)


def test_float32_agrees_to_its_precision():
    popt, pcov = curve_fit(decay(jnp), X, Y)
    expected, covariance = theirs(decay(np), X, Y)
    assert popt.dtype == pcov.dtype == jnp.float32
    np.testing.assert_allclose(popt, expected, rtol=1e-4)
    np.testing.assert_allclose(pcov, covariance, rtol=1e-3)


def test_too_few_data_give_an_infinite_covariance_and_a_warning():
    with pytest.warns(OptimizeWarning, match="covariance of the params could not be estimated"):
        popt, pcov = curve_fit(lambda x, a, b: a * x + b, [0.0, 1.0], [1.0, 3.0])
    np.testing.assert_allclose(popt, [2, 1], rtol=1e-5)
    assert np.all(np.isinf(pcov))
    with pytest.warns(scipy.OptimizeWarning):
        assert np.all(np.isinf(theirs(lambda x, a, b: a * x + b, [0.0, 1.0], [1.0, 3.0])[1]))


def test_params_that_the_data_cannot_tell_apart_warn():
    with pytest.warns(OptimizeWarning, match="rank 1 of 2"):
        _, pcov = curve_fit(lambda x, a, b: (a + b) * x, X, Y)
    assert np.all(np.isinf(pcov))


def test_no_convergence_is_a_runtime_error():
    with pytest.raises(RuntimeError, match=r"optimal parameters not found: .*max_steps.*maxfev"):
        curve_fit(decay(jnp), X, Y, maxfev=3)
    with pytest.raises(RuntimeError, match="not finite at these params"):
        curve_fit(lambda x, a: jnp.log(a) * x, X, Y, p0=[-1.0])


def test_full_output():
    popt, pcov, info, message, ier = curve_fit(decay(jnp), X, Y, full_output=True)
    assert ier in (1, 2, 3, 4)
    assert message.startswith("converged")
    assert info["fvec"].shape == Y.shape
    assert int(info["nfev"]) >= int(info["njev"]) > 1
    np.testing.assert_array_equal(info["solution"].params, popt)
    assert np.all(np.isfinite(pcov))


def test_a_pytree_is_passed_as_one_argument():
    popt, pcov = curve_fit(
        lambda x, p: p["line"][0] * x + p["line"][1] + p["bend"] * x**2,
        X,
        Y,
        {"line": np.zeros(2, np.float32), "bend": 0.0},
    )
    expected = np.polyfit(X, Y, 2)
    np.testing.assert_allclose([popt["bend"], *popt["line"]], expected, rtol=1e-3)
    assert pcov.shape == (3, 3)


def test_works_under_jit_and_vmap():
    ys = np.stack([Y, 2 * Y, np.full_like(Y, np.nan)])

    @jax.jit
    @jax.vmap
    def fit(y):
        popt, _, info, *_ = curve_fit(decay(jnp), X, y, full_output=True)
        return popt, info["solution"].converged

    popt, converged = fit(ys)
    one, _ = curve_fit(decay(jnp), X, Y)
    np.testing.assert_allclose(popt[0], one, rtol=1e-4)
    np.testing.assert_allclose(popt[1], np.asarray(one) * [2, 1, 2], rtol=1e-4)
    assert np.all(np.isfinite(popt))
    assert list(converged) == [True, True, False]


def test_starts_from_ones_as_many_as_the_signature_says():
    popt, _ = curve_fit(lambda x, a, b=2.0: a * x + b, X, 3 * X + 1)
    np.testing.assert_allclose(popt, [3, 1], rtol=1e-4)
    constant, _ = curve_fit(lambda x, a: a, X, Y)  # broadcasts, as in SciPy
    np.testing.assert_allclose(constant, Y.mean(), rtol=1e-5)


BAD = [
    (
        {"ydata": Y[:-1]},
        ValueError,
        r"shape \(50,\).*expected the shape of ydata, \(49,\).*same length",
    ),
    ({"p0": [1.0, 2.0]}, ValueError, r"p0 has 2 numbers, expected 3, one for each param"),
    ({"p0": []}, ValueError, r"p0 has 0 numbers, expected 3"),
    ({"p0": "abc"}, TypeError, r"p0 = 'abc' contains text"),
    ({"xdata": [], "ydata": []}, ValueError, r"ydata are empty"),
    ({"ydata": np.where(X > 3, np.nan, Y)}, ValueError, r"ydata contain 13 NaN or infinite"),
    ({"xdata": np.where(X > 3, np.inf, X)}, ValueError, r"xdata contain 13 NaN or infinite"),
    ({"sigma": SIGMA[:4]}, ValueError, r"sigma has shape \(4,\), expected shape \(\) or \(50,\)"),
    (
        {"sigma": -SIGMA},
        ValueError,
        r"sigma\[0\] is -\d.*, expected a standard dev",
    ),
    ({"sigma": -MATRIX}, ValueError, r"matrix sigma is not positive definite"),
    ({"maxfev": 1e4}, TypeError, r"maxfev is 10000.0, expected an int"),
    ({"f": 3}, TypeError, r"f is 3, expected a function"),
    ({"f": lambda x, *p: x}, ValueError, r"doesn't define the number of params.*Pass p0"),
    ({"f": lambda x: x}, ValueError, r"doesn't define the number of params"),
    ({"f": lambda x, a: (a, a)}, ValueError, r"f returned shape \(2,\).* same length"),
    ({"f": lambda x, a: None}, TypeError, r"f returned None.* Is there a return"),
    (
        {"f": lambda x, a: a * x[:, None]},
        ValueError,
        r"f returned shape .*Ravel both the returned array and ydata",
    ),
    ({"xdata": np.arange(50).astype("M8[s]")}, TypeError, r"xdata are datetime64.*timedelta64"),
    ({"xdata": ["one"] * 50}, TypeError, r"xdata contain entries that aren't numbers .*'one'"),
]


@pytest.mark.parametrize(("change", "error", "text"), BAD)
def test_bad_input_is_refused_by_name(change, error, text):
    with pytest.raises(error, match=text):
        curve_fit(**{"f": decay(jnp), "xdata": X, "ydata": Y, **change})


# What SciPy's own tests of curve_fit ask for, written anew: of its 27 tests, 21 are here or above.
# Not here: what asks how often f is called or with which params (a traced function is called
# once), MINPACK's own arrays in infodict (fjac, ipvt, qtf), two on data that only exist there, and
# two in which we differ on purpose: params that are determined keep their errors where others
# aren't (SciPy: all infinite), and NaN with check_finite=False is an error, not a result.


class Model:
    """Methods can be fitted: what is bound isn't counted as a param."""

    def line(self, x, a, b):
        return a * x + b

    @classmethod
    def shared(cls, x, a, b):
        return a * x + b

    def __call__(self, x, a, b):
        return a * x + b


LINE = 3 * X + 1 + 0.1 * np.cos(7 * X)


@pytest.mark.parametrize("f", [Model().line, Model.shared, Model()], ids=["bound", "class", "call"])
def test_methods_are_functions_too(f):
    popt, _ = curve_fit(f, X, LINE)
    np.testing.assert_allclose(popt, np.polyfit(X, LINE, 1), rtol=1e-4)


def test_the_order_of_params_is_that_of_the_signature():
    popt, pcov = curve_fit(lambda x, a, b: b * x**a, X[1:], 2 * X[1:] ** 1.5)
    again, swapped = curve_fit(lambda x, b, a: b * x**a, X[1:], 2 * X[1:] ** 1.5)
    np.testing.assert_allclose(popt, [1.5, 2], rtol=1e-4)
    np.testing.assert_allclose(again, popt[::-1], rtol=1e-4)
    assert pcov.shape == swapped.shape == (2, 2)


def test_lists_are_as_good_as_arrays():
    popt, _ = curve_fit(Model(), X.tolist(), LINE.tolist(), sigma=SIGMA.tolist())
    same, _ = curve_fit(Model(), X, LINE, sigma=SIGMA)
    np.testing.assert_array_equal(popt, same)


def test_x_may_be_nothing_or_anything():
    steps = jnp.arange(10.0)
    popt, _ = curve_fit(lambda _, a: a * steps, None, 2 * np.arange(10.0))
    np.testing.assert_allclose(popt, [2], rtol=1e-5)
    both = np.stack([X, X**2])
    popt, _ = curve_fit(lambda x, a, b: a * x[0] + b * x[1], both, 2 * X - X**2)
    np.testing.assert_allclose(popt, [2, -1], rtol=1e-4)


def test_zero_as_data_stands_for_all_of_them():
    def off(x, a, b):
        return a * x + b - jnp.asarray(LINE, x.dtype)

    popt, pcov = curve_fit(off, X, 0)
    same, covariance = curve_fit(Model(), X, LINE)
    np.testing.assert_allclose(popt, same, rtol=1e-4)
    np.testing.assert_allclose(pcov, covariance, rtol=1e-3)


def test_fewer_data_than_params_are_refused_at_once():
    with pytest.raises(TypeError, match=r"fewer data than params \(2 < 3\)"):
        curve_fit(decay(jnp), X[:2], Y[:2])
    with pytest.raises(TypeError):
        scipy.curve_fit(decay(np), X[:2], Y[:2])
    with pytest.warns(OptimizeWarning, match="rank 2 of 3"):
        _, pcov = curve_fit(lambda x, a, b, c: a + b * x + c * x**2, X[:2], Y[:2], method="trf")
    assert np.all(np.isinf(pcov))


def test_determined_params_keep_their_errors():
    with pytest.warns(OptimizeWarning, match="rank 1 of 2"):
        _, pcov, info, *_ = curve_fit(lambda x, a, b: a * x, X, Y, full_output=True)
    _, alone = curve_fit(lambda x, a: a * x, X, Y)
    freedom = int(info["solution"].dof)
    np.testing.assert_allclose(pcov[0, 0] * freedom, alone[0, 0] * 49, rtol=2e-3)
    assert np.all(np.isinf(np.asarray(pcov)[[0, 1, 1], [1, 0, 1]]))


@pytest.mark.parametrize("bounds", [(0, np.inf), (-np.inf, 0.8), ([0, -1], [9, 0.5])])
def test_a_start_of_its_own_within_bounds(bounds, x64):
    def f(np):
        return lambda x, a, b: a * np.exp(-b * x)

    popt, _ = curve_fit(f(jnp), X, Y, bounds=bounds)
    expected, _ = scipy.curve_fit(f(np), X, Y, bounds=bounds)
    np.testing.assert_allclose(popt, expected, rtol=1e-4)


def test_keywords_of_its_solvers(capsys):
    wanted, _ = curve_fit(Model(), X, LINE)
    options = {"x_scale": "jac", "diff_step": 1e-3, "epsfcn": 1e-8, "verbose": 1, "factor": 1.0}
    popt, _ = curve_fit(Model(), X, LINE, method="trf", ftol=1e-9, max_nfev=50, **options)
    np.testing.assert_allclose(popt, wanted, rtol=1e-5)
    assert "least squares: converged" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"`args` isn't supported\. Bind the arguments"):
        curve_fit(Model(), X, LINE, args=(1,))
    with pytest.raises(TypeError, match=r"unexpected keyword 'tolerance'\. Expected"):
        curve_fit(Model(), X, LINE, tolerance=1)
    with pytest.raises(ValueError, match="col_deriv = True, expected 0 and a jac"):
        curve_fit(Model(), X, LINE, col_deriv=True)
    infinite = np.full(2, np.inf)
    curve_fit(Model(), X, LINE, method="lm", bounds=(-infinite, infinite))


def test_a_failure_carries_what_was_found():
    with pytest.raises(FitError) as caught:
        curve_fit(decay(jnp), X, Y, maxfev=3)
    error = caught.value
    assert error.popt.shape == (3,)
    assert error.pcov.shape == (3, 3)
    assert float(error.solution.cost) < 0.5 * np.sum((np.exp(-X) + 1 - Y) ** 2)


def numpy_model(x, a, b):
    return a * np.exp(-b * x)


def branching(x, a, b):
    return a * x if a > 0 else b * x


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (numpy_model, r"f calls np.exp; write jnp.exp, because f gets .*: .return a \* np.exp"),
        (branching, r"f branches in Python on the value of an array; write jnp.where"),
    ],
)
def test_a_model_that_is_not_written_for_jax_is_told_the_line(f, text):
    with pytest.raises(TypeError, match=text):
        curve_fit(f, X, Y)
    with pytest.raises(TypeError, match="curve_fit_batch: " + text):
        curve_fit_batch(f, X, np.stack([Y, Y]), (1.0, 1.0))
