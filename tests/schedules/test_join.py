from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt

RAMP = fnopt.linear_schedule(0.0, 1.0, 4)


def test_piecewise_keeps_pairs_in_order():
    schedule = fnopt.piecewise_constant_schedule(1.0, {20: 0.5, 10: 0.25})
    assert schedule.boundaries_and_scales == ((10.0, 0.25), (20.0, 0.5))
    assert schedule == fnopt.piecewise_constant_schedule(1.0, [(10, 0.25), (20, 0.5)])


def test_piecewise_boundaries_may_be_numpy_integers():
    np = pytest.importorskip("numpy")
    schedule = fnopt.piecewise_constant_schedule(1.0, {np.int64(2): np.float32(0.5)})
    assert [float(schedule(i)) for i in (1, 2)] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([(20, 0.5), (10, 0.25)], ValueError, r"the boundaries are \[20.0, 10.0\], expected"),
        ([(10, 0.5), (10, 0.25)], ValueError, "expected increasing"),
        ({-1: 0.5}, ValueError, "counts >= 0"),
        ({1: -0.5}, ValueError, r"the factors \[-0.5\] are negative"),
        ([10, 20], TypeError, "expected a dict from step to factor"),
        (3.0, TypeError, "expected a dict from step to factor"),
    ],
)
def test_piecewise_refuses(given, error, message):
    with pytest.raises(error, match=message):
        fnopt.piecewise_constant_schedule(1.0, given)


@pytest.mark.parametrize(
    ("schedules", "boundaries", "error", "message"),
    [
        ([], [], ValueError, "0 schedules with 0 boundaries"),
        ([RAMP, RAMP], [], ValueError, "2 schedules with 0 boundaries, expected n >= 1"),
        ([RAMP], [3], ValueError, "1 schedule with 1 boundary"),
        ([RAMP] * 3, [9, 4], ValueError, r"the boundaries are \[9.0, 4.0\]"),
        ([RAMP, 0.1], [4], TypeError, r"member 1 is 0.1, expected a Schedule; wrap"),
        ([RAMP, abs], [4], TypeError, "wrap a function as fnopt.schedule"),
    ],
)
def test_join_refuses(schedules, boundaries, error, message):
    with pytest.raises(error, match=message):
        fnopt.join_schedules(schedules, boundaries)


def test_join_of_one_is_that_one():
    schedule = fnopt.join_schedules([RAMP], [])
    assert [float(schedule(i)) for i in (0, 2, 9)] == [0.0, 0.5, 1.0]


def test_a_schedule_is_not_asked_for_times_before_its_own():
    """What a schedule would give there is not used, but would make derivatives NaN."""
    log = fnopt.schedule(lambda count: jnp.log1p(jnp.asarray(count, jnp.float32)))
    joined = fnopt.join_schedules([RAMP, log], [4.0])
    slope = jax.grad(lambda b: fnopt.join_schedules([RAMP, log], [b])(1))(4.0)
    assert [float(joined(i)) for i in (2, 4)] == [0.5, 0.0]
    assert bool(jnp.isfinite(slope))


def test_boundaries_past_2_to_the_24():
    late = fnopt.join_schedules([RAMP, RAMP], [2.0**25])
    values = [float(late(jnp.asarray(2**25 + i, jnp.int32))) for i in (-1, 0, 1)]
    assert values == [1.0, 0.0, 0.25]
