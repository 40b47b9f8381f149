from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.numerics import compute_dtype, is_narrow, round_to_nearest, stochastic_round

NARROW = {
    "bfloat16": (1e-30, 1e30),
    "float16": (1e-9, 6e4),  # with numbers below its smallest normal one, 6e-5
    "float8_e4m3fn": (1e-4, 440.0),
    "float8_e5m2": (1e-6, 5e4),
}
every_dtype = pytest.mark.parametrize("name", NARROW)


def numbers(name, n=512):
    low, high = NARROW[name]
    rng = np.random.default_rng(0)
    size = np.exp(rng.uniform(np.log(low), np.log(high), n)).astype(np.float32)
    powers = np.float32(2.0) ** np.arange(-8, 9)  # where the distance of neighbors changes
    ends = np.concatenate([size, powers, powers * np.float32(1 - 2.0**-20)])
    return np.concatenate([ends, -ends, np.zeros(1, np.float32)])


@functools.lru_cache
def drawn(name, draws=64):
    """Every number rounded many times, with other random numbers."""
    x, dtype = jnp.asarray(numbers(name)), jnp.dtype(name)
    keys = jax.random.split(jax.random.key(1), draws)
    fn = jax.vmap(lambda key: stochastic_round(x, dtype, key).astype(jnp.float32))
    return np.asarray(jax.jit(fn)(keys)), np.asarray(jax.jit(lambda: round_to_nearest(x, dtype))())


@every_dtype
def test_nearest_is_the_conversion(name):
    expected = numbers(name).astype(jnp.dtype(name)).astype(np.float32)
    np.testing.assert_array_equal(drawn(name)[1], expected)


@every_dtype
def test_random_rounding_takes_a_neighbor_and_has_no_bias(name):
    x, (many, _) = numbers(name).astype(np.float64), drawn(name)
    low, high = many.min(0).astype(np.float64), many.max(0).astype(np.float64)
    back = many.astype(jnp.dtype(name)).astype(np.float32)
    np.testing.assert_array_equal(back, many)
    assert ((low <= x) & (x <= high) | (low == high)).all()
    distance = np.spacing(np.abs(x).astype(np.float32)) * 2.0 ** (
        23 - jnp.finfo(jnp.dtype(name)).nmant
    )
    distance = np.maximum(distance, float(jnp.finfo(jnp.dtype(name)).smallest_subnormal))
    assert (np.abs(many - x) <= distance).all()  # no further than the other neighbor
    # The error of one draw is less than the distance; the mean of them all is near zero.
    error = (many - x) / distance
    assert abs(error.mean()) < 4 / np.sqrt(error.size) * 0.5


@every_dtype
def test_what_the_dtype_holds_stays(name):
    x = jnp.asarray(numbers(name)).astype(jnp.dtype(name))
    y = stochastic_round(x.astype(jnp.float32), jnp.dtype(name), jax.random.key(0))
    assert y.dtype == jnp.dtype(name)
    np.testing.assert_array_equal(np.asarray(y, np.float32), np.asarray(x, np.float32))


def test_infinities_nan_and_wide_dtypes():
    x = jnp.asarray([jnp.inf, -jnp.inf, jnp.nan, 3.4e38], jnp.float32)
    y = np.asarray(stochastic_round(x, jnp.bfloat16, jax.random.key(0)), np.float32)
    np.testing.assert_array_equal(y[:3], np.asarray(x)[:3])
    assert y[3] >= 3.38e38
    assert stochastic_round(x, jnp.float32, jax.random.key(0)).dtype == jnp.float32
    assert is_narrow(jnp.float16)
    assert not is_narrow(jnp.complex64)
    assert compute_dtype(jnp.float8_e4m3fn, jnp.bfloat16) == jnp.float32
