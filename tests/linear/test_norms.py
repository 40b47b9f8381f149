import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.linear import norm


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_norm_is_safe_where_squares_are_not(scale):
    v = np.asarray([3.0, -4.0, 12.0], np.float32) * np.float32(scale)
    np.testing.assert_allclose(norm(jnp.asarray(v)), 13 * np.float32(scale), rtol=1e-6)
    slopes = jax.grad(norm)(jnp.asarray(v))
    np.testing.assert_allclose(slopes, np.divide([3, -4, 12], 13), rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-140, 1e140, 1e-170, 1e170, 1e-300, 1e300])
def test_norm_is_safe_in_float64_too(x64, scale):
    v = np.asarray([3.0, -4.0, 12.0]) * scale
    np.testing.assert_allclose(norm(jnp.asarray(v)), 13 * scale, rtol=1e-14)


def test_norm_of_nothing_is_zero_and_of_the_nonfinite_is_not_finite():
    assert norm(jnp.zeros(0)) == 0
    assert norm(jnp.zeros(3)) == 0
    assert not np.isfinite(norm(jnp.asarray([1.0, jnp.inf])))
    assert not np.isfinite(norm(jnp.asarray([1.0, jnp.nan])))
