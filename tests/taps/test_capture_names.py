"""Which nodes a name means, and what the errors say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.taps import capture, grad_between, nodes, tap


def layered(x):
    for i in range(3):
        x = tap("layer", jnp.sin(x))
        x = tap(f"block_{i}/out", x * 2.0)
    return jnp.sum(tap("out", x))


X = jnp.ones(2)


def names(fn, *chosen, **kwargs):
    return [*capture(fn, chosen or None, **kwargs)(X)[1].values]


def test_one_name_used_several_times_is_numbered():
    assert names(layered, "layer") == ["layer#0", "layer#1", "layer#2"]
    assert names(layered, "layer#1") == ["layer#1"]
    _, seen = capture(layered, "layer", cotangents=True)(X)
    np.testing.assert_allclose(seen.values["layer#1"], np.sin(2 * np.sin(X)), rtol=1e-6)


def test_globs():
    assert names(layered, "block_*") == ["block_0/out", "block_1/out", "block_2/out"]
    assert names(layered, "block_[02]/*", "out") == ["block_0/out", "block_2/out", "out"]
    assert names(layered, "lay?r#[01]") == ["layer#0", "layer#1"]
    blocks = ["block_0/out", "block_1/out", "block_2/out"]
    assert names(layered, "block_?/out", "block_0/out") == blocks
    assert names(layered, "*/out") == [*blocks, "out"]  # one dialect: `*/` may stand for nothing


def test_no_name_is_every_tap():
    assert len(names(layered)) == 7
    assert names(layered) == [n.name for n in nodes(layered)(X)]


def test_a_prefix_means_members_only_if_nothing_is_called_so():
    def fn(x):
        return jnp.sum(tap("a", tap("a/b", x)))

    assert names(fn, "a") == ["a"]
    assert names(layered, "block_1") == ["block_1/out"]


def test_unknown_names_list_what_there_is():
    with pytest.raises(ValueError, match="capture: no node is called 'layr'") as error:
        capture(layered, "layr")(X)
    assert "'block_0/out'" in str(error.value)
    assert "Did you mean 'layer" in str(error.value)
    with pytest.raises(ValueError, match=r"no node is called 'layer#3'.*'layer#2'"):
        capture(layered, "layer#3")(X)


def test_a_function_without_taps():
    for chosen in (None, "h"):
        with pytest.raises(ValueError, match=r"The function has no taps: .*fnopt.tap\('h', h\)"):
            capture(jnp.sum, chosen)(X)


def test_names_are_strings():
    with pytest.raises(TypeError, match="capture: 3 is a int, expected the name"):
        capture(layered, [3])
    with pytest.raises(ValueError, match="capture: got no names"):
        capture(layered, [])


def test_one_node_is_not_several():
    with pytest.raises(
        ValueError, match=r"'layer' is the name of 3 nodes.*choose from \['layer#0'"
    ):
        grad_between(layered, "layer", "out")(X)


def scoped(x):
    with jax.named_scope("model"):
        for _ in range(2):
            with jax.named_scope("dense"):
                y = jnp.cos(x) * 3.0
            x = jax.nn.relu(y) + 1.0
    return jnp.sum(x)


def test_scopes_are_nodes_without_any_tap():
    assert [n.name for n in nodes(scoped, scopes=True)(X)] == [
        "scope:model/dense#0",
        "scope:model/dense#1",
        "scope:model",
    ]
    _, seen = capture(scoped, "scope:*/dense", cotangents=True)(X)
    first = 3 * np.cos(X)
    second = 3 * np.cos(np.maximum(first, 0) + 1)
    np.testing.assert_allclose(seen.values["scope:model/dense#0"], first, rtol=1e-6)
    np.testing.assert_allclose(seen.values["scope:model/dense#1"], second, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(seen.cotangents["scope:model/dense#1"], second > 0)


def test_scopes_through_jit_scan_and_vmap():
    def block(x, _=None):
        with jax.named_scope("block"):
            return jax.jit(lambda v: jnp.tanh(v) * 2.0)(x), None

    def fn(x):
        with jax.named_scope("stack"):
            return jnp.sum(jax.lax.scan(block, x, length=3)[0])

    for f, shape in ((fn, (3, 2)), (jax.jit(lambda x: jax.vmap(fn)(x[:, None]).sum()), (3, 2, 1))):
        _, seen = capture(f, "scope:stack/block", cotangents=True)(X)
        assert seen.values["scope:stack/block"].shape == shape
        # Each iteration's derivative is the product of those after it.
        last = seen.values["scope:stack/block"]
        slope = 2.0 * (1.0 - np.tanh(np.asarray(last[:-1])) ** 2)
        expected = np.stack([slope[0] * slope[1], slope[1], np.ones_like(slope[0])])
        np.testing.assert_allclose(seen.cotangents["scope:stack/block"], expected, rtol=1e-5)


def test_a_scope_is_what_leaves_it():
    def fn(x):
        with jax.named_scope("s"):
            y = x * 2.0
            jnp.exp(y)  # stays inside
            n = jnp.arange(2)  # leaves, but is no float
        return jnp.sum(y) + n.sum().astype(y.dtype)

    _, seen = capture(fn, "scope:s")(X)
    assert seen.values["scope:s"].tolist() == [2.0, 2.0]


def test_unknown_scopes_list_the_scopes():
    with pytest.raises(ValueError, match=r"'scope:mdel', .*one of \['scope:model/dense#0'"):
        capture(scoped, "scope:mdel")(X)
    with pytest.raises(ValueError, match="The function has no named scopes"):
        capture(layered, "scope:*")(X)


@jax.custom_jvp
def ruled(x):
    return tap("inside", x * 3.0) + 0.0


ruled.defjvp(lambda x, t: (ruled(*x), 7.0 * t[0]))


@jax.custom_vjp
def ruled_back(x):
    return tap("inside", x * 3.0) + 0.0


ruled_back.defvjp(lambda x: (ruled_back(x), None), lambda _, g: (7.0 * g,))


@pytest.mark.parametrize("rule", [ruled, ruled_back])
def test_inside_a_custom_rule_there_are_values_only(rule):
    def loss(x):
        return jnp.sum(rule(tap("before", x)))

    out, seen = jax.jit(capture(loss, cotangents=True))(X)
    assert float(out) == 6.0
    assert seen.values["inside"].tolist() == [3.0, 3.0]
    assert {k: v.tolist() for k, v in seen.cotangents.items()} == {"before": [7.0, 7.0]}
    with pytest.raises(
        ValueError, match=r"'inside' has no cotangent: it is inside a function with"
    ):
        capture(loss, "inside", cotangents=True)(X)


def test_inside_a_while_loop_there_is_the_last_value():
    def fn(x):
        def body(state):
            i, v = state
            return i + 1, tap("turn", v * 2.0)

        return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, x))[1].sum()

    _, seen = jax.jit(capture(fn))(X)
    assert seen.values["turn"].tolist() == [8.0, 8.0]
    with pytest.raises(ValueError, match="'turn' has no cotangent: it is inside a while loop"):
        capture(fn, "turn", cotangents=True)(X)
    assert "while loop" in nodes(fn)(X)[0].note


def test_integers_have_values_only():
    def fn(x):
        return jnp.sum(x * tap("mask", jnp.arange(2)).astype(x.dtype))

    assert capture(fn)(X)[1].values["mask"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="'mask' has no cotangent: it is int32, which has no grad"):
        capture(fn, cotangents=True)(X)


def test_out_of_reach_is_said():
    def fn(x):
        def matvec(v):
            return tap("deep", 2.0 * v)

        return jax.lax.custom_linear_solve(matvec, x, lambda _, b: b / 2.0).sum()

    with pytest.raises(
        ValueError, match="'deep' has no value to show: it is inside custom_linear_s"
    ):
        capture(fn)(X)


def test_cotangents_need_a_scalar():
    with pytest.raises(TypeError, match=r"the function returned float32\[2\], .* For other"):
        capture(lambda x: tap("x", x), cotangents=True)(X)
    with pytest.raises(TypeError, match="Pass has_aux=True if it returns"):
        capture(lambda x: (jnp.sum(tap("x", x)), x), cotangents=True)(X)
    with pytest.raises(TypeError, match=r"expected a pair \(loss, aux\), because has_aux=True"):
        capture(lambda x: jnp.sum(tap("x", x)), cotangents=True, has_aux=True)(X)


def test_arguments_to_differentiate_are_checked():
    with pytest.raises(TypeError, match=r"capture: argument 0, the only leaf is int32\[3\]"):
        capture(lambda n: tap("x", 1.0 * n.sum()), argnums=0)(jnp.arange(3))
    with pytest.raises(
        ValueError, match="argnums contains 2, expected indices of the 1 positional"
    ):
        capture(lambda n: tap("x", n.sum()), argnums=2)(X)
