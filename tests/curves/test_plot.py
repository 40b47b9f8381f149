from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.curves import plot_fit

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
    popt, pcov = fnopt.curve_fit(decay, X, Y, [1.0, 1.0], SIGMA, absolute)
    above, below = plot_fit(decay, X, Y, popt, pcov, sigma=SIGMA, absolute_sigma=absolute)
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
    np.testing.assert_allclose(left, (Y - decay(X, *popt)) / SIGMA, rtol=1e-4, atol=1e-4)


def test_no_covariance_no_band():
    for pcov in (None, jnp.full((2, 2), jnp.inf)):
        above, _ = plot_fit(decay, X, Y, jnp.ones(2), pcov)
        assert not [c for c in above.collections if c.get_label().endswith("band")]


def test_axes_of_ones_own_and_a_model_without_x():
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(2)
    got = plot_fit(lambda x, c: c, X, Y, jnp.ones(1), jnp.ones((1, 1)), axes=axes)
    assert got[0] is axes[0]
    assert got[1] is axes[1]


@pytest.mark.parametrize(
    ("x", "y", "level", "said"),
    [
        (jnp.ones((2, 3)), jnp.ones(3), 0.95, "fnopt.predict_band"),
        (X, Y[:3], 0.95, r"ydata \(3,\), expected both \[m\]"),
        (X, Y, 95, "level = 95, expected a fraction"),
    ],
)
def test_mistakes_are_named(x, y, level, said):
    with pytest.raises(ValueError, match=said):
        plot_fit(decay, x, y, jnp.ones(2), level=level)
