import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.linear import column_norms, norm


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_norm_is_safe_where_squares_are_not(scale):
    v = np.asarray([3.0, -4.0, 12.0], np.float32) * np.float32(scale)
    np.testing.assert_allclose(norm(jnp.asarray(v)), 13 * np.float32(scale), rtol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-140, 1e140])
def test_float64_has_room_for_the_squares(x64, scale):
    v = np.asarray([3.0, -4.0, 12.0]) * scale
    np.testing.assert_allclose(norm(jnp.asarray(v)), 13 * scale, rtol=1e-14)


def test_norm_of_nothing_is_zero_and_of_the_nonfinite_is_not_finite():
    assert norm(jnp.zeros(0)) == 0
    assert norm(jnp.zeros(3)) == 0
    assert not np.isfinite(norm(jnp.asarray([1.0, jnp.inf])))
    assert not np.isfinite(norm(jnp.asarray([1.0, jnp.nan])))


def test_column_norms_agree_with_numpy():
    J = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_allclose(column_norms(jnp.asarray(J)), np.linalg.norm(J, axis=0), rtol=1e-6)
