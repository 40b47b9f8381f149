"""Bounds, robust losses, Jacobians and derivatives, against curve_fit one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.core import Status
from fnopt.curves import OptimizeWarning
from fnopt.curves.batched import curve_fit_batch
from fnopt.curves.batched._start import checked_box, checked_start

T = np.linspace(0.0, 3.0, 12)
RNG = np.random.default_rng(0)
TRUE = np.asarray([[2.0, 0.7, 0.3], [3.0, 1.4, -0.2], [1.0, 0.4, 0.5]])
Y = np.stack([a * np.exp(-b * T) + c for a, b, c in TRUE]) + 0.02 * RNG.standard_normal((3, 12))
Y[:, 5] += 0.3  # a wild datum each
SIGMA = RNG.uniform(0.5, 2.0, (3, 12))
P0 = np.asarray([1.0, 1.0, 0.0])
BOUNDS = (np.asarray([0.0, 0.0, -0.1]), np.asarray([2.5, 1.0, 0.4]))


def decay(t, a, b, c):
    return a * jnp.exp(-b * t) + c


def derivative(t, a, b, c):
    e = jnp.exp(-b * t)
    return jnp.stack([e, -a * t * e, jnp.ones_like(t)], axis=-1)


OPTIONS = {
    "bounds": {"bounds": BOUNDS},
    "all": {"bounds": BOUNDS, "loss": "soft_l1", "f_scale": 0.1, "jac": derivative},
}


@functools.cache
def fits(name):
    """The batch, and curve_fit's params and covariances one by one."""
    options = OPTIONS[name]
    batch = curve_fit_batch(decay, T.tolist(), Y, P0, SIGMA, **options)  # as a list, too
    alone = [
        fnopt.curve_fit(decay, T, y, P0, s, full_output=True, **options)
        for y, s in zip(Y, SIGMA, strict=True)
    ]
    return batch, alone


