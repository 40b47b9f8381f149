"""L-BFGS(-B) against SciPy's: `python -m benchmarks minimize` prints the table of all problems."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

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
        assert mine.claimed, problem.name
        assert not is_false(mine), problem.name
        np.testing.assert_allclose(mine.value, peers.value, rtol=1e-6, atol=1e-7)
