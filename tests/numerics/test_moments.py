import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.numerics import bias_correction


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999, 0.9999, 1 - 2.0**-20])
def test_bias_correction_has_all_the_digits_of_float32(decay):
    steps = np.array([1, 2, 3, 10, 100, 10_000, 1_000_000])
    beta = np.float64(np.float32(decay))
    exact = -np.expm1(steps * np.log(beta)) if decay else np.ones(len(steps))
    got = jax.vmap(bias_correction, (None, 0))(jnp.float32(decay), jnp.asarray(steps, jnp.int32))
    np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=5e-7)
    # A decay that is known while a step is traced takes another way.
    known = jax.jit(lambda t: bias_correction(np.float32(decay), t))(jnp.asarray(steps, jnp.int32))
    assert known.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(known, np.float64), exact, rtol=5e-7)


@pytest.mark.parametrize("decay", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_bias_correction_has_the_derivative_of_the_power(decay, count):
    slope = jax.grad(bias_correction)(jnp.float32(decay), jnp.int32(count))
    assert float(slope) == pytest.approx(-count * decay ** (count - 1), rel=1e-5)
