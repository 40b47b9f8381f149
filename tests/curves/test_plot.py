from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.curves import plot_fit
from fnopt.models import Datasets, Linear

pytest.importorskip("matplotlib")
X = jnp.linspace(0.0, 3.0, 12)
SIGMA = jnp.full(12, 0.1)
Y = 2 * jnp.exp(-X) + 0.1 * jnp.cos(40 * X)


def decay(x, a, k):
    return a * jnp.exp(-k * x)


@pytest.fixture(autouse=True)
def _no_window():
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.mark.parametrize("absolute", [False, True])
def test_the_band_is_that_of_predict_band(absolute):
    fit = fnopt.curve_fit(decay, X, Y, [1.0, 1.0], SIGMA, absolute)
    above, below = fit.plot()
    grid, drawn = above.get_lines()[0].get_data()
    solution = fnopt.least_squares(lambda p: (decay(X, *p) - Y) / SIGMA, jnp.ones(2))
    band = fnopt.predict_band(
        lambda p: decay(jnp.asarray(grid), *p), solution, absolute_sigma=absolute
    )
    np.testing.assert_allclose(drawn, band.value, rtol=1e-4, atol=1e-5)
    corners = above.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(corners[:, 1].max(), band.upper.max(), rtol=1e-3)
    np.testing.assert_allclose(corners[:, 1].min(), band.lower.min(), rtol=1e-3)
    left = below.get_lines()[0].get_ydata()
    np.testing.assert_allclose(left, (Y - decay(X, *fit.popt)) / SIGMA, rtol=1e-4, atol=1e-4)


def test_no_covariance_no_band():
    with pytest.warns(
        fnopt.curves.OptimizeWarning, match="no degrees of freedom with 2 data points and 2 params"
    ):
        fit = fnopt.curve_fit(lambda x, a, b: a + b * x, X[:2], Y[:2])
    above, _ = plot_fit(fit)
    assert not [c for c in above.collections if c.get_label().endswith("band")]


def test_axes_of_ones_own_and_a_model_without_x():
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(2)
    got = plot_fit(fnopt.curve_fit(lambda x, c: c, X, Y), axes=axes)
    assert got[0] is axes[0]
    assert got[1] is axes[1]


def test_mistakes_are_named():
    fit = fnopt.curve_fit(decay, X, Y, [1.0, 1.0])
    with pytest.raises(ValueError, match="level = 95, expected a fraction"):
        plot_fit(fit, level=95)
    with pytest.raises(TypeError, match="the fit is a tuple, expected a result of curve_fit"):
        plot_fit(tuple(fit))
    with pytest.raises(TypeError, match="of least_squares without data and curve"):
        plot_fit(fit.solution)
    plane = fnopt.curve_fit(lambda x, a: a * x[0], jnp.stack([X, X]), Y)
    wave = jnp.exp(jax.lax.complex(jnp.zeros_like(X), X))
    waves = fnopt.curve_fit(lambda x, a: jax.lax.complex(a, a) * wave, X, 2 * wave, [1.0])
    sets = fnopt.curve_fit(Datasets(Linear(), 2, ()), (X, X[:5]), jnp.concatenate([Y, Y[:5]]))
    for other, text in (
        (plane, r"xdata is float32\[2,12\]"),
        (waves, r"ydata is complex64\[12\], expected real arrays"),
        (sets, r"xdata is tuple and ydata is float32\[17\].*data sets, draw slices"),
    ):
        with pytest.raises(ValueError, match=text):
            plot_fit(other)
