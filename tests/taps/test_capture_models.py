"""Models of every framework, and a transformer block."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.taps import capture, nodes, tap


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def close(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


def test_flax_linen():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _=None):
            h = tap("hidden", nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
            return x + nn.Dense(8)(h), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = tap("embedded", nn.Dense(8, name="embed")(x))
            stack = nn.scan(
                nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            x, _ = stack(name="blocks")(x, None)
            return nn.Dense(2, name="head")(x)

    model, x = Model(), normal(0, 5, 3)
    params = model.init(jax.random.key(0), x)

    def loss(params, x):
        return jnp.sum(model.apply(params, x) ** 2)

    chosen = ("hidden", "embedded", "scope:Model/head", "scope:*/embed", "scope:*/Dense_1")
    seeing = jax.jit(capture(loss, chosen, cotangents=True, argnums=0))
    value, seen = seeing(params, x)
    close((value, seen.grads), jax.jit(jax.value_and_grad(loss))(params, x))
    assert seen.values["hidden"].shape == (3, 5, 16)
    # The kernel of a dense layer has the gradient x^T cotangent of its output.
    kernel = seen.grads["params"]["embed"]["kernel"]
    close(x.T @ seen.cotangents["embedded"], kernel)
    close(seen.cotangents["scope:Model/embed"], seen.cotangents["embedded"])
    output = jax.jit(model.apply)(params, x)
    close(seen.values["scope:Model/head"], output)
    close(seen.cotangents["scope:Model/head"], 2.0 * output)
    # The same in every block, without a tap: cotangent of the inner kernel, layer by layer.
    inner = seen.grads["params"]["blocks"]["Dense_1"]["kernel"]
    cotangent = seen.cotangents["scope:Model/blocks/Dense_1"]
    close(jnp.einsum("lbi,lbo->lio", seen.values["hidden"], cotangent), inner)


def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 4, rngs=rngs)
            self.second = nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            return self.second(tap("hidden", nnx.relu(self.first(x))))

    graph, params = nnx.split(Model(nnx.Rngs(0)))
    x = normal(0, 5, 3)

    def loss(params, x):
        return jnp.sum(nnx.merge(graph, params)(x) ** 2)

    _, seen = jax.jit(capture(loss, "hidden", cotangents=True, argnums=0))(params, x)
    grads = jax.jit(jax.grad(loss))(params, x)
    close(seen.grads, grads)
    output = nnx.merge(graph, params)(x)
    close(seen.values["hidden"].T @ (2.0 * output), grads["second"]["kernel"][...])
    close(seen.cotangents["hidden"], 2.0 * output @ params["second"]["kernel"][...].T)


def test_equinox():
    eqx = pytest.importorskip("equinox")

    class Model(eqx.Module):
        layers: list
        activation: object

        def __init__(self, key):
            keys = jax.random.split(key)
            self.layers = [eqx.nn.Linear(3, 4, key=keys[0]), eqx.nn.Linear(4, 2, key=keys[1])]
            self.activation = jnp.tanh

        def __call__(self, x):
            return self.layers[1](tap("hidden", self.activation(self.layers[0](x))))

    model = Model(jax.random.key(0))
    x = normal(0, 5, 3)

    def forward(model, x):
        return jnp.sum(jax.vmap(model)(x) ** 2)

    # The module with its function goes in as it is; only what is differentiated has to be arrays.
    _, seen = capture(forward, "hidden", cotangents=True)(model, x)
    output = jax.vmap(model)(x)
    close(seen.values["hidden"], jnp.tanh(jax.vmap(model.layers[0])(x)))
    close(seen.cotangents["hidden"], 2.0 * output @ model.layers[1].weight)
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    _, seen = jax.jit(capture(lambda p, x: forward(eqx.combine(p, rest), x), argnums=0))(params, x)
    close(seen.grads.layers[1].weight, (2.0 * output).T @ seen.values["hidden"])
    with pytest.raises(TypeError, match=r"argument 0, leaf 'activation'.*equinox.partition"):
        capture(forward, argnums=0)(model, x)
    # Equinox opens a scope for each of its layers.
    listed = [n.name for n in nodes(forward, scopes=True)(model, x)]
    assert "scope:eqx.nn.Linear#0" in listed
    assert "scope:eqx.nn.Linear#1" in listed


def attention(params, x):
    q, k, v = (tap(name, x @ params[name]) for name in "qkv")
    scores = tap("scores", q @ k.T / jnp.sqrt(jnp.float32(q.shape[-1])))
    weights = tap("weights", jax.nn.softmax(scores))
    return weights @ v


def transformer_block(params, x):
    x = x + attention(params, x)
    h = tap("mlp", jax.nn.gelu(x @ params["up"]))
    return tap("out", x + h @ params["down"])


def test_transformer_block():
    params = {name: normal(i, 4, 4) / 2 for i, name in enumerate("qkv")}
    params |= {"up": normal(4, 4, 8) / 2, "down": normal(5, 8, 4) / 3}
    tokens = normal(6, 3, 5, 4)

    def loss(params, tokens):
        return jnp.mean(jax.vmap(transformer_block, (None, 0))(params, tokens) ** 2)

    seeing = jax.jit(capture(loss, cotangents=True, argnums=0))
    value, seen = seeing(params, tokens)
    close((value, seen.grads), jax.jit(jax.value_and_grad(loss))(params, tokens))
    v, c = seen.values, seen.cotangents
    close(c["out"], 2.0 * v["out"] / v["out"].size)
    # The derivative of softmax, by hand.
    inner = jnp.sum(c["weights"] * v["weights"], axis=-1, keepdims=True)
    close(c["scores"], v["weights"] * (c["weights"] - inner))
    # Each projection's gradient is the sum over sequences of inputs times cotangents.
    for name in "qkv":
        close(jnp.einsum("bti,bto->io", tokens, c[name]), seen.grads[name])
    close(c["q"], c["scores"] @ v["k"] / 2.0)
    close(jnp.einsum("bti,bto->io", v["mlp"], c["out"]), seen.grads["down"])