@pytest.mark.parametrize("name", OPTIONS)
def test_agrees_with_curve_fit_one_by_one(x64, name):
    batch, alone = fits(name)
    assert np.all(batch.converged), batch.message
    for k, (popt, pcov, info, *_) in enumerate(alone):
        np.testing.assert_allclose(batch.params[k], popt, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(batch.cost[k], info["solution"].cost, rtol=1e-9)
        np.testing.assert_allclose(batch.covariance[k], pcov, rtol=1e-3, atol=1e-9)


def test_params_on_a_bound_are_exactly_there(x64):
    batch, _ = fits("bounds")
    x, (lower, upper) = np.asarray(batch.params), BOUNDS
    assert np.all((x >= lower) & (x <= upper))
    assert np.any(x == upper)
    assert np.any(x == lower)


def test_spellings_of_bounds(x64):
    upper = np.asarray([2.5, 2.4, 2.6])
    lower_rows, upper_rows = np.tile([0.0, 0.0, -0.1], (3, 1)), np.tile([0.0, 1.0, 0.4], (3, 1))
    upper_rows[:, 0] = upper
    rows = curve_fit_batch(decay, T, Y, P0, SIGMA, bounds=(lower_rows, upper_rows))
    by_param = curve_fit_batch(
        decay, T, Y, (1.0, 1.0, 0.0), SIGMA, bounds=((0, 0, -0.1), (upper, 1.0, 0.4))
    )
    np.testing.assert_array_equal(by_param.params, rows.params)
    assert np.all(rows.params[:, 0] <= upper)
    tree = {"a": 1.0, "b": 1.0, "c": 0.0}
    by_name = {"b": (0, 1.0), "a": (0, upper), "c": (-0.1, 0.4)}
    named = curve_fit_batch(decay, np.asarray(T, object), Y, tree, SIGMA, bounds=by_name)
    for i, name in enumerate("abc"):
        np.testing.assert_allclose(named.params[name], rows.params[:, i], rtol=1e-12)
    x0, layout = checked_start(lambda t, p: p, tree, jnp.asarray(T), jnp.asarray(Y))
    sides = {"a": 0.0, "b": 0.0, "c": -0.1}, {"a": upper, "b": 1.0, "c": 0.4}
    box = checked_box(sides, tree, x0, layout)
    np.testing.assert_array_equal(box.lower, lower_rows)
    np.testing.assert_array_equal(box.upper, upper_rows)
    assert checked_box((-np.inf, np.inf), tree, x0, layout) is None
    box = checked_box(([0, None, None], None), P0, *checked_start(decay, P0, T, jnp.asarray(Y)))
    np.testing.assert_array_equal(box.lower, np.tile([0.0, -np.inf, -np.inf], (3, 1)))
    assert np.all(np.isinf(box.upper))


def test_a_wrong_jacobian_is_called_so(x64):
    batch = curve_fit_batch(decay, T, Y, P0, jac=lambda t, *p: -derivative(t, *p))
    assert batch.status.tolist() == [Status.WRONG_JACOBIAN] * 3


def test_curve_fit_names_the_function_for_a_batch():
    with pytest.raises(TypeError, match="curve_fit_batch"):
        fnopt.curve_fit(decay, T, Y, P0, batch=True)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"bounds": (0.5, 2.0)}, ValueError, "c of fit 0 starts at 0"),
        ({"bounds": (3.0, 2.0)}, ValueError, "bounds of param a of fit 0 are crossed"),
        ({"bounds": ([0, 0], 9.0)}, ValueError, "for 3 params"),
        ({"x": np.asarray(["1", "late"])}, TypeError, "x contain entries that aren't numbers"),
        ({"bounds": ("a", "b")}, TypeError, "bounds contains 'a', expected real numbers"),
        ({"y": [Y[0], Y[1][:4]]}, ValueError, "y are 2 arrays of different shapes.*pass mask="),
        ({"sigma": [T, T[:4]]}, ValueError, "sigma are 2 arrays of different shapes"),
        ({"mask": [T > 0, T[:4] > 0]}, ValueError, "mask are 2 arrays of different shapes"),
        ({"sigma": 1 + 0j}, ValueError, "sigma contains values that are not positive"),
        ({"p0": [[1, 2, 3], [1], 2]}, ValueError, r"leaf '1' has shape \(1,\)"),
        ({"loss": "huber", "f_scale": np.ones(3)}, ValueError, r"scale has shape \(3,\)"),
        ({"jac": lambda t, *p: derivative(t, *p).T}, ValueError, r"expected \(12, 3\)"),
        ({"loss": "tukeys"}, ValueError, "expected one of"),
    ],
)
def test_wrong_options_are_named(change, error, words):
    with pytest.raises(error, match=words):
        curve_fit_batch(**{"f": decay, "x": T, "y": Y, "p0": P0, **change})


def test_derivatives_are_those_of_the_minima(x64):
    # A fit that fails has none, and spoils none of what the fits share.
    y, sigma = jnp.asarray(Y[[0, 1, 1, 2]]).at[2, 0].set(jnp.nan), jnp.asarray(SIGMA[[0, 1, 1, 2]])

    def value(y, sigma, top, scale, speed):
        def model(t, a, b, c):
            return decay(speed * t, a, b, c)

        fit = curve_fit_batch(
            model,
            T,
            y,
            P0,
            sigma,
            bounds=(-9.0, jnp.stack([top, 9.0 + 0 * top, 9.0 + 0 * top])),
            loss=fnopt.residuals.soft_l1(scale=scale),
            ftol=1e-15,
            fallback=False,
        )
        good = fit.converged
        x = jnp.where(good[:, None], fit.params, 0.0)
        C = jnp.where(good[:, None, None], fit.covariance, 0.0)
        return jnp.sum(jnp.sin(x)) + jnp.sum(fit.cost, where=good) + jnp.sum(100 * C)

    run = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2, 3, 4)))
    at = y, sigma, jnp.asarray(2.5), jnp.asarray(0.1), jnp.asarray(1.0)
    rng = np.random.default_rng(1)
    step = [jnp.asarray(1e-4 * rng.standard_normal(a.shape)) for a in at]
    ends = [run(*(a + k * d for a, d in zip(at, step, strict=True)))[0] for k in (-1, 1)]
    _, slopes = run(*at)
    change = sum(float(jnp.sum(g * d)) for g, d in zip(slopes, step, strict=True))
    assert abs(change) > 1e-5
    np.testing.assert_allclose(change, (ends[1] - ends[0]) / 2, rtol=1e-4)
    assert all(bool(jnp.all(jnp.isfinite(slope))) for slope in slopes)


