from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.numerics import exponents

EDGES = np.concatenate([[0], exponents.histogram_edges(), [np.inf]])


def test_edges_are_powers_of_four():
    assert np.log2(exponents.histogram_edges()).tolist() == [*range(-40, 22, 2)]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_counts_against_numpy(dtype, x64):
    # Edges, both neighbors of each, zeros, denormals, the largest and what isn't finite.
    info = jnp.finfo(dtype)
    x = jnp.asarray([*EDGES[1:-1], info.max, info.tiny, info.smallest_subnormal, 0.0, -3.0], dtype)
    x = jnp.concatenate([x, jnp.nextafter(x, jnp.zeros_like(x)), -x])
    odd = jnp.asarray([jnp.nan, jnp.inf, -jnp.inf], dtype)
    found = jax.jit(exponents.histogram)(jnp.concatenate([x, odd]))
    finite = np.abs(np.asarray(x, np.float64))
    expected = np.histogram(finite[np.isfinite(finite)], EDGES)[0]
    np.testing.assert_array_equal(found, expected)


def test_the_way_of_other_devices_counts_the_same():
    x = jnp.asarray([*2.0 ** np.arange(-60, 60), np.nan, 0.0], jnp.float32)
    counts = exponents._count_by_comparison(exponents._bins(x))
    np.testing.assert_array_equal(counts, exponents.histogram(x))  # a scatter on a CPU
