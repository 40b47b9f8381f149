from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

from fnopt.taps import capture, nodes, tap


def untapped(name, x):
    return x


def mlp(see, w, x):
    h = see("hidden", jnp.tanh(x @ w))
    return jnp.sum(see("out", h @ w) ** 2)


def recurrent(see, w, x):
    def step(h, u):
        h = see("state", jnp.tanh(u + h @ w))
        return h, h

    return jnp.sum(jax.lax.scan(step, jnp.zeros(3), x)[1] ** 2)


def branching(see, w, x):
    return jax.lax.cond(x[0, 0] > 0.0, lambda v: see("yes", v @ w).sum(), lambda v: v.sum(), x)


def looping(see, w, x):
    return jax.lax.while_loop(lambda v: v.sum() < 9.0, lambda v: see("turn", v * 2.0), x).sum()


W = jax.random.normal(jax.random.key(0), (3, 3))
X = jax.random.uniform(jax.random.key(1), (4, 3))

USES = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "grad of remat": lambda f: jax.grad(jax.checkpoint(f)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f), (None, 0)),
    "hessian-vector product": lambda f: (
        lambda w, x: jax.jvp(lambda v: jax.grad(f)(v, x), (w,), (w,))
    ),
    "forward mode": lambda f: lambda w, x: jax.jvp(lambda v: f(v, x), (w,), (w,)),
}


def program(fn, *args) -> str:
    """The compiled program without names of source lines and scopes."""
    text = jax.jit(fn).lower(*args).compile().as_text()
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    # Tables of source locations and the module's name are metadata too.
    return text[text.index("\nENTRY") :] + "".join(
        sorted(re.findall(r"\n%[^\n]*\{.*?\n\}", text, re.S))
    )


@pytest.mark.parametrize("model", [mlp, recurrent, branching])
@pytest.mark.parametrize("use", USES)
def test_nobody_looks_nothing_costs(model, use):
    x = jnp.stack([X, X + 1.0]) if use == "vmap of grad" else X
    texts = [
        program(USES[use](lambda w, x, see=see: model(see, w, x)), W, x) for see in (tap, untapped)
    ]
    assert texts[0] == texts[1]


def test_the_compared_programs_are_whole():
    # Guards the test above: a different program has a different text.
    other = program(lambda w, x: mlp(untapped, w, x) * 3.0, W, X)
    assert program(lambda w, x: mlp(untapped, w, x), W, X) != other
    assert program(lambda w, x: recurrent(lambda _, v: v * 3.0, w, x), W, X) != program(
        lambda w, x: recurrent(untapped, w, x), W, X
    )


def test_a_while_loop_costs_nothing_either():
    texts = [program(lambda w, x, see=see: looping(see, w, x), W, X) for see in (tap, untapped)]
    assert texts[0] == texts[1]


def test_the_gradient_of_a_scan_keeps_no_second_residual():
    def memory(see):
        grad = jax.jit(jax.grad(lambda w, x: recurrent(see, w, x)))
        return grad.lower(W, jnp.zeros((100, 3))).compile().memory_analysis().temp_size_in_bytes

    assert memory(tap) == memory(untapped)


@pytest.mark.parametrize(
    "x",
    [
        jnp.array([-0.0, 1.0]),
        jnp.arange(3),
        jnp.array(True),
        jnp.ones(2, jnp.bfloat16),
        jnp.array([1j, 2.0]),
        jnp.zeros((0, 2)),
        jax.random.key(3),
        np.ones(2, np.float32),
    ],
)
def test_it_is_the_identity(x):
    for y in (tap("x", x), jax.jit(lambda v: tap("x", v))(x)):
        assert y.dtype == x.dtype
        assert y.shape == x.shape
        plain = (lambda v: v) if x.dtype != jax.random.key(0).dtype else jax.random.key_data
        assert np.asarray(plain(y)).tobytes() == np.asarray(plain(x)).tobytes()


def test_derivatives_go_through():
    def f(x):
        return tap("x", x) * 3.0

    x = jnp.float32(2.0)
    assert jax.jvp(f, (x,), (x,))[1] == 6.0
    assert jax.grad(f)(x) == 3.0
    assert jax.linear_transpose(f, x)(x)[0] == 6.0
    assert jax.linearize(f, x)[1](x) == 6.0
    assert jax.vmap(f)(jnp.ones(2)).tolist() == [3.0, 3.0]


def test_the_leaves_of_a_tree_have_their_paths():
    def f(x):
        state = tap("state", {"h": x, "c": (2.0 * x, None)})
        return state["h"] + state["c"][0]

    assert [n.name for n in nodes(f)(1.0)] == ["state/c/0", "state/h"]
    _, seen = capture(f, "state")(1.0)
    assert {k: float(v) for k, v in seen.values.items()} == {"state/c/0": 2.0, "state/h": 1.0}


def test_a_python_number_becomes_an_array():
    assert tap("x", 1.5).dtype == jnp.float32


def test_values_named_for_rematerialisation_are_found():
    def f(x):
        return jnp.sin(checkpoint_name(jnp.exp(x), "exp"))

    _, seen = capture(f, "exp", cotangents=True)(jnp.float32(0.0))
    assert seen.values["exp"] == 1.0
    np.testing.assert_allclose(seen.cotangents["exp"], np.cos(1.0), rtol=1e-6)


def test_names_are_checked():
    with pytest.raises(
        TypeError, match=r"the name is a ArrayImpl, expected a string. Write tap\('hid"
    ):
        tap(jnp.ones(1), "hidden")
    for name in ("", "a*", "a#1", "scope:a", "a?", "a[0]"):
        with pytest.raises(ValueError, match="tap: the name is"):
            tap(name, jnp.ones(1))
