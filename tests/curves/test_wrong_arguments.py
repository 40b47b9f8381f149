"""Wrong or unusual arguments of a curve fit, and how the messages name them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.curves import FitError

X = np.linspace(0.0, 5.0, 12)
Y = 2 * X + 1 + 0.3 * np.cos(7 * X)


def line(x, a, b):
    return a * x + b


CALLS = [
    ({"bounds": ("a", "b")}, TypeError, "bounds contains 'a', expected real numbers"),
    ({"bounds": (["a", 0], ["b", 1])}, TypeError, "bounds contains 'a', expected real numbers"),
    ({"bounds": {"a": (0, 1j)}}, TypeError, "bounds contains 1j, expected real numbers"),
    ({"sigma": 1 + 0j}, TypeError, "sigma contains .*, expected real numbers"),
    ({"sigma": [X, X[:4]]}, ValueError, "sigma are 2 arrays of different shapes"),
    ({"ydata": [[1, 2], [1, [2]]]}, ValueError, "ydata are 2 arrays of different shapes"),
    (
        {"sigma": np.diag([1.0] * 3 + [np.inf] + [1.0] * 8)},
        ValueError,
        r"sigma\[3, 3\] is inf, expected finite",
    ),
    ({"loss": "huber", "f_scale": np.ones(3)}, ValueError, r"scale has shape \(3,\)"),
    ({"p0": [np.nan, 1.0]}, FitError, r"The initial guess p0 is \[nan  1\.\], expected finite"),
    ({"f": lambda x, a, b: (a * x, b)}, TypeError, r"a tuple of \['float32\[12\]', 'float32\[\]'"),
    ({"f": lambda x, a: [a * x, "unit"]}, TypeError, r"a list of \['float32\[12\]', 'str'\], exp"),
]


@pytest.mark.parametrize(("change", "error", "text"), CALLS)
def test_a_wrong_argument_is_named(change, error, text):
    with pytest.raises(error, match=text):
        fnopt.curve_fit(**{"f": line, "xdata": X, "ydata": Y} | change)


def test_nested_lists_of_traced_data():
    lists = jax.jit(lambda y: fnopt.curve_fit(lambda x, a: a * x, X[:4].reshape(2, 2), y).popt)
    y = [[float(v) for v in row] for row in 2 * X[:4].reshape(2, 2)]
    np.testing.assert_allclose(lists(y), [2.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("bounds", "equal"),
    [
        (([0, None], [None, 0.5]), ([0, -np.inf], [np.inf, 0.5])),
        ((None, [1.5, None]), (-np.inf, [1.5, np.inf])),
        (([2.5, None], None), ([2.5, -np.inf], np.inf)),
    ],
)
def test_none_is_an_infinite_bound(bounds, equal):
    popt = fnopt.curve_fit(line, X, Y, bounds=bounds)[0]
    np.testing.assert_array_equal(popt, fnopt.curve_fit(line, X, Y, bounds=equal)[0])
    solution = fnopt.least_squares(lambda p: line(X, *p) - Y, popt, bounds=bounds)
    np.testing.assert_allclose(solution.params, popt, rtol=1e-5)


def test_a_fit_evaluates_params_in_both_forms():
    fit = fnopt.curve_fit(line, X, Y)
    for params in (fit.popt, fit.params, [float(v) for v in fit.popt]):
        np.testing.assert_allclose(fit.evaluate(params, X), fit.predict(X), rtol=1e-6)
    for params in ([1.0], {"a": 1.0}, {"a": 1.0, "c": 2.0}):
        with pytest.raises(
            ValueError, match=r"expected a dict with the keys \['a', 'b'\], or as many"
        ):
            fit.evaluate(params, X)


RESULTS = {
    "curve_fit": lambda y: fnopt.curve_fit(line, X, y),
    "curve_fit_batch": lambda y: fnopt.curve_fit_batch(line, X, y[None], (1.0, 1.0)),
    "least_squares": lambda y: fnopt.least_squares(lambda p: p - y[:2], jnp.ones(2)),
    "minimize": lambda y: fnopt.minimize(lambda p: jnp.sum((p - y[:2]) ** 2), jnp.ones(2)),
    "root": lambda y: fnopt.root(lambda p: p - y[:2], jnp.ones(2)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_message_inside_jit_names_the_status(name):
    with pytest.raises(TypeError, match=r"status is traced.*`status` and `converged`"):
        jax.jit(lambda y: RESULTS[name](y).message)(jnp.asarray(Y, jnp.float32))
