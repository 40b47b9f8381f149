"""Residuals of any magnitude, and evaluations after the answer is found."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.ode import odeint

import fnopt

T = np.linspace(0.0, 3.0, 12)
Y = 2 * np.exp(-0.7 * T) + 0.3


def scaled_decay(p, t, y, unit):
    return unit * (p[0] * jnp.exp(-p[1] * t) + p[2] - y)


@jax.jit
def fit(unit, tolerance, noise):
    t, y = jnp.asarray(T, unit.dtype), jnp.asarray(Y, unit.dtype)
    y = y + noise * jnp.sin(9 * t)
    solver = fnopt.levenberg_marquardt(ftol=tolerance, xtol=tolerance, gtol=tolerance)
    p = jnp.ones(3, unit.dtype)
    return fnopt.least_squares(
        scaled_decay, p, args=(t, y, unit), solver=solver, history=True, max_steps=80
    )


def fitted(unit, dtype="float32", tolerance=None, noise=0.0):
    tolerance = jnp.finfo(dtype).eps if tolerance is None else tolerance
    return fit(*(jnp.asarray(a, dtype) for a in (unit, tolerance, noise)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_unit_of_the_residuals_does_not_matter(dtype):
    with jax.enable_x64(dtype == "float64"):
        huge, tiny = (1e20, 1e-24) if dtype == "float32" else (1e160, 1e-170)
        for unit in (1.0, huge, tiny):
            end = fitted(unit, dtype)
            assert bool(end.converged), (unit, end.message)
            assert int(end.nfev) < 12
            np.testing.assert_allclose(end.params, [2, 0.7, 0.3], rtol=1e-4)


def test_what_is_reported_is_in_the_units_of_the_user():
    unit = 1e10
    plain, big = fitted(1), fitted(unit)
    np.testing.assert_allclose(big.history.cost[0], plain.history.cost[0] * unit**2, rtol=1e-3)
    np.testing.assert_allclose(big.jacobian, plain.jacobian * unit, rtol=1e-3)
    assert float(jnp.max(jnp.abs(big.residuals))) < 1e-5 * unit


SOLVERS = {
    "lm": fnopt.levenberg_marquardt(),
    "dogleg": fnopt.solvers.dogleg(),
    "gauss_newton": fnopt.solvers.gauss_newton(),
    "cholesky": fnopt.levenberg_marquardt(linear_solver="cholesky"),
}
WAVED = Y + 0.05 * np.sin(9 * T)


@functools.partial(jax.jit, static_argnums=0)
def decay(name, p, t, y):
    return fnopt.least_squares(scaled_decay, p, args=(t, y, 1.0), solver=SOLVERS[name])


def decay_in(name, dtype, start, time=1.0, amplitude=1.0):
    """The fit in other units of the times and of the data, and its params as in usual ones."""
    units = np.asarray([amplitude, 1 / time, amplitude])
    numbers = np.asarray(start), T * time, WAVED * amplitude
    end = decay(name, *(jnp.asarray(a, dtype) for a in numbers))
    return end, np.asarray(end.params, float) / units


def right_or_flagged(end, params, want):
    """The promise: converged params are right, or the certificate flags some."""
    right = np.allclose(params, want, rtol=1e-3)
    return bool(end.converged) <= right or bool(np.any(end.certificate.undetermined))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", list(SOLVERS))
def test_every_solver_in_any_units(name, dtype):
    tiny, huge = (1e-30, 1e30) if dtype == "float32" else (1e-300, 1e300)
    with jax.enable_x64(dtype == "float64"):
        _, want = decay_in(name, dtype, [1.0, 1.0, 0.0])
        for unit in (tiny, huge):
            in_time = decay_in(name, dtype, [1.0, 1 / unit, 0.0], time=unit)
            in_size = decay_in(name, dtype, [unit, 1.0, 0.0], amplitude=unit)
            for end, params in (in_time, in_size):
                assert bool(end.converged), (unit, end.status)
                np.testing.assert_allclose(params, want, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", list(SOLVERS))
def test_data_far_from_the_start_are_fitted_or_refused(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        _, want = decay_in(name, dtype, [1.0, 1.0, 0.0])
        for size in (1e-30, 1e20) if dtype == "float32" else (1e-150, 1e-300, 1e150):
            end, params = decay_in(name, dtype, np.ones(3), amplitude=size)
            assert right_or_flagged(end, params, want), (size, end.status)
            if name in ("lm", "gauss_newton") and size == 1e-30:
                np.testing.assert_allclose(params, want, rtol=1e-3)
                assert bool(end.converged), end.status


@pytest.mark.parametrize("name", list(SOLVERS))
def test_data_far_below_the_start_are_fitted_or_refused(name):
    """The first step takes all but rounding; what is next to the start says nothing after it."""
    start = [2.0, 0.5, -1.0]
    with jax.enable_x64(True):
        _, want = decay_in(name, "float64", [1.0, 1.0, 0.0])
        for power in (-15, -33, -36, -39, -60):  # three of them were claimed at a wrong rate
            end, params = decay_in(name, "float64", start, amplitude=10.0**power)
            assert right_or_flagged(end, params, want), (power, end.status, params)


@pytest.mark.parametrize("name", list(SOLVERS))
@pytest.mark.parametrize("level", [0.0, 1.0])
def test_the_first_step_to_tiny_data_is_none_to_a_singular_root(name, level):
    # It is tiny beside the start, or the effect of the other params, and leaves a part of the cost.
    with jax.enable_x64(True):
        _, want = decay_in(name, "float64", [1.0, 1.0, 0.0])
        for size in (1e-40, 1e-60):
            end, params = decay_in(name, "float64", [level, 1.0, 0.0], amplitude=size)
            assert right_or_flagged(end, params, want), (size, end.status, params)


def rising(p, t, y):
    return p["height"] * jnp.exp(-p["rate"] * t) + p["base"] - y


OPTIONS = {
    "plain": lambda unit: {},
    "weights": lambda unit: {"weights": jnp.linspace(0.5, 1.0, 12)},
    "huber": lambda unit: {"loss": fnopt.residuals.huber(scale=0.03 * unit)},
    "bounds": lambda unit: {"bounds": (0, {"height": None, "rate": 0.6, "base": None})},
}


@pytest.mark.parametrize("name", list(OPTIONS))
def test_derivatives_in_any_units(name):
    @jax.jit
    def moved(unit, y, dy):
        start = {"height": 2 * unit, "rate": jnp.full_like(unit, 0.5), "base": 0.3 * unit}
        t = jnp.asarray(T, y.dtype)

        def fit(y):
            end = fnopt.least_squares(rising, start, args=(t, y), **OPTIONS[name](unit))
            height, rate, base = (end.params[key] for key in ("height", "rate", "base"))
            return jnp.stack([height / unit, rate, base / unit])

        return jax.jvp(fit, (y,), (dy,))[1]

    def derivatives(unit, dtype):
        with jax.enable_x64(dtype == "float64"):
            numbers = unit, WAVED * unit, np.cos(5 * T) * unit
            return moved(*(jnp.asarray(a, dtype) for a in numbers))

    want = derivatives(1.0, "float64")
    for unit, dtype in ((1e20, "float32"), (1e-24, "float32"), (1e170, "float64")):
        found = derivatives(unit, dtype)
        np.testing.assert_allclose(found, want, rtol=0, atol=2e-4, err_msg=f"{unit}")


def test_derivatives_of_a_fit_of_large_residuals():
    def level(y):
        return fnopt.least_squares(lambda p: 1e12 * (p - y), jnp.float32(1)).params

    np.testing.assert_allclose(jax.grad(level)(jnp.float32(3)), 1, rtol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_without_any_tolerance_it_ends(noise):
    end = fitted(1, tolerance=0.0, noise=noise)
    assert bool(end.converged), end.message
    assert int(end.nfev) < 60


def line(p, A, y):
    return A @ p - y


def sum_of_two():
    # Only the sum of both is determined.
    return np.stack([T, T], 1), 3 * T


def long_line():
    return np.stack([T, np.ones(12)], 1), 1e12 * (2 * T + 1)


@pytest.mark.parametrize(("made", "most"), [(sum_of_two, 6), (long_line, 24)])
def test_nothing_is_evaluated_after_the_answer(made, most):
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64):
            A, y = (jnp.asarray(a, dtype) for a in made())
            end = fnopt.least_squares(line, jnp.ones(2, dtype), args=(A, y))
            assert bool(end.converged), end.message
            assert int(end.nfev) <= most
            eps = float(jnp.finfo(dtype).eps)
            assert np.max(np.abs(end.residuals)) <= 8 * eps * np.max(np.abs(y))


def test_degrees_of_freedom_go_by_the_rank():
    A, y = sum_of_two()
    A, y = jnp.asarray(A, jnp.float32), jnp.asarray(y + 0.1 * np.cos(9 * T), jnp.float32)
    end = fnopt.least_squares(line, jnp.ones(2), args=(A, y))
    assert int(end.rank) == 1
    assert int(end.dof) == 11
    # A param that had no effect from the start is flagged.
    end = fnopt.least_squares(line, jnp.ones(2), args=(A.at[:, 1].set(0), y))
    assert bool(end.converged)
    assert int(end.dof) == 11
    np.testing.assert_array_equal(end.certificate.undetermined, [False, True])


def test_one_datum_and_many_params():
    w = jnp.asarray(np.random.default_rng(0).standard_normal(5000), jnp.float32)
    end = fnopt.least_squares(lambda p: (w @ jnp.sin(p) - 3)[None], jnp.zeros(5000))
    assert bool(end.converged), end.message


def test_the_rounding_of_a_sum_of_many_params_is_no_stall(x64):
    end = fnopt.least_squares(lambda p: jnp.sum(p)[None] - 3, jnp.full(500, 1.0))
    assert bool(end.converged), end.message


def test_second_derivatives_are_counted():
    end = fitted(1)
    assert int(end.nhev) == int(end.steps)
    assert f"{int(end.nhev)} second derivatives" in str(end)


def test_a_function_without_a_forward_derivative_is_fitted_in_reverse():
    @jax.custom_vjp
    def square(x):
        return x**2

    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    with pytest.warns(UserWarning, match="contains a custom_vjp.*reverse"):
        end = fnopt.least_squares(lambda p: square(p) - 2, jnp.asarray([1.0]))
    np.testing.assert_allclose(end.params, np.sqrt(2), rtol=1e-6)
    # So it is where the user says "reverse", and leaves the bent steps, or brings the Jacobian.
    ways = {
        "reverse": {"solver": fnopt.levenberg_marquardt(jacobian="reverse")},
        "jac": {"jac": lambda p: 2 * p[:, None]},
        "jacrev": {"jac": jax.jacrev(lambda p: square(p) - 2)},
    }
    for name, options in ways.items():
        with pytest.warns(UserWarning, match="contains a custom_vjp"):
            end = fnopt.least_squares(lambda p: square(p) - 2, jnp.ones(1), **options)
        np.testing.assert_allclose(end.params, np.sqrt(2), rtol=1e-6, err_msg=name)


def test_an_equation_of_motion_that_has_only_a_reverse_derivative():
    t = jnp.linspace(0.0, 2.0, 6)

    def residuals(p, y):
        path = odeint(lambda y, t, rate: -rate * y, jnp.stack([p["y0"]]), t, p["rate"])
        return path[:, 0] - y

    def fitted(y):
        start = {"rate": 1.0, "y0": 2.0}
        return fnopt.least_squares(residuals, start, args=(y,))

    with pytest.warns(
        UserWarning, match=r"levenberg_marquardt\(jacobian='reverse', geodesic=False"
    ):
        end = fitted(3 * jnp.exp(-0.7 * t))
    assert bool(end.converged), end.message
    assert int(end.nhev) == 0
    np.testing.assert_allclose(end.params["rate"], 0.7, rtol=1e-4)
    np.testing.assert_allclose(end.params["y0"], 3, rtol=1e-4)
