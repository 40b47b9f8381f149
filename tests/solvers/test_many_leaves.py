"""Fits with params of many leaves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from fnopt.solvers import gauss_newton


def leaves(n):
    return {f"p{i:02}": jnp.full((), 0.5, jnp.float32) for i in range(n)}


def residuals(params, data):
    """One for each leaf: its minimum is the logarithm of its datum, the root of it too."""
    return {name: jnp.exp(a) - y for (name, a), y in zip(params.items(), data, strict=True)}


def test_solutions_and_their_derivatives_are_those_of_every_leaf():
    y = np.linspace(0.5, 3.0, 20, dtype=np.float32)

    def solve(y):
        # Two of a shape that no other has, and one in which nothing is alike.
        p = leaves(20) | {"pair": jnp.zeros(2), "other": jnp.ones(())}

        def fn(p, y):
            p = dict(p)
            pair, other = p.pop("pair"), p.pop("other")
            return residuals(p, y), pair - y[:2], jnp.sinh(other) - y[4]

        solution = fnopt.least_squares(fn, p, args=(y,), solver=gauss_newton())
        return solution.params, solution.residuals[0]["p07"]

    (found, left), (moved, _) = jax.jvp(solve, (y,), (jnp.ones_like(y),))
    wants = {f"p{i:02}": np.log(y[i]) for i in range(20)}
    slopes = {f"p{i:02}": 1 / y[i] for i in range(20)}
    wants |= {"pair": y[:2], "other": np.arcsinh(y[4])}
    slopes |= {"pair": np.ones(2), "other": 1 / np.hypot(1, y[4])}
    for name, want in wants.items():
        np.testing.assert_allclose(found[name], want, atol=1e-5)
        np.testing.assert_allclose(moved[name], slopes[name], rtol=1e-4)
    assert abs(left) < 1e-5
