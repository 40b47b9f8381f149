"""Scaled gradients against the chain rule written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import scale_gradient


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.5])
def test_the_gradient_is_scaled_and_the_value_is_not(scale):
    x = {"a": jnp.asarray([1.0, -2.0]), "b": jnp.asarray(3.0, jnp.bfloat16)}

    def loss(x, scale):
        y = scale_gradient(x, scale)
        return jnp.sum(y["a"] ** 3) + (y["b"] ** 2).astype(jnp.float32)

    value, grads = jax.jit(jax.value_and_grad(loss))(x, scale)
    assert float(value) == pytest.approx(-7.0 + 9.0)
    np.testing.assert_allclose(grads["a"], scale * np.asarray([3.0, 12.0]), rtol=1e-6)
    assert float(grads["b"]) == scale * 6.0
    assert grads["b"].dtype == jnp.bfloat16
    # forward mode alike, and nothing of it by the scale
    _, slope = jax.jvp(lambda x: loss(x, scale), (x,), (jax.tree.map(jnp.ones_like, x),))
    assert float(slope) == pytest.approx(scale * 21.0)
    assert float(jax.grad(loss, argnums=1)(x, scale)) == 0.0
