"""Jacobians in their forms, against JAX's own and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.jacobians import jacobian, per_example_jacobian

PARAMS = {"w": jnp.asarray([[0.5, -1.0, 2.0], [1.0, 0.3, -0.7]]), "b": jnp.float32(0.4)}
X = jnp.asarray([1.0, -2.0])


def model(p, x):
    h = jnp.tanh(x @ p["w"] + p["b"])
    return {"h": h, "z": jax.lax.complex(h[0] * p["b"], jnp.sin(h[1]))}


def close(got, want, rtol=1e-5):
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-6, strict=True), got, want
    )


def test_what_a_function_reads_may_change_between_operators():
    size = 2

    def fn(p):
        return p[:size]

    assert fnopt.jacobians.JacobianOperator(fn, jnp.ones(4)).shape == (2, 4)
    size = 3
    assert fnopt.jacobians.JacobianOperator(fn, jnp.ones(4)).shape == (3, 4)


def test_a_tree_is_that_of_jax():
    options = [{}, {"mode": "forward", "chunk_size": 3}, {"mode": "reverse", "chunk_size": 2}]

    @jax.jit
    def all_of(p, x):
        return jax.jacfwd(model)(p, x), [jacobian(model, **o)(p, x) for o in options]

    expected, jacobians = all_of(PARAMS, X)
    for J in jacobians:
        close(J, expected)


def test_a_matrix_and_an_operator_agree_with_the_tree():
    @jax.jit
    def forms(p, x):
        J = jacobian(model, form="operator")(p, x)
        v = jax.tree.map(jnp.cos, p)
        w = jax.tree.map(jnp.ones_like, model(p, x))
        return jacobian(model, form="matrix")(p, x), J.matrix(), J.mv(v), J.rmv(w), v

    matrix, same, product, transposed, v = forms(PARAMS, X)
    assert matrix.shape == (5, 7)
    np.testing.assert_array_equal(matrix, same)
    tree = jax.jit(jax.jacfwd(model))(PARAMS, X)
    rows = jnp.concatenate([tree["h"]["b"][:, None], tree["h"]["w"].reshape(3, 6)], axis=1)
    np.testing.assert_allclose(matrix[:3], rows, rtol=1e-5)
    vector = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(v)])
    flat = matrix @ vector
    np.testing.assert_allclose(product["h"], flat[:3], rtol=1e-5)
    np.testing.assert_allclose(product["z"], np.complex64(complex(*flat[3:])), rtol=1e-5)
    np.testing.assert_allclose(transposed["b"], matrix[:4, 0].sum(), rtol=1e-5)


def test_several_arguments_low_precision_and_only_reverse():
    @jax.custom_vjp
    def twice(w):
        return 2 * w

    twice.defvjp(lambda w: (2 * w, None), lambda _, g: (3 * g,))
    by_w, by_x = jacobian(lambda w, x: twice(w) * x, (0, -1))(
        jnp.ones(2, jnp.bfloat16), jnp.full(2, 5, jnp.bfloat16)
    )
    assert by_w.dtype == jnp.bfloat16
    np.testing.assert_array_equal(by_w.astype("f4"), [[15, 0], [0, 15]])
    np.testing.assert_array_equal(by_x.astype("f4"), [[2, 0], [0, 2]])


def residual(p, example, scale=1.0):
    x, y = example
    return model(p, x)["h"][:2] * scale - y


BATCH = (jnp.asarray([[1.0, 2.0], [0.3, 0.1], [-2.0, 0.5]]), jnp.ones((3, 2)))


def test_one_jacobian_per_example():
    options = [{}, {"mode": "forward", "chunk_size": 2}, {"mode": "reverse", "chunk_size": 3}]

    @jax.jit
    def all_of(p):
        whole = jax.jacfwd(lambda p: jax.vmap(lambda e: residual(p, e, 3.0))(BATCH))(p)
        return whole, [per_example_jacobian(residual, **o)(p, BATCH, scale=3.0) for o in options]

    whole, jacobians = all_of(PARAMS)
    for J in jacobians:
        close(J, whole)


def test_an_example_does_not_see_the_others():
    jac = jax.jit(per_example_jacobian(residual))
    spoiled = jax.tree.map(lambda a: a.at[1].set(jnp.nan), BATCH)
    got, want = jac(PARAMS, spoiled), jac(PARAMS, BATCH)
    assert np.all(np.isnan(got["w"][1]))
    close(jax.tree.map(lambda a: a[::2], got), jax.tree.map(lambda a: a[::2], want))


def test_passes_are_as_many_as_an_example_has_outputs():
    jac = per_example_jacobian(lambda w, x: jnp.tanh(x @ w).sum())
    text = jax.jit(jac).lower(jnp.ones((5, 4)), jnp.ones((300, 5))).as_text()
    assert "300x300" not in text


def test_it_is_what_least_squares_takes():
    x = jnp.linspace(-1.0, 1.0, 30)
    y = 2 * jnp.sin(1.5 * x) + 0.3

    def residual(p, x, y):
        return p["a"] * jnp.sin(p["k"] * x) + p["c"] - y

    fit = fnopt.least_squares(
        jax.vmap(residual, (None, 0, 0)),
        {"a": 1.0, "k": 1.0, "c": 0.0},
        args=(x, y),
        jac=per_example_jacobian(residual, chunk_size=7),
        solver=fnopt.gauss_newton(linear_solver="cholesky"),
        loss="huber",
    )
    np.testing.assert_allclose(fit.cost, 0, atol=1e-9)
    np.testing.assert_allclose(fit.params["a"], 2, rtol=1e-3)
    assert fit.jacobian is None


BAD = [
    (lambda: jacobian(model, form="rows"), ValueError, "form is 'rows', expected one of 'tree'"),
    (lambda: jacobian(model, mode="up"), ValueError, "jacobian: mode = 'up', expected one of"),
    (lambda: jacobian(model, chunk_size=0), ValueError, "chunk_size is 0, expected at least 1"),
    (
        lambda: jacobian(model, 2)(PARAMS, X),
        ValueError,
        "argnums is 2, expected indices of the 2 pos",
    ),
    (lambda: jacobian(lambda p: p)({"k": 1}), TypeError, "leaf 'k' is int"),
    (lambda: jacobian(lambda p: p)(jnp.ones(2) * 1j), TypeError, "is complex64.2., expected a rea"),
    (lambda: jacobian(lambda p: p > 0)(X), TypeError, "outputs is bool.2., expected a floating"),
    (lambda: jacobian(lambda p: None)(X), TypeError, "the function returned None, expected arr"),
    (
        lambda: per_example_jacobian(residual)(PARAMS, (BATCH[0], BATCH[1][:2])),
        ValueError,
        "the leading axes of the batch have different lengths",
    ),
    (lambda: per_example_jacobian(residual)(PARAMS), ValueError, "the batch contains no array"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text), jax.numpy_dtype_promotion("standard"):
        call()
