from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import poisson_batch
from fnopt.gradients._noise import _sufficient_capacity


def test_every_example_is_drawn_as_often_as_it_should():
    key, n, q, steps = jax.random.key(0), 40, 0.3, 2000
    drawn = jax.jit(jax.vmap(lambda step: poisson_batch(key, n, q, step=step)))(jnp.arange(steps))
    row, column = np.nonzero(np.asarray(drawn.where))
    inside = np.zeros((steps, n))
    np.add.at(inside, (row, np.asarray(drawn.index)[row, column]), 1)
    assert inside.max() == 1
    np.testing.assert_array_equal(inside.sum(1), drawn.count)
    # Five standard deviations of a mean of 2,000 draws, and of the covariance of two examples.
    np.testing.assert_allclose(inside.mean(0), q, atol=5 * np.sqrt(q * (1 - q) / steps))
    covariance = np.cov(inside.T) - q * (1 - q) * np.eye(n)
    assert np.abs(covariance).max() < 5 * q * (1 - q) / np.sqrt(steps)
    assert int(drawn.overflow.max()) == 0


def test_what_does_not_fit_is_reported():
    batch = jax.jit(lambda key: poisson_batch(key, 100, 0.5, capacity=10))(jax.random.key(1))
    assert batch.where.all()
    assert int(batch.overflow) == int(batch.count) - 10 > 0


def test_traced_rates_and_the_ends():
    run = jax.jit(lambda q: poisson_batch(jax.random.key(0), 6, q, capacity=6))
    nobody, everybody = run(0.0), run(1.0)
    assert int(nobody.count) == 0
    assert not nobody.where.any()
    assert everybody.index.tolist() == [0, 1, 2, 3, 4, 5]
    assert everybody.where.all()


@pytest.mark.parametrize(("n", "q"), [(100, 0.1), (60_000, 256 / 60_000), (1000, 0.5), (50, 1e-3)])
def test_the_default_capacity_holds(n, q):
    stats = pytest.importorskip("scipy.stats")
    capacity = _sufficient_capacity(n, q)
    assert stats.binom.sf(capacity, n, q) < 1e-10
    assert capacity <= n * q + 10 * np.sqrt(n * q) + 20  # and wastes little


def test_errors():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match=r"rate is 1\.5, expected a probability"):
        poisson_batch(key, 10, 1.5)
    with pytest.raises(ValueError, match="rate is nan, expected a probability"):
        poisson_batch(key, 10, float("nan"))
    with pytest.raises(TypeError, match=r"rate is float32\[2\], expected one number"):
        poisson_batch(key, 10, jnp.ones(2))
    with pytest.raises(ValueError, match="capacity is 11, expected at most the 10 examples"):
        poisson_batch(key, 10, 0.5, capacity=11)
    with pytest.raises(ValueError, match="the rate is traced and capacity is None"):
        jax.jit(lambda q: poisson_batch(key, 10, q))(0.5)
    with pytest.raises(TypeError, match=r"size is 10\.0, expected an int"):
        poisson_batch(key, 10.0, 0.5)
    with pytest.raises(TypeError, match=r"`step` is float32\[\], expected one integer"):
        poisson_batch(key, 10, 0.5, step=1.5)
    with pytest.raises(TypeError, match="expected one PRNG key"):
        poisson_batch(0, 10, 0.5)
