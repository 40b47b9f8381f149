"""The relative bound on steps of params that hardly move the residuals."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.solvers.linear_model._linearization import factorized_linearization
from fnopt.solvers.linear_model._scaling import initial_scale, with_relative_bound

R = np.asarray([3.0, 4.0], np.float32)


def scaling(x, J):
    point = factorized_linearization(jnp.asarray(x), jnp.asarray(R), jnp.asarray(J), graded=False)
    return with_relative_bound(initial_scale(point.columns), point)


def test_only_params_without_effect_are_held():
    x = np.asarray([2.0, -2.0], np.float32)
    J = np.asarray([[9.0, 0.0], [0.0, 1e-20]], np.float32)
    np.testing.assert_allclose(scaling(x, J), [9.0, 0.7 * 5 / 2], rtol=1e-6)
    x[1] = 0  # has no size
    np.testing.assert_allclose(scaling(x, J), [9.0, 1e-20], rtol=1e-6)


@pytest.mark.parametrize(("a", "b"), [(1e-6, 1e6), (1e6, 1e-6), (3e3, 3e3)])
def test_units_do_not_matter(a, b):
    x = np.asarray([2.0, -0.3], np.float32)
    J = np.asarray([[9.0, 1e-3], [1.0, 0.5e-3]], np.float32)
    units = np.asarray([a, b], np.float32)
    np.testing.assert_allclose(scaling(x * units, J / units) * units, scaling(x, J), rtol=1e-5)


def test_a_peak_that_is_too_narrow_to_be_seen_comes_back(x64):
    # One point is on the peak, the others hardly feel how wide it is.
    t = jnp.linspace(-3.5, 3.5, 15)
    y = 0.4 * jnp.exp(-(t**2) / 2)

    def residuals(p):
        return p[0] * jnp.exp(-p[1] * (t - p[2]) ** 2 / 2) - y

    solution = fnopt.least_squares(residuals, jnp.asarray([40.0, 100.0, 0.0]))
    assert bool(solution.converged)
    np.testing.assert_allclose(solution.params, [0.4, 1.0, 0.0], atol=1e-8)
