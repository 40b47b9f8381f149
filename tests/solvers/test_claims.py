"""What a solver claims at the end: convergence only where nothing is left to gain."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.solvers import dogleg, gauss_newton

T = np.linspace(0.0, 3.0, 12)
Y = 2 * np.exp(-0.7 * T) + 0.3
SOLVERS = {
    "levenberg_marquardt": fnopt.levenberg_marquardt,
    "straight": lambda: fnopt.levenberg_marquardt(geodesic=False),
    "dogleg": dogleg,
    "gauss_newton": gauss_newton,
}


def decay(p):
    return p[0] * jnp.exp(-p[1] * T.astype(p.dtype)) + p[2] - Y.astype(p.dtype)


def named(solution):
    return Status(int(solution.status)).name


def wrong_sign(p):
    return -jax.jacfwd(decay)(p)


def without_a_column(p):
    return jax.jacfwd(decay)(p).at[:, 1].set(0)


@pytest.mark.parametrize("jac", [wrong_sign, without_a_column])
def test_a_jacobian_that_is_not_the_derivative_is_reported(jac, x64):
    end = fnopt.least_squares(decay, jnp.ones(3), jac=jac)
    assert named(end) == "WRONG_JACOBIAN", end.message
    assert "jac is not the derivative" in end.message


def test_a_jacobian_by_differences_is_good_enough():
    def differences(p):
        steps = 1e-2 * jnp.eye(3)
        return jax.vmap(lambda d: (decay(p + d) - decay(p - d)) / 2e-2, out_axes=1)(steps)

    end = fnopt.least_squares(decay, jnp.ones(3), jac=differences)
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params, [2, 0.7, 0.3], rtol=1e-3)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_wrong_jacobian_of_an_opaque_function_is_no_convergence(name, x64):
    def opaque(p):
        shape = jax.ShapeDtypeStruct((12,), jnp.float64)
        return jax.pure_callback(lambda p: np.asarray(decay(np.asarray(p))), shape, p)

    # Nothing can be compared, and no step along the false slope gains anything.
    solver = SOLVERS["straight" if name == "levenberg_marquardt" else name]()
    end = fnopt.least_squares(opaque, jnp.ones(3), jac=wrong_sign, solver=solver)
    assert named(end) == "STALLED", end.message
    assert int(end.nfev) < 300


def parabola(p):
    return p**2 + 5


def shifted(p):
    return (p[0] - 3) ** 2 + jnp.asarray([1.0, 3.0], p.dtype)


def cosine(p):
    return jnp.cos(p) - 1.2


# Where the Jacobian vanishes at the minimum, the residuals' own curvature makes it one.
VANISHING = {parabola: (2.0, 0.0), shifted: (5.0, 3.0), cosine: (1.0, 0.0)}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("fn", VANISHING, ids=lambda fn: fn.__name__)
def test_a_minimum_at_which_the_jacobian_vanishes(fn, name):
    start, minimum = VANISHING[fn]
    end = fnopt.least_squares(fn, jnp.asarray([start]), solver=SOLVERS[name]())
    assert bool(end.converged), end.message
    assert int(end.nfev) < 120
    np.testing.assert_allclose(end.params, minimum, atol=1e-3)


def towards_infinity(p):
    return jnp.stack([jnp.exp(-p[0]) + 1, p[1] - 3])


def saturated(p):
    return jnp.tanh(10 * p) + 2


@pytest.mark.parametrize("fn", [towards_infinity, saturated])
def test_a_limit_at_infinity_is_no_minimum(fn):
    start = jnp.asarray([0.05, 1.0][: 1 + (fn is towards_infinity)])
    end = fnopt.least_squares(fn, start)
    assert named(end) == "NO_EFFECT", end.message
    assert int(end.nfev) < 60


def test_a_param_that_had_no_effect_from_the_start_is_no_loss():
    end = fnopt.least_squares(lambda p: p[0] * T[:5].astype("f4") - 1 + 0 * p[1], jnp.ones(2))
    assert bool(end.converged)
    assert int(end.rank) == 1


def test_a_column_that_dies_is_not_converged(x64):
    # NIST MGH17 in short: an exponential that a step has thrown away leaves a slope behind.
    t = np.arange(0.0, 330, 10)
    y = 0.375 + 1.94 * np.exp(-0.0129 * t) - 1.46 * np.exp(-0.0221 * t)

    def residuals(b):
        return b[0] + b[1] * jnp.exp(-t * b[3]) + b[2] * jnp.exp(-t * b[4]) - y

    for make in (dogleg, gauss_newton):
        end = fnopt.least_squares(residuals, jnp.asarray([50.0, 150, -100, 1, 2]), solver=make())
        assert not bool(end.converged) or float(end.cost) < 1e-4, (end.message, end.cost)
