import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.jacobians import jacobian_mode, value_and_jacobian


def model(x):
    return jnp.stack([jnp.sin(x[0]) * x[1], x[1] ** 3, x[0] * x[1], jnp.exp(x[0])])


X = np.asarray([0.3, -1.2])


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("chunk_size", [None, 1, 3])
def test_jacobian_agrees_with_the_formula(mode, chunk_size):
    r, J = value_and_jacobian(model, jnp.asarray(X, jnp.float32), 4, mode, chunk_size)
    a, b = X
    expected = [[np.cos(a) * b, np.sin(a)], [0, 3 * b**2], [b, a], [np.exp(a), 0]]
    np.testing.assert_allclose(J, expected, rtol=1e-6)
    np.testing.assert_allclose(r, [np.sin(a) * b, b**3, a * b, np.exp(a)], rtol=1e-6)


def test_mode_follows_the_shape():
    assert jacobian_mode("auto", m=5, n=5) == "forward"
    assert jacobian_mode("auto", m=4, n=5) == "reverse"
    assert jacobian_mode("forward", m=4, n=5) == "forward"
    with pytest.raises(ValueError, match=r"jacobian = 'sideways', expected one of"):
        jacobian_mode("sideways", m=1, n=1)


def test_a_wide_jacobian_pulls_back_as_many_cotangents_as_residuals():
    text = (
        jax.jit(lambda x: value_and_jacobian(lambda x: x[:3] * x.sum(), x, 3)[1])
        .lower(jnp.ones(500))
        .as_text()
    )
    assert "500x500" not in text
