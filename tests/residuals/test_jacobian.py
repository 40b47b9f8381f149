import jax
import jax.numpy as jnp
import numpy as np

from fnopt.residuals import curvature_along, flat_residual, given_derivative, linearize


def model(x):
    return jnp.stack([jnp.sin(x[0]) * x[1], x[1] ** 3, x[0] * x[1], jnp.exp(x[0])])


X = np.asarray([0.3, -1.2])


def test_the_jacobian_that_is_given_is_the_one_that_is_used():
    x, flat = flat_residual(model, jnp.asarray(X, jnp.float32))
    r, J = linearize(flat, x)
    np.testing.assert_allclose(J, jax.jacfwd(model)(x), rtol=1e-6)
    twice = given_derivative(lambda x: 2 * jax.jacfwd(model)(x), r, x, (), x.dtype)
    value, doubled = linearize(flat._replace(derivative=twice), x)
    np.testing.assert_array_equal(value, r)
    np.testing.assert_allclose(doubled, 2 * J, rtol=1e-6)


def test_curvature_agrees_with_the_formula():
    v = np.asarray([0.5, 2.0])
    got = curvature_along(model, jnp.asarray(X, jnp.float32), jnp.asarray(v, jnp.float32))
    (a, b), (p, q) = X, v
    first = -np.sin(a) * b * p**2 + 2 * np.cos(a) * p * q
    np.testing.assert_allclose(got, [first, 6 * b * q**2, 2 * p * q, np.exp(a) * p**2], rtol=1e-5)
