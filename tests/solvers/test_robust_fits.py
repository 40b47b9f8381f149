"""Robust fits from starts that are far off, with outliers of any size: where they end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import fnopt
from fnopt.core import is_converged

X = np.linspace(0.1, 10.0, 40)


def with_outliers(rng, clean, far, count):
    """Data with noise, of which a few are off by up to `far`."""
    y = clean + 0.02 * rng.standard_normal(clean.size)
    y[rng.choice(clean.size, count, replace=False)] += far * rng.uniform(-1, 1, count)
    return y


def all_fits(model, loss, ys, p0s, f_scale=0.05):
    """Many fits at once."""

    def one(y, p0):
        return fnopt.least_squares(lambda p: model(p) - y, p0, loss=loss, f_scale=f_scale)

    return jax.jit(jax.vmap(one))(jnp.asarray(ys), jnp.asarray(p0s))


@pytest.mark.parametrize("loss", ["soft_l1", "huber", "cauchy"])
def test_the_first_steps_from_ones_do_not_cross_a_pole(loss, x64):
    """Michaelis and Menten's curve has one at -b: behind it is another minimum, of a few data."""

    def model(p, xp=jnp):
        return p[0] * xp.asarray(X) / (p[1] + xp.asarray(X))

    rng = np.random.default_rng(0)
    ys = [with_outliers(rng, model([4.0, 1.5], np), 2.0, 6) for _ in range(8)]
    found = all_fits(model, loss, ys, np.ones((8, 2)))
    for y, params in zip(ys, found.params, strict=True):
        expected = scipy.optimize.least_squares(
            lambda p, y=y: model(p, np) - y, np.ones(2), loss=loss, f_scale=0.05, xtol=1e-12
        )
        np.testing.assert_allclose(params, expected.x, rtol=1e-4)
    assert is_converged(found.status).all()


@pytest.mark.parametrize("loss", ["soft_l1", "cauchy"])
def test_one_rate_for_two_decays_is_flagged(loss, x64):
    """Rates that begin near each other meet on a saddle, where the sum of heights is all."""
    t = np.linspace(0.0, 3.0, 100)

    def model(p, xp=jnp):
        return p[0] * xp.exp(-p[1] * xp.asarray(t)) + p[2] * xp.exp(-p[3] * xp.asarray(t))

    rng = np.random.default_rng(1)
    ys = [with_outliers(rng, model([1.0, 1.0, 0.5, 8.0], np), 2.0, 10) for _ in range(40)]
    rates = np.exp(rng.uniform(-1.5, 1.5, 40))
    heights = rng.uniform(0.5, 4, (2, 40))
    p0s = np.stack([heights[0], rates, heights[1], rates * rng.uniform(1, 1.5, 40)], axis=1)
    found = all_fits(model, loss, ys, p0s)
    converged, flags = np.asarray(is_converged(found.status)), found.certificate.undetermined
    determined = np.asarray(found.rank) == 4
    assert np.sum(converged & determined) >= 20
    np.testing.assert_array_equal(np.any(flags, axis=1)[converged], ~determined[converged])
    for k in np.flatnonzero(converged & determined):
        better = scipy.optimize.least_squares(
            lambda p, k=k: model(p, np) - ys[k],
            found.params[k],
            loss=loss,
            f_scale=0.05,
            xtol=1e-12,
        )
        assert better.cost > (1 - 1e-4) * found.cost[k], (found.params[k], better.x)


@pytest.mark.parametrize("far", [1e2, 1e20])
def test_outliers_of_any_size_do_not_widen_the_first_steps(far, x64):
    def model(p, xp=jnp):
        return p[0] * xp.exp(-0.5 * ((xp.asarray(X) - p[1]) / p[2]) ** 2)

    rng, truth = np.random.default_rng(1), np.asarray([5.0, 4.0, 1.0])
    ys = model(truth, np) + 0.02 * rng.standard_normal((20, X.size))
    for y in ys:
        y[rng.choice(X.size, 3, replace=False)] = far * rng.choice([-1, 1], 3)
    found = all_fits(model, "huber", ys, np.ones((20, 3)))
    assert is_converged(found.status).all()
    np.testing.assert_allclose(np.abs(found.params), np.tile(truth, (20, 1)), rtol=0.05)
