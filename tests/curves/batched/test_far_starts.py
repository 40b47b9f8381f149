"""Starts from which the first steps throw a param to where it has no effect."""

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.core import Status
from fnopt.curves.batched import curve_fit_batch

X = np.linspace(0.0, 10.0, 40, dtype=np.float32)
NOISE = 0.02 * np.random.default_rng(0).standard_normal(40)


def decay(x, a, b):
    return a * jnp.exp(-x / b)


def test_a_decay_time_that_starts_far_too_long_is_found():
    starts = np.asarray([1, 20, 50, 200, 500, 1e3, 5e3], np.float32)
    y = (3 * np.exp(-X / 2) + NOISE).astype(np.float32)
    fit = curve_fit_batch(decay, X, np.tile(y, (starts.size, 1)), (1.0, starts))
    assert np.all(fit.converged), fit.message
    np.testing.assert_array_equal(fit.rank, 2)
    np.testing.assert_allclose(fit.params, np.tile(fit.params[0], (7, 1)), rtol=1e-3)
    assert np.max(fit.steps) < 80


def test_a_height_that_shrinks_to_nothing_comes_back():
    # The height goes first, by up to nine magnitudes, and the metric remembers how steep the power
    # was before. With damping that falls by a tenth a step nothing moved any more.
    x = np.linspace(0.1, 10.0, 40, dtype=np.float32)
    starts = np.asarray([[1, 0.5], [1, 5], [-1, 5], [1, 10], [-1, 10]], np.float32)
    y = np.tile(2 * x**0.6 + NOISE.astype(np.float32), (len(starts), 1))
    fit = curve_fit_batch(lambda x, a, b: a * x**b, x, y, starts)
    assert np.all(fit.converged), fit.message
    np.testing.assert_allclose(fit.params, np.tile(fit.params[0], (len(starts), 1)), rtol=1e-3)


def test_what_needs_other_steps_is_tried_alone():
    # Normal equations lose the rate beside the height here; and the data are in units of 1e-24.
    x = np.linspace(0.1, 10.0, 40, dtype=np.float32)
    starts = np.asarray([[1, 0.5], [1, -10], [-1, -10]], np.float32) * [1e-24, 1]
    y = np.tile(2 * x**0.6 + NOISE.astype(np.float32), (len(starts), 1)) * np.float32(1e-24)
    fit = curve_fit_batch(lambda x, a, b: a * x**b, x, y, starts)
    assert fit.converged[0], fit.message
    right = np.all(np.isclose(fit.params, fit.params[0], rtol=1e-3, atol=0), axis=1)
    # From a power of -10 the height may be lost, and the rank says so.
    flagged = np.asarray(fit.rank) < 2
    assert np.all(~np.asarray(fit.converged) | right | flagged), (fit.message, fit.params)


def test_decays_are_found_from_growing_exponentials():
    # From a rate of -10, the status depends on rounding errors ("Known limits").
    with jax.enable_x64(True):
        rates = np.asarray([0.5, -1, -2])
        x = np.linspace(0.0, 10.0, 40)
        y = np.tile(3 * np.exp(-x / 2) + NOISE, (3, 1))
        fit = curve_fit_batch(lambda x, a, b: a * jnp.exp(-b * x), x, y, (1.0, rates))
    assert np.all(fit.converged)
    np.testing.assert_allclose(fit.params, np.tile(fit.params[0], (3, 1)), rtol=1e-5)


def test_a_limit_where_two_terms_cancel_is_no_solution():
    # A line is the limit of an exponential that bends ever less, on an ever larger offset: no
    # column vanishes on the way there, and the last steps are tiny.
    starts = np.asarray([[1, 1, 0], [1, -0.5, 0], [-1, -0.5, 0]], np.float32)
    y = np.tile((3 * np.exp(-X / 2) + 1 + NOISE).astype(np.float32), (3, 1))
    fit = curve_fit_batch(lambda x, a, b, c: a * jnp.exp(-b * x) + c, X, y, starts)
    assert bool(fit.converged[0])
    best = fit.cost <= 1.001 * fit.cost[0]
    flagged = fit.rank < 3
    assert np.all(~fit.converged | best | flagged), (fit.message, fit.rank)


def test_where_the_square_of_the_params_overflows_nothing_is_claimed_without_a_flag():
    x = np.linspace(300.0, 900.0, 40, dtype=np.float32)
    y = np.tile(50 * np.exp(-1500 / x) + NOISE.astype(np.float32), (2, 1))
    starts = np.asarray([[40, 1400], [1e4, -1e4]], np.float32)
    fit = curve_fit_batch(lambda x, a, b: a * jnp.exp(-b / x), x, y, starts)
    assert bool(fit.converged[0])
    far = np.max(np.abs(fit.params[1] / fit.params[0] - 1)) > 1e-2
    assert not (fit.converged[1] and far and fit.rank[1] == 2)


def test_no_fits_at_all():
    fit = curve_fit_batch(decay, X, np.zeros((0, 40), np.float32), (1.0, np.zeros(0)))
    assert fit.params.shape == (0, 2)
    assert fit.covariance.shape == (0, 2, 2)
    assert fit.status.shape == fit.cost.shape == (0,)
    assert fit.message == []
    assert "0 fits" in str(fit)
    tree = curve_fit_batch(
        lambda x, p: decay(x, p["a"], p["b"]), X, np.zeros((0, 40)), {"a": 1.0, "b": 1.0}
    )
    assert tree.params["a"].shape == (0,)


def test_starts_whose_squares_overflow_fall_back_as_those_do_that_fail():
    # Their residuals are finite: least_squares has units for them.
    x = np.linspace(0, 4, 30, dtype=np.float32)
    y = 2 * np.exp(0.5 * x) + np.float32(0.02) * np.sin(11 * x)
    p0 = np.float32([[1, 0.3], [1, 12], [1, 0.6], [1, np.nan]])
    y = np.stack([y, y, y * np.nan, y])

    def fit(y, **options):
        options["max_steps"] = 500
        return curve_fit_batch(lambda x, a, k: a * jnp.exp(k * x), x, y, p0, **options)

    fits = fit(y)
    names = [Status(int(s)).name for s in fits.status]
    assert names[2:] == ["NONFINITE_START"] * 2
    assert fits.converged[0], names
    # It is tried, and from so far it may end without the height, which isn't converged.
    assert names[1] != "NONFINITE_START"
    right = np.allclose(fits.params[1], fits.params[0], rtol=1e-4)
    assert not fits.converged[1] or right, names
    np.testing.assert_array_equal(fits.params[3], p0[3])
    alone = fit(y, fallback=False)
    assert Status(int(alone.status[1])) == Status.NONFINITE_START
    np.testing.assert_array_equal(alone.params[1], p0[1])
