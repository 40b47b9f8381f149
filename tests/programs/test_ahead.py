import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.programs import products_ahead
from fnopt.residuals import flat_residual, linearise

A = jnp.asarray(np.random.default_rng(0).standard_normal((5, 3)), jnp.float32)
X = jnp.asarray([0.1, -0.2, 0.3])


def model(x):
    return jnp.tanh(A @ x)


def products(fn):
    return str(jax.make_jaxpr(fn)(X)).count("dot_general")


@pytest.mark.parametrize("residual", [model, jax.jit(model)], ids=["plain", "jitted"])
def test_the_constant_product_of_a_jacobian_is_made_once(residual):
    def jacobian(x):
        return linearise(flat_residual(residual, X)[1], x)

    ahead = products_ahead(jacobian, X, largest=15)
    assert products(jacobian) == 2  # A x, and A with all unit vectors
    assert products(ahead) == 1
    for got, want in zip(ahead(X), jacobian(X), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_product_that_is_too_large_to_keep_is_made_each_time():
    ahead = products_ahead(lambda x: jnp.sum(A @ A.T) * x, X, largest=24)
    assert products(ahead) == 1


def test_one_function_called_twice_has_its_own_product_each_time():
    @jax.jit
    def twice(B, x):
        return (B @ B) * x

    ahead = products_ahead(lambda x: (twice(A.T @ A, x), twice(jnp.eye(3), x)), X, largest=9)
    np.testing.assert_allclose(ahead(X)[0], (A.T @ A) @ (A.T @ A) * X, rtol=1e-5)
    np.testing.assert_allclose(ahead(X)[1], jnp.eye(3) * X)


def test_what_is_seen_outside_happens_when_the_function_runs():
    seen = []

    def watched(x):
        jax.debug.callback(lambda: seen.append(1))
        return A @ x

    ahead = products_ahead(watched, jax.ShapeDtypeStruct(X.shape, X.dtype), largest=9)
    jax.effects_barrier()
    assert not seen
    jax.block_until_ready(jax.jit(ahead)(X))
    jax.effects_barrier()
    assert seen == [1]


def test_batches_of_what_the_function_closes_over():
    def of(B):
        fn = products_ahead(lambda x: jnp.sin(B @ x)[:, None] * (B @ B), X, largest=9)
        return fn(X)

    batch = jnp.stack([jnp.eye(3), A[:3]])
    np.testing.assert_allclose(jax.vmap(of)(batch)[1], of(A[:3]), rtol=1e-5)
