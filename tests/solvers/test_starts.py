"""Multi-start: several searches, of which the lowest end counts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.residuals import Box
from fnopt.solvers._starts import starting_points

X = np.linspace(0.1, 10.0, 40)
TRUE = [5.0, 4.0, 1.0]


def peak(p, x=X):
    return p[0] * jnp.exp(-0.5 * ((x - p[1]) / p[2]) ** 2)


def test_points_are_within_a_factor_of_ten_and_begin_with_the_start():
    x = jnp.asarray([2.0, -30.0, 0.0])
    points = np.asarray(starting_points(x, None, 500))
    np.testing.assert_array_equal(points[0], x)
    ratio = points[:, :2] / np.asarray(x[:2])
    assert (ratio > 0.0999).all()
    assert (ratio < 10.01).all()
    assert (np.abs(points[:, 2]) <= 1).all()
    # evenly: each decile of the logarithm holds a tenth, to a few
    counts = np.histogram(np.log10(ratio[:, 0]), bins=10, range=(-1, 1))[0]
    assert counts.min() >= 45
    assert counts.max() <= 55


def test_points_lie_in_the_box():
    box = Box(jnp.asarray([0.0, 1.0]), jnp.asarray([2.0, jnp.inf]))
    points = np.asarray(starting_points(jnp.asarray([1.0, 1.5]), box, 200))
    assert (points[:, 0] >= 0).all()
    assert (points[:, 0] <= 2).all()
    assert (points[:, 1] >= 1).all()
    assert points[:, 0].min() < 0.05
    assert points[:, 0].max() > 1.95


@pytest.fixture(scope="module")
def fit():
    y = peak(jnp.asarray(TRUE))
    return jax.jit(lambda start: fnopt.least_squares(lambda p: peak(p) - y, start, starts=16))


def test_a_far_start_finds_the_global_minimum(fit):
    start = jnp.asarray([1.0, 0.7, 0.3])  # a single search ends beside the peak
    alone = fnopt.least_squares(lambda p: peak(p) - peak(jnp.asarray(TRUE)), start)
    solution = fit(start)
    assert float(alone.cost) > 1
    assert bool(solution.converged)
    np.testing.assert_allclose(np.abs(solution.params), TRUE, rtol=1e-4)
    assert int(solution.nfev) > 16
    assert solution.nfev.dtype == jnp.int32


def test_the_solution_has_the_derivative_of_the_single_search():
    def amplitude(scale, starts):
        y = scale * peak(jnp.asarray(TRUE))
        start = jnp.asarray([4.0, 3.5, 1.2])
        return fnopt.least_squares(lambda p: peak(p) - y, start, starts=starts).params[0]

    assert jax.grad(amplitude)(1.0, 3) == pytest.approx(5.0, rel=1e-4)


def test_curve_fit_takes_starts():
    y = peak(jnp.asarray(TRUE)) + 0.01 * np.cos(9 * X)
    model = lambda x, a, c, w: peak((a, c, w), x)  # noqa: E731
    fit = fnopt.curve_fit(model, X, y, p0=[1.0, 0.7, 0.3], starts=16)
    np.testing.assert_allclose(np.abs(fit[0]), TRUE, rtol=0.02)


@pytest.mark.parametrize("starts", [0, -1, 2.0, True, "8"])
def test_what_is_no_number_of_starts_is_refused(starts):
    with pytest.raises(ValueError, match=r"starts = .* integer >= 1"):
        fnopt.least_squares(lambda p: p, jnp.ones(2), starts=starts)
