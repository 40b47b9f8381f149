from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import fnopt


def test_warmup_of_no_steps_starts_at_the_peak():
    schedule = fnopt.warmup_cosine_decay_schedule(0.0, 0.5, 0, 10)
    assert [float(schedule(0)), float(schedule(10))] == [0.5, 0.0]
    assert float(fnopt.warmup_constant_schedule(0.0, 0.5, 0)(0)) == 0.5


def test_a_warmup_that_is_the_whole_schedule_is_refused():
    # As optax does: the peak would never be reached, and nothing be left to decay in.
    with pytest.raises(ValueError, match=r"expected decay_steps > warmup_steps"):
        fnopt.warmup_cosine_decay_schedule(0.0, 1.0, 5, 5)


def test_warmup_to_a_peak_of_zero():
    schedule = fnopt.warmup_cosine_decay_schedule(1.0, 0.0, 4, 8)
    assert [float(schedule(i)) for i in (0, 2, 4, 9)] == [1.0, 0.5, 0.0, 0.0]


def test_a_decay_that_ends_before_the_warmup_is_refused():
    with pytest.raises(ValueError, match=r"decay_steps = 5\.0, warmup_steps = 10\.0, expected"):
        fnopt.warmup_cosine_decay_schedule(0.0, 1.0, warmup_steps=10, decay_steps=5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fnopt.cosine_decay_schedule(1.0, 0), "decay_steps = 0.0, expected"),
        (lambda: fnopt.exponential_decay(1.0, 0, 0.5), "transition_steps = 0.0, expected"),
        (lambda: fnopt.exponential_decay(1.0, 5, 0), "decay_rate = 0.0, expected"),
        (lambda: fnopt.warmup_constant_schedule(0.0, 1.0, -1), "warmup_steps = -1.0, expected"),
    ],
)
def test_bad_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_cosine_is_exact_at_both_ends():
    schedule = fnopt.cosine_decay_schedule(0.1, 10, alpha=0.3)
    assert schedule(0) == jnp.float32(0.1)
    assert schedule(10) == schedule(10**6) == jnp.float32(0.1 * 0.3)


def test_numbers_may_be_traced_and_swept():
    @jax.vmap
    def final(decay_steps):
        return fnopt.cosine_decay_schedule(1.0, decay_steps)(8)

    swept = final(jnp.asarray([8.0, 16.0]))
    assert jnp.allclose(swept, jnp.asarray([0.0, 0.5]), atol=1e-6)
