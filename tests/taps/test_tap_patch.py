"""Patched values and cotangents, against the same change written into the function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.taps import capture, patch, tap

W = jax.random.normal(jax.random.key(0), (3, 3))
X = jax.random.normal(jax.random.key(1), (4, 3))


def written(change):
    """A recurrent net with a change at its node."""

    def loss(w, x):
        def step(h, u):
            h = change(jnp.tanh(u + h @ w))
            return h, h

        return jnp.sum(jax.lax.scan(step, jnp.zeros(3), x)[1] ** 2)

    return loss


tapped = written(lambda h: tap("h", h))


def through(rule):
    """An identity whose derivative goes through a rule."""

    @jax.custom_vjp
    def identity(x):
        return x

    identity.defvjp(lambda x: (x, None), lambda _, g: (rule(g),))
    return identity


RULES = {
    "clip": lambda g: jnp.clip(g, -0.1, 0.1),
    "scale": lambda g: 0.5 * g,
    "stop": jnp.zeros_like,
    "unit norm": lambda g: g / jnp.linalg.norm(g),
}


@pytest.mark.parametrize("rule", RULES)
def test_cotangents(rule):
    value, grads = jax.jit(jax.value_and_grad(patch(tapped, cotangents={"h": RULES[rule]})))(W, X)
    expected = jax.value_and_grad(written(through(RULES[rule])))(W, X)
    np.testing.assert_allclose(value, expected[0], rtol=1e-6)
    np.testing.assert_allclose(grads, expected[1], rtol=1e-5, atol=1e-6)


VALUES = {
    "ablate": lambda h: h.at[1].set(0.0),
    "add": lambda h: h + 0.3,
    "stop": jax.lax.stop_gradient,
}


@pytest.mark.parametrize("rule", VALUES)
def test_values(rule):
    value, grads = jax.jit(jax.value_and_grad(patch(tapped, values={"h": VALUES[rule]})))(W, X)
    expected = jax.value_and_grad(written(VALUES[rule]))(W, X)
    np.testing.assert_allclose(value, expected[0], rtol=1e-6)
    np.testing.assert_allclose(grads, expected[1], rtol=1e-5, atol=1e-6)


def test_arrays_stand_instead():
    def f(x):
        return jnp.sum(tap("x", x) ** 2)

    assert float(patch(f, values={"x": jnp.arange(3.0)})(jnp.ones(3))) == 5.0
    assert float(patch(f, values={"x": 2})(jnp.ones(3))) == 12.0
    grads = jax.grad(patch(f, cotangents={"x": jnp.arange(3.0)}))(jnp.ones(3))
    assert grads.tolist() == [0.0, 1.0, 2.0]


def test_arrays_of_all_iterations_of_a_scan():
    def f(x):
        def body(carry, x):
            h = tap("h", jnp.tanh(carry + x))
            return h, tap("y", jnp.sum(h) * x[0])

        return jnp.sum(jax.lax.scan(body, jnp.zeros(2), x)[1])

    x, other = jnp.arange(8.0).reshape(4, 2) / 8, jnp.arange(8.0, 0, -1).reshape(4, 2) / 8
    _, seen = capture(f, ["h", "y"])(other)
    patched = jax.jit(patch(f, values={"h": seen.values["h"], "y": seen.values["y"] * 2}))
    np.testing.assert_allclose(patched(x), 2 * jnp.sum(seen.values["y"]), rtol=1e-6)
    swapped = patch(f, values={"h": seen.values["h"]})
    expected = jnp.sum(jnp.sum(seen.values["h"], axis=1) * x[:, 0])
    np.testing.assert_allclose(swapped(x), expected, rtol=1e-6)
    # The same in all iterations, and cotangents likewise.
    np.testing.assert_allclose(patch(f, values={"h": jnp.ones(2)})(x), 2 * x[:, 0].sum(), rtol=1e-6)
    cut = jax.grad(patch(f, cotangents={"h": jnp.zeros((4, 2))}))(x)
    _, seen = capture(f, "h")(x)
    np.testing.assert_allclose(cut[:, 0], jnp.sum(seen.values["h"], axis=1), rtol=1e-6)
    assert cut[:, 1].tolist() == [0.0] * 4
    with pytest.raises(
        ValueError, match=r"'h' has shape \[3, 2\], .* to float32\[2\], in each of 4 iterations"
    ):
        patch(f, values={"h": jnp.ones((3, 2))})(x)


def test_order_of_rules_on_one_node():
    def f(x):
        return jnp.sum(tap("x", x) * 3.0)

    rules = {"x": lambda g: g + 1.0, "*": lambda g: 10.0 * g}
    assert jax.grad(patch(f, cotangents=rules))(jnp.ones(1)).tolist() == [40.0]
    assert float(patch(f, values=rules)(jnp.ones(1))) == 60.0
    both = patch(f, values={"x": lambda v: 2.0 * v}, cotangents={"x": lambda g: g + 1.0})
    assert jax.grad(both)(jnp.ones(1)).tolist() == [8.0]


def test_a_patched_function_can_be_looked_at():
    def f(x):
        return jnp.sum(tap("b", 2.0 * tap("a", x)))

    patched = patch(f, cotangents={"b": lambda g: 7.0 * g}, values={"a": lambda v: v + 1.0})
    _, seen = capture(patched, cotangents=True)(jnp.ones(1))
    assert seen.cotangents["b"].tolist() == [1.0]
    assert seen.cotangents["a"].tolist() == [14.0]
    assert seen.values["b"].tolist() == [4.0]


def test_remat_branches_and_while():
    def f(x):
        x = jax.checkpoint(lambda v: tap("r", jnp.sin(v)) * 2.0)(x)
        x = jax.lax.cond(x[0] > 0.0, lambda v: tap("c", v * 3.0), lambda v: v, x)
        return jnp.sum(x)

    x = jnp.ones(1)
    grads = jax.grad(patch(f, cotangents={"r": lambda g: g * 10.0, "c": lambda g: g * 7.0}))(x)
    np.testing.assert_allclose(grads, 2 * 3 * 70 * np.cos(x), rtol=1e-6)

    def loop(x):
        return jax.lax.while_loop(lambda v: v < 9.0, lambda v: tap("w", v * 2.0), x)

    assert float(patch(loop, values={"w": lambda v: v + 1.0})(jnp.float32(1.0))) == 15.0


def test_every_part_of_a_map_is_patched():
    def f(x):
        return jnp.sum(jax.vmap(lambda v: tap("v", 2.0 * v))(x))

    assert jax.grad(patch(f, cotangents={"v": lambda g: 3.0 * g}))(jnp.ones(2)).tolist() == [6, 6]


def test_without_patches_the_function_is_the_same():
    def f(x):
        return jnp.sum(tap("x", x) ** 2)

    assert jax.grad(patch(f, cotangents={"x": lambda g: g}))(jnp.ones(2)).tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="patch: got no names"):
        patch(f)


@jax.custom_jvp
def ruled(x):
    return tap("inside", x) * 1.0


ruled.defjvp(lambda x, t: (ruled(*x), t[0]))


def test_errors():
    def f(x):
        return jnp.sum(ruled(tap("x", x)))

    x = jnp.ones(2)
    with pytest.raises(ValueError, match=r"the rule for the value of 'x' returned float32\[1\]"):
        patch(f, values={"x": lambda v: v[:1]})(x)
    with pytest.raises(ValueError, match=r"the cotangent of 'x' returned float16\[2\]"):
        jax.grad(patch(f, cotangents={"x": lambda g: g.astype(jnp.float16)}))(x)
    with pytest.raises(
        ValueError, match=r"patch: no node is called 'y', expected one of \['x', 'in"
    ):
        patch(f, values={"y": lambda v: v})(x)
    with pytest.raises(
        ValueError, match="'inside' has a value that can't be changed: it is inside"
    ):
        patch(f, values={"inside": lambda v: v})(x)
    with pytest.raises(ValueError, match="'inside' has no cotangent"):
        patch(f, cotangents={"inside": lambda v: v})(x)
