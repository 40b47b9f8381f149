"""Curvature of single params: minima at which many columns of the Jacobian vanish."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from fnopt.solvers.model._linearization import Linearization, NormalMatrix, half_square
from fnopt.solvers.model._own_curvature import no_own_curvature, own_learned


@functools.partial(jax.jit, static_argnums=0)
def linearised(r, x):
    """The point with its Gram matrix, and the curvature S that this leaves out."""
    J, value = jax.jacfwd(r)(x), r(x)
    columns = jnp.linalg.norm(J, axis=0)
    G = NormalMatrix(J.T @ J, jnp.ones_like(x))
    point = Linearization(x, value, G, half_square(value), J.T @ value, columns)
    hessian = jax.hessian(lambda x: half_square(r(x)))(x)
    return point, hessian - J.T @ J


def learned_on_the_way(r, x, steps):
    """What is known and used after every step, and the curvature at the end of it."""
    own = no_own_curvature(True, x)
    for step in steps:
        before, after = linearised(r, x)[0], linearised(r, x + step)[0]
        own, x = own_learned(own, before, after, step), x + step
        yield own, linearised(r, x)[1]


def test_what_one_step_says_is_used_when_it_foretells_the_next(x64):
    def saturated(p):
        return 2 * jnp.sin(p) - jnp.asarray([2.5, 4.0, 3.0])

    steps = jnp.asarray([[1e-3, -2e-3, 3e-3], [2e-3, 1e-3, -1e-3], [1e-3, 0, 1e-3]])
    first, second, third = learned_on_the_way(saturated, jnp.asarray([1.5, 1.2, 1.0]), steps)
    (known, used), S = first
    np.testing.assert_allclose(known, np.diag(S), rtol=2e-2)  # it is that of halfway
    assert not np.any(used)
    for (known, used), S in (second, third):  # a param that stays keeps what is known of it
        np.testing.assert_allclose(known, np.diag(S), rtol=2e-2)
        np.testing.assert_array_equal(used, known)


def test_curvature_that_couples_params_is_not_used(x64):
    A = jnp.asarray(np.random.default_rng(1).normal(size=(12, 12)))

    def coupled(p):
        return jnp.append(0 * p, 5 + p @ (A @ A.T) @ p)

    steps = 1e-3 * np.random.default_rng(0).normal(size=(4, 12))
    for own, _ in learned_on_the_way(coupled, jnp.full(12, 0.1), steps):
        assert not np.any(own[1])


def test_curvature_downwards_is_none(x64):
    steps = jnp.full((3, 2), 1e-3)
    for own, S in learned_on_the_way(lambda p: 5 - p**2, jnp.asarray([0.1, 0.2]), steps):
        assert np.all(np.diag(S) < 0)
        assert not np.any(own)


def test_many_columns_that_vanish_at_the_minimum(x64):
    # Of saturated terms, and of squares in units from 0.01 to 10, whose params converge linearly
    # under any one damping, each at another pace.
    n = 72
    units = 10.0 ** (np.arange(n) % 4 - 2)
    draw = np.random.default_rng(0)

    def residuals(p, squares):
        return jnp.where(squares, (units * p) ** 2 + 1, 2 * jnp.sin(p) - 2.5)

    @jax.jit
    @jax.vmap
    def fit(start, squares):
        return fnopt.least_squares(residuals, start, args=(squares,))

    starts = np.stack([draw.uniform(0.3, 1.2, n), draw.normal(size=n), draw.normal(size=n)])
    end = fit(jnp.asarray(starts), jnp.asarray([False, False, True]))
    assert np.all(end.converged), end.message
    np.testing.assert_allclose(end.cost, [n / 8, n / 8, n / 2], rtol=1e-15)
    assert np.max(end.nfev) < 80
