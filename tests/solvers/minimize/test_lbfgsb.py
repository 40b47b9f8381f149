"""L-BFGS(-B) against SciPy's: `python -m benchmarks minimize` prints the table of all problems."""

from __future__ import annotations

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
        assert mine.nfev <= 1.5 * peers.nfev, problem.name
        assert mine.claimed, problem.name
        assert not is_false(mine), problem.name
        np.testing.assert_allclose(mine.value, peers.value, rtol=1e-6, atol=1e-7)


def test_far_bounds_of_a_function_that_overflows_on_the_way_to_them(x64: None):
    """The first step doesn't go farther than a few times the params."""
    lower, upper = jnp.array([-1e3, -1.0, -1e8]), jnp.array([1e3, 1e-3, 1e8])
    end = fnopt.minimize(
        lambda x: jnp.sum(jnp.cosh(x - jnp.asarray([1.0, 2.0, 3.0]))),
        jnp.asarray([3.0, 0.0, 1e-20]),
        method="lbfgsb",
        bounds=(lower, upper),
    )
    assert bool(end.converged), end.message
    np.testing.assert_allclose(end.params, [1.0, 1e-3, 3.0], rtol=1e-4)
