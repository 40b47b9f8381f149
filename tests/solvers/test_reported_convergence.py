"""Reported convergence: the cost is that of a minimum, or the certificate flags params."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.solvers import dogleg, gauss_newton
from tests.solvers.hard_cases import CASES

SOLVERS = {
    "lm": fnopt.levenberg_marquardt(),
    "cholesky": fnopt.levenberg_marquardt(linear_solver="cholesky"),
    "cg": fnopt.levenberg_marquardt(linear_solver="cg"),
    "dogleg": dogleg(),
    "gauss_newton": gauss_newton(),
}
T = np.linspace(0.0, 3.0, 12)
DECAY = 2 * np.exp(-0.7 * T) + 0.3


def decay(p, y=DECAY):
    return p[0] * jnp.exp(-p[1] * T.astype(p.dtype)) + p[2] - y.astype(p.dtype)


# --- From anywhere. -------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=(0, 1))
def solved(case, solver, starts):
    def fit(p):
        return fnopt.least_squares(CASES[case].residuals, p, solver=SOLVERS[solver])

    return jax.vmap(fit)(starts)


@functools.partial(jax.jit, static_argnums=0)
def exact_costs(case, params):
    return jax.vmap(lambda p: 0.5 * jnp.sum(CASES[case].residuals(p) ** 2))(params)


def is_minimum(case, params):
    """Whether the gradient is zero and the Hessian positive definite, for finite params."""

    def cost(p):
        return 0.5 * jnp.sum(CASES[case].residuals(p) ** 2)

    hessian = jax.hessian(cost)(params)
    units = 1 / jnp.sqrt(jnp.maximum(jnp.diag(hessian), jnp.finfo("float64").tiny))
    least = jnp.linalg.eigvalsh(units[:, None] * hessian * units)[0]
    slope = units * jax.grad(cost)(params)
    return (least > 1e-6) & (jnp.sum(slope**2) <= 1e-9 * least * cost(params))


# Known limits, which rounding decides: listed in docs/performance.md.
VALLEY = "a valley to infinity: to first order it looks like a minimum with a singular Jacobian"
SLOW = "normal equations have half the digits there: more than 1,000 steps"
STUCK = "normal equations have half the digits there: no step, though the model predicts a decrease"
LIMITS = {("beale", "dogleg", "float32"): VALLEY, ("a wave", "dogleg", "float32"): VALLEY}
LIMITS |= {
    ("powell singular", "cholesky", "float64"): SLOW,
    ("powell singular", "cg", "float32"): STUCK,
    ("powell singular", "cg", "float64"): STUCK,
    ("watson", "cholesky", "float32"): SLOW,
}


def kept(case, solver, dtype):
    reason = LIMITS.get((case, solver, dtype))
    marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=False)]
    return pytest.param(case, solver, dtype, marks=marks)


EVERY = [kept(c, s, d) for c in CASES for s in CASES[c].solvers for d in ("float32", "float64")]


@pytest.mark.parametrize(("case", "solver", "dtype"), EVERY)
def test_converged_means_a_minimum_or_a_flag(case, solver, dtype):
    with jax.enable_x64(dtype == "float64"):
        starts = jnp.asarray([CASES[case].start, *CASES[case].far], dtype)
        end = jax.tree.map(np.asarray, solved(case, solver, starts))
    with jax.enable_x64(True):
        params = jnp.asarray(end.params, "float64")
        costs = np.asarray(exact_costs(case, params))
        # Bard's function has a local minimum of cost 0.466, which some starts reach.
        minima = np.asarray(jax.vmap(functools.partial(is_minimum, case))(params))
    flagged = np.any(end.certificate.undetermined, axis=1)
    ends = [
        (Status(int(s)).name, float(c), p, d)
        for s, c, p, d in zip(end.status, costs, end.params, end.certificate.decrement, strict=True)
    ]
    right = costs <= CASES[case].cost
    assert np.all(~end.converged | right | minima | flagged), ends
    assert right[0], ends[0]
    assert end.converged[0], ends[0]
    assert np.all(np.isfinite(end.params))
    # What is reported is the cost there, whatever it was at the start.
    rounding = 10 * end.certificate.rounding * end.cost
    off = np.abs(end.cost - costs) > np.maximum(1e-3 * costs, rounding) + 1e-12
    assert not np.any(off & end.converged), (end.cost, costs)


# --- Minima that are found. -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lm", "dogleg", "gauss_newton"])
def test_minima_at_which_the_jacobian_vanishes(name):
    # The residuals' own curvature makes them minima. A model of first order can't certify them: the
    # status may be STALLED, the params are right.
    @jax.jit
    @jax.vmap
    def fit(start, square, cos, level):
        def residuals(p):
            return square * p**2 + cos * jnp.cos(p) + level

        return fnopt.least_squares(residuals, start[None], solver=SOLVERS[name])

    rows = [[2, 1, 0, 5], [5, 1, 0, 3], [1, 0, 1, -1.2], [2, 1, 0, 300], [2, 1, 0, 0]]
    end = fit(*jnp.asarray(rows, jnp.float32).T)
    assert np.all(end.converged | (end.status == Status.STALLED)), end.message
    assert np.max(end.nfev) < 120
    np.testing.assert_allclose(end.params, 0, atol=0.1)
    np.testing.assert_allclose(end.cost, [12.5, 4.5, 0.02, 45e3, 0], rtol=1e-4, atol=1e-8)


def test_the_last_step_of_noisy_data_is_no_stall():
    # The step would gain 1e-7 of the cost; what rounding loses on it is ten times as much.
    draws = np.random.default_rng(0).standard_normal((32, 12))
    ys = jnp.asarray(DECAY + 0.02 * draws, jnp.float32)
    end = jax.jit(
        jax.vmap(lambda y: fnopt.least_squares(decay, jnp.asarray([1.0, 1.0, 0.0]), args=(y,)))
    )(ys)
    assert np.all(end.converged), end.message
    assert int(np.max(end.nfev)) < 30


def test_what_the_data_never_determined_is_flagged():
    # The product of two params, and a linear function of ten that sees one direction.
    def product(q):
        return decay(
            jnp.stack([q[0] * q[1], q[2], jnp.zeros_like(q[0])]), DECAY + 0.05 * np.sin(9 * T)
        )

    starts = [[1, 1, 0.3], [100, 0.01, 1], [0.01, 1, 1], [30, 1, 0.5]]
    end = jax.vmap(lambda p: fnopt.least_squares(product, p))(jnp.asarray(starts, jnp.float32))
    assert np.all(end.converged), end.message
    np.testing.assert_array_equal(end.rank, 2)
    np.testing.assert_array_equal(end.certificate.undetermined, [[True, True, False]] * 4)
    rows = jnp.arange(1.0, 11.0)
    end = fnopt.least_squares(lambda p: rows * (rows @ p) - 1, jnp.ones(10))
    assert bool(end.converged), end.message
    assert int(end.rank) == 1
    assert np.all(end.certificate.undetermined)


def test_params_hold_the_digits_that_float32_carries():
    # Of a month's cycle in noise: the cost rounds to 1e-7, params to a small part of their errors.
    t = np.arange(1.0, 97.0)
    draws = 3 * np.random.default_rng(0).normal(size=(24, 96))
    y = 10 + 3 * np.cos(2 * np.pi * t / 12) + draws

    def fits(dtype):
        def residuals(p, y):
            turn = jnp.asarray(2 * np.pi * t, dtype) / p[3]
            return p[0] + p[1] * jnp.cos(turn) + p[2] * jnp.sin(turn) - y

        start = jnp.asarray([11, 3, 0.5, 12.1], dtype)
        fit = jax.jit(jax.vmap(lambda y: fnopt.least_squares(residuals, start, args=(y,))))
        end = fit(jnp.asarray(y, dtype))
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), end)

    with jax.enable_x64(True):
        exact = fits("float64")
    J = exact.jacobian
    errors = np.sqrt([np.diag(np.linalg.inv(M.T @ M)) for M in J]) * 3
    rough = fits("float32")
    same = (rough.status > 0) & (np.abs(rough.cost / exact.cost - 1) < 1e-3)
    assert np.mean(same) > 0.8
    assert np.max((np.abs(rough.params - exact.params) / errors)[same]) < 2e-3
