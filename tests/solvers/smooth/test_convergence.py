from __future__ import annotations

import numpy as np
import pytest

from fnopt import Status
from fnopt.solvers.smooth._convergence import judged, tolerances
from fnopt.solvers.smooth._method import MOVED, Aim, Point

# dtype, value, the last gain, the gradient, the largest gradient so far, and the claim.
CASES = [
    ("float32", 1e-2, 1e-6, 6e-4, 1e1, Status.RUNNING),  # a gain that float32 sees
    ("float32", 1e-2, 1e-10, 6e-4, 1e1, Status.CONVERGED_COST),
    ("float32", 1e-2, 1e-10, 1e-2, 1e2, Status.RUNNING),
    ("float32", 1e-2, 1e-10, 2e-4, 1e1, Status.CONVERGED_GRADIENT),
    ("float64", 1e-7, 1e-9, 3e-2, 1e6, Status.CONVERGED_COST),  # a tiny part of the largest
    ("float64", 1e-7, 1e-9, 3e-2, 1e3, Status.RUNNING),
]


@pytest.mark.parametrize(("dtype", "value", "gain", "slope", "steepest", "claim"), CASES)
def test_claims_by_the_value(dtype, value, gain, slope, steepest, claim, x64):
    def number(x):
        return np.asarray(x, dtype)

    one = number(1)
    tol = tolerances(dtype, float(np.finfo(dtype).eps), None, None, None, one, one)
    before = Point(number([1]), number(value + gain), number([slope]))
    after = Point(number([2]), number(value), number([slope]))
    aim = Aim(after.x, number(gain), number([0.1]), None)
    moved, pull, scale = np.int32(MOVED), number(slope), number(steepest)
    status = judged(moved, before, after, aim, pull, scale, number(10), tol)
    assert Status(int(status)) is claim
