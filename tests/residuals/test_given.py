"""Jacobians that the user brings: their layout, and what is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.jacobians import per_example_jacobian
from fnopt.residuals import flat_residual, given_derivative, linearize, linearize_gram

T = jnp.arange(3.0)
PARAMS = {"a": jnp.asarray([1.0, 2.0]), "b": jnp.float32(0.5)}


def residuals(p):
    z = jax.lax.complex(p["a"] * p["b"], jnp.sin(p["a"]))
    return {"real": jnp.sin(p["b"] * T) + p["a"].sum(), "z": z, "one": p["b"] ** 2}


def derivative_of(jac, fn=residuals, params=PARAMS):
    x, flat = flat_residual(fn, params)
    return x, flat, given_derivative(jac, jax.eval_shape(fn, params), params, (), x.dtype)


def test_blocks_are_laid_out_as_the_vectors_are():
    x, flat, given = derivative_of(jax.jacfwd(residuals))
    v, w = jnp.asarray([1.0, -2.0, 3.0]), jnp.arange(8.0)

    @jax.jit
    def all_of(x):
        J = given.at(x)
        return jax.jacfwd(flat.r)(x), given.matrix(J), given.push(J, v), given.pull(J, w)

    expected, matrix, pushed, pulled = all_of(x)
    assert expected.shape == (3 + 1 + 4, 3)
    np.testing.assert_allclose(matrix, expected, rtol=1e-6)
    np.testing.assert_allclose(pushed, expected @ v, rtol=1e-6)
    np.testing.assert_allclose(pulled, w @ expected, rtol=1e-5)


def test_functions_in_a_list_have_jacobians_in_a_list():
    functions = [lambda p: p["a"], lambda p: p["b"] * T]
    x, flat, given = derivative_of(
        [jax.jacfwd(f) for f in functions], lambda p: [f(p) for f in functions]
    )
    np.testing.assert_allclose(given.matrix(given.at(x)), jax.jacfwd(flat.r)(x))


def test_low_precision_comes_back_in_float32():
    x, _, given = derivative_of(jax.jacfwd(lambda p: p**2), lambda p: p**2, jnp.ones(2, "bfloat16"))
    assert given.at(x).dtype == jnp.float32


def example(p, t, u):
    z = jax.lax.complex(jnp.sin(p["a"] * t), p["b"] * u)
    return {"r": p["b"] * t - p["a"], "z": z}


BATCH = (jnp.linspace(0.1, 1.0, 7), jnp.arange(14.0).reshape(7, 2))


@pytest.mark.parametrize("chunk_size", [3, 20])
def test_normal_equations_add_up_over_chunks_of_examples(chunk_size):
    fn = jax.vmap(example, (None, 0, 0))
    x, flat = flat_residual(fn, PARAMS, BATCH)
    jac = per_example_jacobian(example, chunk_size=chunk_size)
    given = given_derivative(jac, jax.eval_shape(fn, PARAMS, *BATCH), PARAMS, BATCH, x.dtype)
    flat = flat._replace(derivative=given.scaled(lambda x: jnp.cos(jnp.arange(float(flat.m)))))
    (_, J), (r, G, g, _) = jax.jit(lambda x: (linearize(flat, x), linearize_gram(flat, x)))(x)
    np.testing.assert_allclose(G, J.T @ J, rtol=1e-5)
    np.testing.assert_allclose(g, r @ J, rtol=1e-4, atol=1e-5)


def test_the_chunks_bound_the_memory():
    m, n = 4000, 100
    t = jnp.ones(m)

    def example(w, t):
        return jnp.tanh(w * t).sum()

    def bytes_of(chunk_size):
        x, flat = flat_residual(jax.vmap(example, (None, 0)), jnp.ones(n), (t,))
        jac = per_example_jacobian(example, chunk_size=chunk_size)
        given = given_derivative(jac, t, x, (t,), x.dtype)
        fn = jax.jit(lambda x: linearize_gram(flat._replace(derivative=given), x))
        return fn.lower(x).compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(50) < 0.2 * 4 * m * n <= 0.2 * bytes_of(None)


def spoiled(**changes):
    def jac(p):
        J = jax.jacfwd(residuals)(p)
        return {k: changes.get(k, lambda block: block)(block) for k, block in J.items()}

    return jac


BAD = [
    (
        spoiled(real=lambda block: block | {"a": block["a"].T}),
        ValueError,
        r"leaf 'real' of the residuals with respect to leaf 'a' of the params has shape \(2, 3\), "
        r"expected \(3, 2\)",
    ),
    (
        spoiled(one=lambda block: {"a": block["a"]}),
        ValueError,
        r"expected a tree like the params for leaf 'one' of the residuals",
    ),
    (lambda p: jnp.ones((8, 3)), ValueError, r"expected one branch for every leaf of the res"),
    (
        spoiled(one=lambda block: block | {"b": 1}),
        TypeError,
        r"leaf 'one' of the residuals with respect to leaf 'b' of the params is int, expected a",
    ),
    (
        spoiled(real=lambda block: block | {"b": block["b"].astype("complex64")}),
        TypeError,
        r"is complex64, expected a real array for a real residual",
    ),
    (jnp.ones((8, 3)), TypeError, r"jac is an array, float32\[8,3\], expected a function"),
]


@pytest.mark.parametrize(("jac", "error", "text"), BAD)
def test_what_does_not_fit_is_named(jac, error, text):
    with pytest.raises(error, match=text):
        jax.eval_shape(lambda x: derivative_of(jac)[2].at(x), jnp.ones(3))


def test_matrices_as_scipys_users_write_them():
    def laid(jac, residual, params):
        given = given_derivative(jac, residual, params, (), jnp.float32)
        return given.matrix(given.at(jnp.arange(1.0, 1.0 + len(jax.tree.leaves(params)))))

    J = jnp.arange(6.0).reshape(3, 2)
    for start in ([1.0, 2.0], (1.0, 2.0)):
        np.testing.assert_array_equal(laid(lambda p: J * p[1], jnp.ones(3), start), 2 * J)
    for shape in ((3,), (3, 1), (1, 3)):
        got = laid(lambda p, s=shape: J[:, 1].reshape(s), jnp.ones(3), jnp.ones(1))
        np.testing.assert_array_equal(got, J[:, 1:])


def test_what_is_held_needs_no_derivative():
    params = {"a": jnp.float32(2), "n": 2}
    for of_n in (None, np.zeros(3, jax.dtypes.float0), T):
        given = given_derivative(lambda p: {"a": T ** p["n"], "n": of_n}, T, params, (), "float32")  # noqa: B023
        expected = jnp.stack([T**2, 0 * T], axis=1)
        np.testing.assert_array_equal(given.at(jnp.asarray([2.0, 0.0])), expected)


def test_rows_of_numbers_are_a_matrix_as_in_numpy():
    x = jnp.asarray([3.0, 4.0])
    expected = [[1, 0], [4, 3]]
    as_lists = given_derivative(lambda x: [[1, 0.0], [x[1], x[0]]], x, x, (), x.dtype)
    np.testing.assert_array_equal(as_lists.at(x), expected)
    numbers = [x[0], x[1]]
    for form in (list, jnp.asarray):
        given = given_derivative(lambda x: form([[1, 0.0], [x[1], x[0]]]), numbers, x, (), x.dtype)  # noqa: B023
        np.testing.assert_array_equal(given.at(x), expected)
