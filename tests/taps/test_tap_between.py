"""Derivatives between nodes, against closed forms and against functions cut by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.taps import grad_between, jacobian_between, tap


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


PARAMS = {"a": normal(0, 4, 5), "b": normal(1, 5, 3)}
X = normal(2, 4)


def model(params, x):
    h = tap("hidden", jnp.tanh(x @ params["a"]))
    return jnp.sum(tap("scores", jnp.sin(h @ params["b"])) ** 2)


def head(h):
    return jnp.sin(h @ PARAMS["b"])


H = jnp.tanh(X @ PARAMS["a"])
MODES = ("auto", "forward", "reverse")


@pytest.mark.parametrize("mode", MODES)
def test_jacobian_of_node_by_node(mode):
    J = jax.jit(jacobian_between(model, "hidden", "scores", mode=mode))(PARAMS, X)
    np.testing.assert_allclose(J, jax.jacobian(head)(H), atol=1e-6)
    closed = np.cos(np.asarray(H @ PARAMS["b"]))[:, None] * np.asarray(PARAMS["b"]).T
    np.testing.assert_allclose(J, closed, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_jacobian_of_node_by_arguments(mode):
    def cut(params, x):
        return jnp.sin(jnp.tanh(x @ params["a"]) @ params["b"])

    J = jacobian_between(model, 0, "scores", mode=mode)(PARAMS, X)
    expected = jax.jacobian(cut)(PARAMS, X)
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, atol=1e-5), J, expected)
    by_params, by_x = jacobian_between(model, (0, -1), "scores", mode=mode)(PARAMS, X)
    assert by_params["a"].shape == (3, 4, 5)
    np.testing.assert_allclose(by_x, jax.jacobian(cut, 1)(PARAMS, X), atol=1e-5)


def test_jacobian_of_the_output():
    J = jacobian_between(model, "scores")(PARAMS, X)
    np.testing.assert_allclose(J, 2 * head(H), rtol=1e-5)


def test_a_class_score():
    saliency = jax.jit(grad_between(model, 1, "scores", select=lambda s: s[2]))(PARAMS, X)
    expected = jax.grad(lambda x: head(jnp.tanh(x @ PARAMS["a"]))[2])(X)
    np.testing.assert_allclose(saliency, expected, atol=1e-6)
    at_hidden = grad_between(model, "hidden", "scores", select=lambda s: s[2])(PARAMS, X)
    np.testing.assert_allclose(at_hidden, jax.jacobian(head)(H)[2], atol=1e-6)
    at_params = grad_between(model, 0, "hidden", select=lambda h: h[1])(PARAMS, X)
    assert not np.any(at_params["b"])
    np.testing.assert_allclose(at_params["a"][:, 1], X * (1 - H[1] ** 2), atol=1e-6)


def test_upstream_is_zero_and_itself_is_one():
    assert not np.any(jacobian_between(model, "scores", "hidden")(PARAMS, X))
    np.testing.assert_array_equal(jacobian_between(model, "hidden", "hidden")(PARAMS, X), np.eye(5))


@pytest.mark.parametrize("mode", MODES)
def test_through_time(mode):
    def f(w, x):
        def step(h, u):
            h = tap("h", w * h + tap("u", u))
            return h, h

        return jax.lax.scan(step, jnp.float32(0.0), x)[1].sum()

    J = jacobian_between(f, "u", "h", mode=mode)(jnp.float32(0.5), jnp.ones(4))
    expected = [[0.5 ** (t - s) if s <= t else 0.0 for s in range(4)] for t in range(4)]
    np.testing.assert_allclose(J, expected)


def test_auto_takes_reverse_where_forward_is_forbidden():
    @jax.custom_vjp
    def f(x):
        return 2.0 * x

    f.defvjp(lambda x: (f(x), None), lambda _, g: (5.0 * g,))
    J = jacobian_between(lambda x: tap("y", f(tap("x", x)[0] * jnp.ones(3))).sum(), "x", "y")(
        jnp.ones(1)
    )
    assert J.tolist() == [[5.0]] * 3


def test_scopes():
    def f(x):
        with jax.named_scope("first"):
            y = jnp.sin(x)
        with jax.named_scope("second"):
            y = y**3
        return y.sum()

    J = jacobian_between(f, "scope:first", "scope:second")(X)
    np.testing.assert_allclose(J, np.diag(3 * np.sin(X) ** 2), atol=1e-6)


def test_errors():
    with pytest.raises(TypeError, match=r"the value is float32\[3\], expected a real"):
        grad_between(model, 0, "scores")(PARAMS, X)
    with pytest.raises(ValueError, match="mode is 'fast', expected one of 'auto', 'forward'"):
        jacobian_between(model, 0, mode="fast")
    with pytest.raises(ValueError, match=r"grad_between: no node is called 'score'.*Did you mean"):
        grad_between(model, 0, "score")(PARAMS, X)
    with pytest.raises(ValueError, match="argnums contains 5"):
        jacobian_between(model, 5, "scores")(PARAMS, X)
    with pytest.raises(ValueError, match=r"'ints' has no cotangent: it is int32"):
        jacobian_between(lambda x: tap("ints", jnp.arange(2)), "ints")(X)
