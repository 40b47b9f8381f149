"""Curvature that the linear model leaves out, against the Hessians of quadratic residuals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.linear import TriangleSystem, guarded
from fnopt.solvers.model._curvature import learned, no_curvature
from fnopt.solvers.model._linearization import factorised_linearization

HESSIANS = np.random.default_rng(0).normal(size=(4, 3, 3))
HESSIANS = (HESSIANS + HESSIANS.transpose(0, 2, 1)) / 2
SLOPES = np.random.default_rng(1).normal(size=(4, 3))


def quadratic(x, level):
    """Residuals with constant Hessians: the point, and the curvature S at it."""
    r = level + SLOPES @ x + np.einsum("ijk,j,k->i", HESSIANS, x, x) / 2
    J = SLOPES + HESSIANS @ x
    return factorised_linearization(
        jnp.asarray(x), jnp.asarray(r), jnp.asarray(J), graded=False
    ), np.einsum("i,ijk->jk", r, HESSIANS)


def rows_after(level, step, rows=None, excess=10.0):
    before, _ = quadratic(np.zeros(3), level)
    after, S = quadratic(step, level)
    rows = no_curvature(3, before.x) if rows is None else rows
    change, L = after.gradient - after.r @ before.J, before.triangle.L
    return learned(rows, L, change, jnp.asarray(step), jnp.asarray(excess)), S


def upwards(step):
    """A level of large residuals whose curvature along the step is positive."""
    return 100 * np.sign(np.einsum("ijk,j,k->i", HESSIANS, step, step))


@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_rows_are_part_of_the_linear_model_and_leave_the_gradient(x64, lam):
    point, _ = quadratic(np.ones(3), np.ones(4))
    J, g, start = point.J, point.gradient, jnp.zeros(())
    for W in (jnp.asarray(np.random.default_rng(2).normal(size=(2, 3))), jnp.zeros((2, 3))):
        system = TriangleSystem(guarded(point.triangle, W), 4, start, lambda w: w @ J)
        step, A = system.damped(jnp.asarray(lam)), J.T @ J + W.T @ W
        p = -np.linalg.solve(A + lam * np.eye(3), g)
        np.testing.assert_allclose(step.p, p)
        np.testing.assert_allclose(step.model_norm, np.sum((J @ p) ** 2))
        np.testing.assert_allclose(step.predicted, -g @ p - p @ A @ p / 2)


def test_what_is_learned_acts_on_the_step_as_the_curvature_does(x64):
    step = np.asarray([0.1, -0.2, 0.3])
    W, S = rows_after(upwards(step), step)
    np.testing.assert_allclose(W.T @ W @ step, S @ step, rtol=1e-9)


def test_what_was_too_much_shrinks_to_what_there_is(x64):
    step = np.asarray([0.1, -0.2, 0.3])
    W, S = rows_after(upwards(step), step, rows=jnp.full((3, 3), 1e3))
    np.testing.assert_allclose(jnp.sum((W @ step) ** 2), step @ S @ step, rtol=1e-9)


def test_little_or_negative_curvature_is_left_to_the_trust_region(x64):
    step = np.asarray([0.1, -0.2, 0.3])
    for level, excess in (
        (-upwards(step), 10.0),
        (1e-3 * upwards(step), 10.0),
        (upwards(step), 1.0),
    ):
        W, _ = rows_after(level, step, rows=jnp.ones((3, 3)), excess=excess)
        np.testing.assert_array_equal(W, 0)


def brown_dennis(x):
    t = jnp.arange(1, 21) / 5
    return (x[0] + t * x[1] - jnp.exp(t)) ** 2 + (x[2] + x[3] * jnp.sin(t) - jnp.cos(t)) ** 2


def test_large_residuals_take_few_steps_and_the_rank_is_that_of_the_jacobian(x64):
    # Without the rows: 364 evaluations (MINPACK: 424).
    with jax.numpy_dtype_promotion("standard"):
        solution = fnopt.least_squares(brown_dennis, jnp.asarray([25.0, 5.0, -5.0, -1.0]))
    assert bool(solution.converged)
    np.testing.assert_allclose(2 * solution.cost, 85822.2, rtol=1e-6)
    assert int(solution.nfev) < 60
    assert int(solution.rank) == 4


def test_the_rank_leaves_out_what_only_the_curvature_determines(x64):
    # The residuals depend on x + y only, and second_derivative a lot.
    def residuals(p):
        s = p[0] + p[1]
        return jnp.stack([s, 10 + s**2, 10 + 2 * s**2])

    solution = fnopt.least_squares(residuals, jnp.asarray([0.7, 0.2]))
    assert bool(solution.converged)
    assert int(solution.rank) == 1
