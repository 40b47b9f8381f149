"""The comparison of a user's Jacobian with the residuals: no false alarm, no miss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.solvers.problem._jacobian_check import disagrees
from fnopt.solvers.problem._problem import flatten_problem

N = 4  # residuals and params: as many, so that a transposed Jacobian has the right shape
CASES = 200
KINDS = ("right", "negated", "doubled", "without a column", "transposed", "differences")


def residuals(p, a):
    return a["row"] * (a["out"] @ jnp.tanh(a["in"] @ (a["unit"] * p)) + jnp.cos(a["unit"] * p))


def derivative(p, a):
    # In other words than those of the derivative by JAX, so that it is rounded differently.
    q = a["unit"] * p
    steep = 1 / jnp.square(jnp.cosh(a["in"] @ q))
    return a["row"][:, None] * ((a["out"] * steep) @ a["in"] - jnp.diag(jnp.sin(q))) * a["unit"]


def by_differences(p, a, relative):
    steps = jnp.diag(relative * jnp.maximum(jnp.abs(p), 1 / a["unit"]))
    return jax.vmap(
        lambda d: (residuals(p + d, a) - residuals(p - d, a)) / (2 * jnp.sum(d)), out_axes=1
    )(steps)


def alarms(p, a):
    """One alarm for each kind of Jacobian."""
    J = derivative(p, a)
    step = float(jnp.finfo(p.dtype).eps) ** (1 / 3)
    given = jnp.stack([J, -J, 2 * J, J.at[:, 1].set(0), J.T, by_differences(p, a, step)])

    def alarm(J):
        problem = flatten_problem(residuals, p, (a,), jac=lambda p, a: J).problem
        return disagrees(problem, p, jnp.linalg.norm(J, axis=0))

    return jax.vmap(alarm)(given)


def random_problems(dtype):
    draw = np.random.default_rng(7)
    unit = 10.0 ** draw.uniform(-3, 3, (CASES, N))
    a = {
        "in": draw.standard_normal((CASES, N, N)),
        "out": draw.standard_normal((CASES, N, N)),
        "row": 10.0 ** draw.uniform(-1, 1, (CASES, N)) * 10.0 ** draw.uniform(-6, 6, (CASES, 1)),
        "unit": unit,
    }
    p = 1.5 * draw.standard_normal((CASES, N)) / unit
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), (p, a))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_false_alarm_and_no_miss(dtype):
    with jax.enable_x64(dtype == "float64"):
        found = np.asarray(jax.jit(jax.vmap(alarms))(*random_problems(dtype)))
    count = dict(zip(KINDS, found.sum(0).tolist(), strict=True))
    assert count == {kind: 0 if kind in ("right", "differences") else CASES for kind in KINDS}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nonzeros", [3, 1000], ids=["sparse", "dense"])
def test_one_wrong_column_of_a_thousand_is_an_alarm(nonzeros, dtype):
    draw, n = np.random.default_rng(3), 1000
    weights = np.zeros((2 * n, n))
    for row in weights:
        row[draw.choice(n, nonzeros, replace=False)] = draw.standard_normal(nonzeros)

    def residuals(p):
        return jnp.tanh(jnp.asarray(weights / nonzeros**0.5, p.dtype) @ p) - 0.3

    def differences(p):  # forward differences, with the best step for rounding errors
        step = float(jnp.finfo(p.dtype).eps) ** 0.5
        return jax.lax.map(lambda d: (residuals(p + d) - residuals(p)) / step, step * jnp.eye(n)).T

    @jax.jit
    def alarm(p, J):
        problem = flatten_problem(residuals, p, (), jac=lambda p: J).problem
        return disagrees(problem, p, jnp.linalg.norm(J, axis=0))

    with jax.enable_x64(dtype == "float64"):
        p = jnp.asarray(draw.standard_normal(n), dtype)
        J = jax.jacfwd(residuals)(p)
        assert not alarm(p, J)
        assert not alarm(p, differences(p))
        for factor in (-1, 0, 2, 1e6):
            assert alarm(p, J.at[:, 400].multiply(factor)), factor


def test_a_kink_is_no_alarm_and_the_check_can_be_left_out():
    def bent(p):
        return jnp.stack([jnp.abs(p[0]) - p[1], p[1] - 2.0, p[0] - 0.1])

    def other_side(p, factor):  # JAX takes 1 as the derivative of |x| at 0
        J = jax.jacfwd(bent)(p).at[0, 0].set(jnp.where(p[0] > 0, 1.0, -1.0))
        return factor * J

    def status(factor, **options):
        start, args = jnp.asarray([0.0, 1.0]), (jnp.float32(factor),)
        end = fnopt.least_squares(
            lambda p, factor: bent(p), start, args=args, jac=other_side, **options
        )
        return fnopt.Status(int(end.status)).name

    assert status(1) != "WRONG_JACOBIAN"
    assert status(2) == "WRONG_JACOBIAN"
    assert status(2, check_jac=False) != "WRONG_JACOBIAN"


T = np.linspace(0.0, 3.0, 12)
DECAY = 2 * np.exp(-0.7 * T) + 0.3


def decay(p):
    return p[0] * jnp.exp(-p[1] * T.astype(p.dtype)) + p[2] - DECAY.astype(p.dtype)


HOW = ("right", "differences", "negated", "doubled", "without a column")


def wrong_jacobian(p, how):
    """The Jacobian of `decay`, right or in one of several ways wrong: one program for all."""
    J, steps = jax.jacfwd(decay)(p), 1e-2 * jnp.eye(3)
    crude = jax.vmap(lambda d: (decay(p + d) - decay(p - d)) / 2e-2, out_axes=1)(steps)
    return jnp.stack([J, crude, -J, 2 * J, J.at[:, 1].set(0)])[how]


@pytest.mark.parametrize("how", HOW)
def test_a_jacobian_that_is_not_the_derivative_is_reported(how):
    def residuals(p, how):
        return decay(p)

    which = (jnp.asarray(HOW.index(how)),)
    end = fnopt.least_squares(residuals, jnp.ones(3), args=which, jac=wrong_jacobian)
    if how in ("right", "differences"):
        assert bool(end.converged), end.message
        np.testing.assert_allclose(end.params, [2, 0.7, 0.3], rtol=1e-3)
    else:
        assert int(end.status) == Status.WRONG_JACOBIAN, end.message
        assert "compare jac with jax.jacfwd(residual_fn)(params)" in end.message


def test_a_wrong_jacobian_of_an_opaque_function_is_no_convergence():
    def opaque(p):
        shape = jax.ShapeDtypeStruct((12,), jnp.float32)
        return jax.pure_callback(lambda p: np.asarray(decay(np.asarray(p))), shape, p)

    # Nothing can be compared, and no step along the false slope gains anything.
    solver = fnopt.levenberg_marquardt(geodesic=False)
    end = fnopt.least_squares(
        opaque, jnp.ones(3), jac=lambda p: -jax.jacfwd(decay)(p), solver=solver
    )
    assert int(end.status) == Status.STALLED, end.message
    assert int(end.nfev) < 300
