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
    status, _ = judged(moved, before, after, aim, pull, scale, number(10), np.int32(0), tol)
    assert Status(int(status)) is claim


def test_a_value_with_a_large_offset_needs_flat_steps_in_a_row():
    # A gain of 0.01 of 1e4 is hardly seen in float32, and one step may gain so little anywhere.
    def number(x):
        return np.float32(x)

    one = number(1)
    tol = tolerances("float32", float(np.finfo("float32").eps), None, None, None, one, one)
    slope, steps, told = number([1.5]), np.int32(0), []
    for i in range(3):
        before = Point(number([i]), number(1e4 - i * 0.01), slope)
        after = Point(number([i + 1]), number(1e4 - (i + 1) * 0.01), slope)
        aim = Aim(after.x, number(0.01), number([1]), None)
        moved, pull = np.int32(MOVED), number(1.5)
        status, steps = judged(
            moved, before, after, aim, pull, number(2e4), number(2e4), steps, tol
        )
        told.append(Status(int(status)))
    assert told == [Status.RUNNING, Status.RUNNING, Status.CONVERGED_COST]
