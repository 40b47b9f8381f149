from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def values(schedule, counts):
    return np.asarray([schedule(c) for c in counts])


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_every_value_is_met_at_its_step(kind):
    schedule = fnopt.piecewise_interpolate_schedule(kind, 2.0, {10: 0.5, 30: 4.0})
    np.testing.assert_array_equal(values(schedule, [0, 10, 30, 10**9]), [2.0, 1.0, 4.0, 4.0])


def test_linear_onecycle_is_interpolation_between_its_corners():
    schedule = fnopt.linear_onecycle_schedule(100, 2.0, 0.29, 0.7, 4.0, 8.0)
    # 0.29 * 100 is 28.999999999999996 in float64; the peak is at step 29 all the same
    corners = [0, 29, 70, 100], [0.5, 2.0, 0.5, 0.0625]
    counts = np.arange(0, 120, 7)
    np.testing.assert_allclose(values(schedule, counts), np.interp(counts, *corners), rtol=1e-6)


def test_a_factor_of_zero_and_a_restart_from_it_stay_finite():
    schedule = fnopt.piecewise_interpolate_schedule("linear", 1.0, {4: 0.0, 8: 3.0})
    np.testing.assert_array_equal(values(schedule, [2, 4, 6, 9]), [0.5, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("step", [2**24 + 1, 2**25 + 3, 2**30 + 1])
def test_boundaries_that_float32_does_not_hold_are_met_exactly(step):
    makers = [
        lambda: fnopt.piecewise_constant_schedule(1.0, {step: 0.5}),
        lambda: fnopt.join_schedules([fnopt.constant_schedule(x) for x in (1.0, 0.5)], [step]),
        lambda: fnopt.warmup_stable_decay_schedule(1.0, 1.0, 0, step - 1, 1, 0.5),
    ]
    for make in makers:
        schedule = make()
        at = [float(schedule(jnp.asarray(step + i, jnp.int32))) for i in (-1, 0, 1)]
        assert at == [1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: fnopt.piecewise_interpolate_schedule("cubic", 1.0),
            ValueError,
            "interpolate_type is 'cubic', expected one of 'linear', 'cosine'",
        ),
        (
            lambda: fnopt.piecewise_interpolate_schedule("linear", 1.0, {3: -1.0}),
            ValueError,
            r"piecewise_interpolate_schedule: the factors \[-1.0\] are negative",
        ),
        (lambda: fnopt.linear_onecycle_schedule(0, 1.0), ValueError, "transition_steps = 0.0"),
        (lambda: fnopt.cosine_onecycle_schedule(9, 1.0, 1.5), ValueError, "pct_start = 1.5"),
    ],
)
def test_bad_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
