from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fnopt


def update(tx, g):
    return tx.update(g, tx.init(g))[0]


def test_clip_by_value():
    out = update(fnopt.clip(1.0), {"w": jnp.asarray([-3.0, 0.5, 1.0, 7.0])})
    assert out["w"].tolist() == [-1.0, 0.5, 1.0, 1.0]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32, allow_subnormal=False), min_size=1, max_size=4),
    st.floats(1e-3, 1e3),
)
def test_norm_is_never_larger_and_direction_stays(numbers, max_norm):
    g = np.asarray(numbers, np.float32)
    out = update(fnopt.clip_by_global_norm(max_norm), {"a": jnp.asarray(g), "b": [jnp.zeros(())]})
    norm = np.linalg.norm(g.astype(np.float64))
    expected = g * min(1.0, max_norm / norm) if norm else g
    np.testing.assert_allclose(out["a"], expected, rtol=1e-5, atol=1e-30)


def test_small_gradients_pass_bit_for_bit():
    g = {"w": jnp.asarray([0.1, 0.2, 0.7])}
    assert update(fnopt.clip_by_global_norm(1.0), g)["w"].tolist() == g["w"].tolist()


def test_norm_of_float16_gradients_does_not_overflow():
    """300^2 is beyond float16's range, and so would be the sum."""
    out = update(fnopt.clip_by_global_norm(1.0), {"w": jnp.full(4, 300.0, jnp.float16)})
    assert out["w"].dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(out["w"], np.float32), 0.5, rtol=1e-3)


def test_zero_gradients_have_finite_derivatives():
    def clipped(g, max_norm):
        return update(fnopt.clip_by_global_norm(max_norm), {"w": g})["w"].sum()

    slopes = jax.grad(clipped, argnums=(0, 1))(jnp.zeros(3), 1.0)
    assert all(bool(jnp.isfinite(x).all()) for x in slopes)


def test_nan_is_not_hidden():
    out = update(fnopt.clip_by_global_norm(1.0), {"w": jnp.asarray([jnp.nan, 1.0])})
    assert bool(jnp.isnan(out["w"]).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fnopt.clip(-1.0), "clip: max_delta = -1.0, expected max_delta >= 0"),
        (lambda: fnopt.clip_by_global_norm(0), "max_norm = 0.0, expected max_norm > 0"),
    ],
)
def test_bad_limits_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("magnitude", [1e-30, 1e-24, 1e20, 1e35])
def test_gradients_whose_squares_are_out_of_range(magnitude):
    g = {"w": jnp.asarray([3.0, 4.0]) * magnitude}
    tx = fnopt.clip_by_global_norm(0.5 * magnitude)
    np.testing.assert_allclose(update(tx, g)["w"] / magnitude, [0.3, 0.4], rtol=1e-6)
