"""A residual function is traced once, whatever is asked of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

T = np.linspace(0.0, 2.0, 6, dtype=np.float32)
Y = 2 * np.exp(-T)
START = {"a": jnp.float32(1), "k": jnp.float32(0.5)}


@pytest.fixture
def counted():
    """A function that calls another one, and how many times it was called."""

    class Counted:
        def __init__(self):
            self.calls = 0

        def __call__(self, fn):
            def called(*args):
                self.calls += 1
                return fn(*args)

            return called

    return Counted()


def decay(t, a, k):
    return a * jnp.exp(-k * t)


def residuals(p):
    return decay(T, p["a"], p["k"]) - Y


def jacobian(p):
    return jax.jacfwd(residuals)(p)


OPTIONS = {
    "plain": {},
    "everything": {
        "bounds": (0.0, 9.0),
        "loss": "huber",
        "weights": np.ones(6, np.float32),
        "jac": jacobian,
    },
    "functions": {
        "loss": jnp.log1p,
        "sigma": 0.1,
        "constraints": {"k": fnopt.tied(lambda p: p["a"] / 2)},
    },
    "callback": {"callback": lambda info: None, "history": True, "max_steps": 9},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_fit_within_a_program_traces_the_residuals_once(counted, name):
    fn = counted(residuals)
    jax.eval_shape(lambda p: fnopt.least_squares(fn, p, **OPTIONS[name]).params, START)
    assert counted.calls == 1


def test_an_eager_fit_traces_the_function_once_in_every_call(counted):
    fn = counted(residuals)
    options = {**OPTIONS["everything"], "max_steps": 1}
    for _ in range(2):
        counted.calls = 0
        fnopt.least_squares(fn, START, **options)
        assert counted.calls == 1


def test_an_update_and_curve_fits_trace_once(counted):
    tx = fnopt.levenberg_marquardt()
    fn = counted(residuals)
    jax.eval_shape(lambda p: tx.update(None, tx.init(p), p, residual_fn=fn), START)
    assert counted.calls == 1
    counted.calls = 0
    model, start = counted(decay), jnp.ones(2)
    jax.eval_shape(lambda y: fnopt.curve_fit(model, T, y, start, sigma=Y), Y)
    assert counted.calls == 1
    counted.calls = 0
    jax.eval_shape(lambda y: fnopt.curve_fit_batch(model, T, y, start).params, np.stack([Y, Y]))
    assert counted.calls <= 4
