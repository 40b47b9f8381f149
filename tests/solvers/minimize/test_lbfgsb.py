"""L-BFGS(-B) against SciPy's: `python -m benchmarks minimize` prints the table of all problems."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from benchmarks.cases.minimize import is_false, runs
from benchmarks.problems.smooth import BOUNDED, UNBOUNDED

# Their starts are far from 1, their first gradients large, their bounds near or far.
CHOSEN = {
    "free": (UNBOUNDED, ("box", "variably_dimensioned")),
    "bounded": (BOUNDED, ("powell_singular", "extended_rosenbrock", "quadratic_1e6")),
}


@pytest.mark.parametrize("kind", CHOSEN)
def test_evaluations_beside_scipys(kind: str, x64: None):
    pytest.importorskip("scipy")
    family, names = CHOSEN[kind]
    problems = [problem for problem in family if problem.name in names]
    found = runs(problems, jnp.float64, {"lbfgsb": "lbfgsb"})
    for problem, mine, peers in zip(problems, found["lbfgsb"], found["SciPy"], strict=True):
        if kind == "free":
            assert mine.nfev <= 1.5 * peers.nfev, problem.name
        assert mine.converged, problem.name
        assert not is_false(mine), problem.name
        np.testing.assert_allclose(mine.value, peers.value, rtol=1e-6, atol=1e-7)


def test_far_bounds_of_a_function_that_overflows_on_the_way_to_them(x64: None):
    """The first step is as long as the start is large."""
    lower, upper = jnp.array([-1e3, -1.0, -1e8]), jnp.array([1e3, 1e-3, 1e8])
    end = fnopt.minimize(
        lambda x: jnp.sum(jnp.cosh(x - jnp.asarray([1.0, 2.0, 3.0]))),
        jnp.asarray([3.0, 0.0, 1e-20]),
        method="lbfgsb",
        bounds=(lower, upper),
    )
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params, [1.0, 1e-3, 3.0], rtol=1e-4)


def test_as_many_peaks_are_found_within_bounds_as_by_scipy(x64: None):
    """A first step to a bound loses the peak: the height goes to zero, and with it the slopes."""
    optimize = pytest.importorskip("scipy.optimize")
    rng, t, truth = np.random.default_rng(0), np.linspace(0, 5, 30), np.asarray([2.0, 2.5, 0.6])

    def peak(p):
        return p[0] * jnp.exp(-((t - p[1]) ** 2) / (2 * p[2] ** 2))

    y = peak(truth) + 0.02 * rng.standard_normal(30)
    lower, upper = np.asarray([0, 0, 0.05]), np.asarray([10, 5, 5])
    starts = lower + (upper - lower) * rng.uniform(0.02, 0.98, (20, 3))

    def fun(p):
        return jnp.sum((peak(p) - y) ** 2)

    found = jax.jit(
        jax.vmap(lambda x: fnopt.minimize(fun, x, method="lbfgsb", bounds=(lower, upper)).value)
    )(starts)
    slope = jax.jit(jax.value_and_grad(fun))
    peers = [
        optimize.minimize(
            lambda x: tuple(map(np.asarray, slope(x))),
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=np.stack([lower, upper], 1),
        ).fun
        for start in starts
    ]
    least = float(fun(truth))
    assert np.sum(found <= least) >= np.sum(np.asarray(peers) <= least)
    assert np.sum(found <= least) >= 12
