from __future__ import annotations

import jax.numpy as jnp
import pytest

import fnopt


def test_linear_is_exact_at_both_ends():
    schedule = fnopt.linear_schedule(0.1, 0.3, 7)
    assert float(schedule(0)) == float(jnp.float32(0.1))
    assert float(schedule(7)) == float(schedule(10**9)) == float(jnp.float32(0.3))


def test_a_transition_of_no_steps_is_over_at_once():
    schedule = fnopt.linear_schedule(0.0, 1.0, transition_steps=0, transition_begin=3)
    assert [float(schedule(i)) for i in (0, 2, 3, 4)] == [0.0, 0.0, 1.0, 1.0]
    schedule = fnopt.polynomial_schedule(0.0, 1.0, power=2, transition_steps=0)
    assert float(schedule(0)) == 1.0


def test_steps_past_2_to_the_24_are_told_apart():
    """float32 holds whole numbers up to 2^24 only; ten million steps on, a phase still moves."""
    begin = 2.0**25
    schedule = fnopt.linear_schedule(0.0, 1.0, transition_steps=4, transition_begin=begin)
    values = [float(schedule(jnp.asarray(2**25 + i, jnp.int32))) for i in range(5)]
    assert values == [0.0, 0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fnopt.linear_schedule(1.0, 0.0, -1), "transition_steps = -1.0, expected"),
        (lambda: fnopt.linear_schedule(1.0, 0.0, 5, -1), "transition_begin = -1.0, expected"),
        (lambda: fnopt.polynomial_schedule(1.0, 0.0, -2, 5), "power = -2.0, expected"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_schedule_of_a_schedule_is_refused():
    with pytest.raises(TypeError, match="value can't be scheduled"):
        fnopt.constant_schedule(fnopt.constant_schedule(0.1))


def test_function_gets_the_integer_count():
    table = jnp.asarray([1.0, 0.5, 0.25])
    schedule = fnopt.schedule(lambda count: table[count])
    assert [float(schedule(jnp.asarray(i))) for i in range(3)] == [1.0, 0.5, 0.25]


def test_function_that_gives_an_array_is_refused():
    with pytest.raises(ValueError, match=r"returned float32\[2\], expected one real number"):
        fnopt.schedule(lambda count: jnp.ones(2))(0)


def test_a_number_is_no_function():
    with pytest.raises(TypeError, match=r"fn = 0\.1 is a float, expected a function"):
        fnopt.schedule(0.1)
