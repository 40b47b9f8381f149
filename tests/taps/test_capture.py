"""Values and cotangents against gradients with respect to zeros that are threaded by hand."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.taps import capture, nodes, tap


def tapped(name, x, eps):
    return tap(name, x)


def disturbed(name, x, eps):
    return x + eps


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


# Every model takes `see` and, for the version by hand, one array to add at each node.


def mlp(see, params, x, eps):
    h = see("h1", jnp.tanh(x @ params["a"]), eps["h1"])
    h = see("h2", jax.nn.gelu(h @ params["b"]), eps["h2"])
    return jnp.mean(see("out", h @ params["c"], eps["out"]) ** 3)


def rnn(see, params, x, eps):
    def step(h, inputs):
        u, e = inputs
        a = see("a", u @ params["a"] + h @ params["b"], e["a"])
        h = see("h", jnp.tanh(a), e["h"])
        return h, see("y", h @ params["c"], e["y"])

    inside = {name: eps[name] for name in ("a", "h", "y")}
    h, ys = jax.lax.scan(step, jnp.zeros(5), (x, inside))
    return jnp.sum(see("last", h, eps["last"]) ** 2) + jnp.mean(ys**3)


def nested(see, params, x, eps):
    """A scan in a scan in a jit, backwards, unrolled."""

    def outer(h, inputs):
        u, e_in, e_out = inputs

        def inner(v, e):
            return see("in", jnp.sin(v @ params["b"]), e), None

        h, _ = jax.lax.scan(inner, jnp.tanh(u @ params["a"] + h), e_in, length=2, unroll=2)
        return see("out", h, e_out), jnp.sum(h)

    @jax.jit
    def whole(x, e_in, e_out):
        h, s = jax.lax.scan(outer, jnp.zeros(5), (x, e_in, e_out), reverse=True)
        return jnp.sum(h**2) + jnp.sum(s)

    return whole(x, eps["in"], eps["out"])


def remat(see, params, x, eps):
    @jax.checkpoint
    def first(x, e):
        return see("sin", jnp.sin(x @ params["a"]), e)

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def second(h, e):
        return see("cos", jnp.cos(h @ params["b"]), e) ** 2

    return jnp.sum(second(first(x, eps["sin"]), eps["cos"]))


def mapped(see, params, x, eps):
    def one(x, e):
        return jnp.sum(see("h", jnp.tanh(x @ params["a"]), e) ** 2)

    return jnp.mean(jax.vmap(one)(x, eps["h"]))


def branching(see, params, x, eps):
    def yes(x, eps):
        return jnp.sum(see("yes", jnp.sin(x @ params["a"]), eps["yes"]) ** 2)

    def no(x, eps):
        return jnp.sum(see("no", jnp.cos(x @ params["a"]), eps["no"]) ** 3)

    return jax.lax.cond(x[0, 0] > 0.0, yes, no, x, eps)


PARAMS = {"a": normal(0, 4, 5), "b": normal(1, 5, 5) / 2, "c": normal(2, 5, 3)}
X = normal(3, 6, 4)
SHAPES = {
    mlp: {"h1": (6, 5), "h2": (6, 5), "out": (6, 3)},
    rnn: {"a": (6, 5), "h": (6, 5), "y": (6, 3), "last": (5,)},
    nested: {"in": (6, 2, 5), "out": (6, 5)},
    remat: {"sin": (6, 5), "cos": (6, 5)},
    mapped: {"h": (6, 5)},
    branching: {"yes": (6, 5), "no": (6, 5)},
}


@pytest.fixture(params=SHAPES, ids=lambda model: model.__name__)
def model(request):
    return request.param


def with_taps(model):
    none = dict.fromkeys(SHAPES[model])
    return lambda params, x: model(tapped, params, x, none)


def by_hand(model, params, x):
    """Loss, gradient, cotangents."""
    zeros = {name: jnp.zeros(shape) for name, shape in SHAPES[model].items()}
    backward = jax.value_and_grad(partial(model, disturbed), argnums=(0, 2))
    loss, (grads, cotangents) = jax.jit(backward)(params, x, zeros)
    return loss, grads, cotangents


def close(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-6)


def test_cotangents_and_gradients_in_one_backward_pass(model):
    loss, seen = jax.jit(capture(with_taps(model), cotangents=True, argnums=0))(PARAMS, X)
    close((loss, seen.grads, seen.cotangents), by_hand(model, PARAMS, X))
    assert {name: v.shape for name, v in seen.values.items()} == SHAPES[model]


def test_without_jit_and_without_gradients(model):
    loss, seen = capture(with_taps(model), cotangents=True, values=False)(PARAMS, X)
    expected_loss, _, expected = by_hand(model, PARAMS, X)
    close((loss, seen.cotangents), (expected_loss, expected))
    assert seen.values == {}
    assert seen.grads is None


def test_values_by_a_loop_in_python():
    _, seen = jax.jit(capture(with_taps(rnn)))(PARAMS, X)
    h, hs = jnp.zeros(5), []
    for u in X:
        h = jnp.tanh(u @ PARAMS["a"] + h @ PARAMS["b"])
        hs.append(h)
    np.testing.assert_allclose(seen.values["h"], jnp.stack(hs), atol=1e-6)
    np.testing.assert_allclose(seen.values["y"], jnp.stack(hs) @ PARAMS["c"], atol=1e-5)
    np.testing.assert_allclose(seen.values["last"], h, atol=1e-6)


def test_a_reversed_scan_keeps_the_order_of_its_inputs():
    def f(x):
        return jax.lax.scan(lambda c, u: (c, tap("u", 2.0 * u)), 0.0, x, reverse=True)[1].sum()

    _, seen = capture(f, cotangents=True)(jnp.arange(3.0))
    assert seen.values["u"].tolist() == [0.0, 2.0, 4.0]


def test_the_branch_that_is_not_taken_is_zero():
    for x, taken, other in (
        (X.at[0, 0].set(1.0), "yes", "no"),
        (X.at[0, 0].set(-1.0), "no", "yes"),
    ):
        _, seen = jax.jit(capture(with_taps(branching), cotangents=True))(PARAMS, x)
        assert np.any(seen.values[taken])
        assert np.any(seen.cotangents[taken])
        assert not np.any(seen.values[other])
        assert not np.any(seen.cotangents[other])


def test_closed_form_of_a_chain():
    def loss(w, x):
        return tap("z", jnp.exp(tap("y", w * x)))

    out, seen = capture(loss, cotangents=True, argnums=(0, 1))(jnp.float32(2.0), jnp.float32(0.5))
    e = np.exp(np.float32(1.0))
    np.testing.assert_allclose(
        [out, seen.cotangents["z"], seen.cotangents["y"], *seen.grads],
        [e, 1.0, e, 0.5 * e, 2.0 * e],
        rtol=1e-6,
    )


def test_a_node_that_the_loss_ignores_has_a_zero_cotangent():
    def loss(x):
        tap("aside", 3.0 * x)
        return jnp.sum(x)

    _, seen = capture(loss, cotangents=True)(jnp.ones(2))
    assert seen.values["aside"].tolist() == [3.0, 3.0]
    assert seen.cotangents["aside"].tolist() == [0.0, 0.0]


def test_one_trace_of_the_function():
    traces = []

    def loss(params, x):
        traces.append(1)
        return with_taps(rnn)(params, x)

    seeing = jax.jit(capture(loss, cotangents=True, argnums=0, reduce="rms"))
    for _ in range(3):
        seeing(PARAMS, X)
    assert len(traces) == 1


def test_it_maps_and_differentiates():
    seeing = capture(with_taps(mlp), "h1", cotangents=True)
    stacked = jnp.stack([X, 2.0 * X])
    _, seen = jax.vmap(seeing, (None, 0))(PARAMS, stacked)
    for i in range(2):
        close(seen.cotangents["h1"][i], seeing(PARAMS, stacked[i])[1].cotangents["h1"])

    # A penalty on an activation, and one on a cotangent: both are functions like any other.
    def on_value(params):
        return jnp.sum(seeing(params, X)[1].values["h1"] ** 2)

    def by_hand_value(params):
        return jnp.sum(jnp.tanh(X @ params["a"]) ** 2)

    close(jax.grad(on_value)(PARAMS)["a"], jax.grad(by_hand_value)(PARAMS)["a"])

    def on_cotangent(params):
        return jnp.sum(seeing(params, X)[1].cotangents["h1"] ** 2)

    def by_hand_cotangent(params):
        return jnp.sum(by_hand(mlp, params, X)[2]["h1"] ** 2)

    close(jax.grad(on_cotangent)(PARAMS), jax.grad(by_hand_cotangent)(PARAMS))


def test_has_aux():
    def loss(x):
        return jnp.sum(tap("x", x) ** 2), {"n": x.size, "text": None}

    (value, aux), seen = capture(loss, cotangents=True, has_aux=True)(jnp.ones(2))
    assert (float(value), int(aux["n"]), aux["text"]) == (2.0, 2, None)
    assert seen.cotangents["x"].tolist() == [2.0, 2.0]


def test_values_need_no_scalar_output():
    out, seen = capture(lambda x: {"y": tap("x", x) + 1.0})(jnp.ones(2))
    assert out["y"].tolist() == [2.0, 2.0]
    assert seen.values["x"].tolist() == [1.0, 1.0]


def test_flags_and_keywords_stay_what_they_are():
    def loss(x, scale, *, power=1, name=None, dtype=None):
        assert dtype is jnp.float32
        assert isinstance(power, int)
        assert name == "n"
        assert isinstance(scale, float)
        return jnp.sum(tap("x", scale * x) ** power)

    arguments = {"power": 2, "name": "n", "dtype": jnp.float32}
    assert nodes(loss)(jnp.ones(2), 3.0, **arguments)[0].shape == (2,)
    _, seen = capture(loss, cotangents=True)(jnp.ones(2), 3.0, **arguments)
    assert seen.cotangents["x"].tolist() == [6.0, 6.0]


def test_an_argument_that_is_a_python_number_can_be_differentiated():
    _, seen = capture(lambda w: tap("y", 3.0 * w) ** 2, cotangents=True, argnums=0)(2.0)
    assert float(seen.cotangents["y"]) == 12.0
    assert float(seen.grads) == 36.0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_cotangent_has_the_dtype_of_its_value(dtype):
    def loss(x):
        return jnp.sum(tap("x", x).astype(jnp.float32) ** 2)

    _, seen = capture(loss, cotangents=True)(jnp.ones(2, dtype))
    assert seen.cotangents["x"].dtype == dtype
    assert seen.cotangents["x"].tolist() == [2.0, 2.0]


def test_float64_and_complex(x64):
    def loss(x):
        return jnp.sum(jnp.abs(tap("z", (1.0 + 2.0j) * x)) ** 2)

    _, seen = capture(loss, cotangents=True)(jnp.ones(2, jnp.complex128))
    assert seen.values["z"].dtype == jnp.complex128
    expected = jax.grad(lambda z: jnp.sum(jnp.abs(z) ** 2))(seen.values["z"])
    np.testing.assert_allclose(seen.cotangents["z"], expected, rtol=1e-12)


def test_looking_changes_no_bit_of_the_result():
    x = jnp.array([-0.0, 1.0, jnp.inf, jnp.nan])
    out, _ = jax.jit(capture(lambda x: tap("x", x) * 1.0))(x)
    assert np.asarray(out).tobytes() == np.asarray(x * 1.0).tobytes()


def test_an_empty_node():
    _, seen = capture(lambda x: jnp.sum(tap("x", x)), cotangents=True)(jnp.ones((0, 3)))
    assert seen.values["x"].shape == seen.cotangents["x"].shape == (0, 3)


def test_side_effects_happen_once():
    calls = []

    def loss(x):
        jax.debug.callback(calls.append, jnp.sum(x))
        return jnp.sum(tap("x", x))

    capture(loss)(jnp.ones(2))
    jax.effects_barrier()
    assert len(calls) == 1


def test_nodes_are_listed_without_running():
    listed = nodes(with_taps(nested))(PARAMS, jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert [(n.name, n.shape, n.axes) for n in listed] == [
        ("in", (6, 2, 5), (6, 2)),
        ("out", (6, 5), (6,)),
    ]
    assert all(n.dtype == jnp.float32 and n.note == "" for n in listed)
