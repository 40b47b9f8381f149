from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def reference(steps, first, mult, alpha=0.0):
    """The paper's schedule by going through it step by step."""
    values, begin, length = [], 0.0, float(first)
    for t in range(steps):
        while t >= begin + length:
            begin, length = begin + length, length * mult
        cosine = 0.5 * (1 + math.cos(math.pi * (t - begin) / length))
        values.append((1 - alpha) * cosine + alpha)
    return np.asarray(values)


def values(schedule, steps):
    return jax.jit(jax.vmap(schedule))(jnp.arange(steps, dtype=jnp.int32))


@pytest.mark.parametrize("first", [1, 3, 10])
@pytest.mark.parametrize("mult", [1, 2, 3, 5, 7])
def test_every_step_of_whole_cycles(first, mult):
    schedule = fnopt.cosine_restarts_schedule(1.0, first, mult, alpha=0.1)
    expected = reference(3000, first, mult, 0.1)
    # a cycle is known by its beginning and length; in float32 both are exact here
    np.testing.assert_allclose(values(schedule, 3000), expected, atol=3e-6)


@pytest.mark.parametrize("mult", [1.0, 1.25, 1.5, 2.0])
@pytest.mark.usefixtures("x64")
def test_fractional_growth(mult):
    schedule = fnopt.cosine_restarts_schedule(1.0, 8, mult)
    np.testing.assert_allclose(values(schedule, 2000), reference(2000, 8, mult), atol=1e-10)


@pytest.mark.parametrize("mult", [1, 2, 3])
def test_agrees_with_torch(mult):
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.zeros(()))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        torch.optim.SGD([w], lr=0.5), T_0=4, T_mult=mult, eta_min=0.05
    )
    expected = []
    for epoch in range(100):
        scheduler.step(epoch)
        expected.append(scheduler.get_last_lr()[0])
    schedule = fnopt.cosine_restarts_schedule(0.5, 4, mult, alpha=0.1)
    np.testing.assert_allclose(values(schedule, 100), expected, rtol=1e-5, atol=1e-6)


def test_restarts_come_at_their_very_step():
    """Ten cycles of 3^i: the logarithm of a power rounds, the restart must not be late."""
    schedule = fnopt.cosine_restarts_schedule(1.0, 1, 3)
    starts = [(3**i - 1) // 2 for i in range(1, 13)]
    assert [float(schedule(t)) for t in starts] == [1.0] * 12
    assert all(float(schedule(t - 1)) < 0.8 for t in starts[1:])


@pytest.mark.usefixtures("x64")
def test_derivative_to_the_growth_at_equal_cycles():
    """Growth 1 is a special case of the formula, not of its derivative."""

    def value(mult):
        return fnopt.cosine_restarts_schedule(1.0, 4, mult)(jnp.asarray(14))

    h = 1e-6
    difference = (value(1.0 + 2 * h) - value(1.0 + h)) / h
    np.testing.assert_allclose(jax.grad(value)(1.0), difference, rtol=1e-3)


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match=r"t_mult = 0\.5, expected t_mult >= 1"):
        fnopt.cosine_restarts_schedule(1.0, 4, 0.5)
    with pytest.raises(ValueError, match="0 schedules"):
        fnopt.sgdr_schedule([])