def test_points_that_do_not_count_may_hold_anything_in_derivatives_too(x64):
    counts = np.arange(12) < 9

    def total(t, y, mask):
        return jnp.sum(curve_fit_batch(decay, t, y, P0, mask=mask).params)

    slopes = jax.jit(jax.grad(total, argnums=(0, 1)))
    wild = jnp.where(counts, jnp.asarray(T), jnp.nan), jnp.where(counts, Y[:2], jnp.nan)
    tame = jnp.where(counts, jnp.asarray(T), 1.0), jnp.where(counts, Y[:2], 0.0)
    for got, want in zip(slopes(*wild, counts), slopes(*tame, counts), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
        assert not np.any(got[..., 9:])


def test_fewer_data_than_params_are_refused_as_by_curve_fit():
    with pytest.raises(TypeError, match=r"fewer data than params in a fit \(1 < 3\)"):
        curve_fit_batch(decay, T[:1], Y[:, :1], P0)
    inside = curve_fit_batch(decay, T[:1], Y[:, :1], P0, bounds=(0, 10))
    assert bool(jnp.all(inside.rank < 2))


@pytest.mark.parametrize("per_fit", [False, True])
def test_data_that_float32_cannot_tell_apart(per_fit):
    t = 1.6e9 + np.arange(12)
    x = np.stack([t] * 3) if per_fit else t
    text = r"curve_fit_batch: conversion to float32 changes x by up to 1\d, .* range of 11"
    with pytest.warns(OptimizeWarning, match=text) as of_x:
        curve_fit_batch(lambda x, a: a + 0 * x, x, Y, np.ones(1), x_per_fit=per_fit)
    with pytest.warns(OptimizeWarning, match="conversion to float32 changes y") as of_y:
        curve_fit_batch(lambda x, a: a + 0 * x, T, 1e10 + Y, np.ones(1))
    assert of_x[0].filename == of_y[0].filename == __file__  # Python shows the user's line


def test_a_point_of_infinite_sigma_does_not_count():
    sigma = np.where(np.arange(12) % 3, 1.0, np.inf)
    want = curve_fit_batch(decay, T, Y, P0, mask=np.isfinite(sigma))
    y = np.where(np.isinf(sigma), np.nan, Y)
    mask = np.ones((3, 12), bool)
    for run in (curve_fit_batch, jax.jit(curve_fit_batch, static_argnums=0)):
        fit = run(decay, T, y, P0, sigma, mask=mask)
        np.testing.assert_allclose(fit.params, want.params, rtol=1e-4)
        np.testing.assert_allclose(fit.errors, want.errors, rtol=1e-3)


@pytest.mark.parametrize("options", [{}, {"loss": "soft_l1", "f_scale": 0.1}, {"jac": derivative}])
def test_equal_bounds_fix_a_param(x64, options):
    bounds = ((0.0, 0.7, -1.0), (9.0, 0.7, 1.0))
    p0 = (1.0, 0.7, 0.0)
    batch = curve_fit_batch(decay, T, Y, p0, bounds=bounds, **options)
    assert np.all(batch.converged)
    np.testing.assert_array_equal(batch.rank, 2)
    assert not np.any(batch.undetermined)
    for k, y in enumerate(Y):
        fit = fnopt.curve_fit(decay, T, y, p0, bounds=bounds, **options)
        np.testing.assert_allclose(batch.params[k], fit.popt, rtol=1e-5)
        np.testing.assert_allclose(batch.covariance[k], fit.pcov, rtol=1e-3, atol=1e-12)


def test_equal_bounds_make_a_degenerate_model_determined(x64):
    def product(t, a, b, c):
        return decay(t, a * b, 1.0, c)

    bounds = (np.asarray([-9.0, 0.5, -9.0]), np.asarray([9.0, 0.5, 9.0]))
    batch = curve_fit_batch(product, T, Y, (1.0, 0.5, 0.0), bounds=bounds)
    for k, y in enumerate(Y):
        (a, c), C = np.polyfit(np.exp(-T), y, 1, cov=True)
        np.testing.assert_allclose(batch.params[k], [2 * a, 0.5, c], rtol=1e-6)
        errors = [2 * np.sqrt(C[0, 0]), 0, np.sqrt(C[1, 1])]
        np.testing.assert_allclose(batch.errors[k], errors, rtol=1e-6)
