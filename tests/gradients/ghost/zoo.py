"""Losses of one example for many kinds of models, with small or given widths."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

SIZE = 5
WIDE = 64  # from this width on, sequences and images are larger too
CLASSES = 3


class Problem(NamedTuple):
    loss: Callable[..., Any]
    params: Any
    batch: Any


def exact(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Compute the loss and its derivatives with full precision instead of TF32 on a GPU.

    Then only the library's own operations cause rounding errors.
    """

    @functools.wraps(loss)
    def highest(params, example):
        with jax.default_matmul_precision("highest"):
            return loss(params, example)

    return highest


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape) / max(1, shape[0]) ** 0.5


def tokens(length: int, most: int = 7) -> jax.Array:
    return jax.random.randint(jax.random.key(9), (SIZE, length), 0, most)


def labels() -> jax.Array:
    return jnp.arange(SIZE, dtype=jnp.int32) % CLASSES


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    return jax.nn.logsumexp(logits) - jnp.sum(
        logits * jax.nn.one_hot(label, logits.shape[-1], dtype=logits.dtype)
    )


def labelled(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, labels()


def classifier(features: Callable[[Any, Any], Any], params: Any, x: jax.Array) -> Problem:
    def loss(params, example):
        x, label = example
        return cross_entropy(features(params, x), label)

    return Problem(exact(loss), params, labelled(x))


def images(n: int = 8, channels: int = 3, d: int = 6) -> jax.Array:
    n *= 4 if d >= WIDE else 1
    return normal(3, SIZE, n, n, channels) * SIZE**0.5


def vectors(d: int) -> jax.Array:
    return normal(3, SIZE, d) * SIZE**0.5


def sequences(length: int, d: int) -> jax.Array:
    length *= 8 if d >= WIDE else 1
    return normal(3, SIZE, length, d) * SIZE**0.5


def conv(x, kernel, strides=1, padding="SAME", numbers=("NHWC", "HWIO", "NHWC"), **options):
    strides = (strides,) * (kernel.ndim - 2)
    y = jax.lax.conv_general_dilated(
        x[None], kernel, strides, padding, dimension_numbers=numbers, **options
    )
    return y[0]


def layer_norm(x, scale, bias):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * scale + bias


# Dense networks.


def mlp(d=6):
    params = {"h": (normal(0, d, d), normal(1, d)), "out": (normal(2, d, CLASSES), jnp.zeros(3))}

    def net(p, x):
        return jax.nn.relu(x @ p["h"][0] + p["h"][1]) @ p["out"][0] + p["out"][1]

    return classifier(net, params, vectors(d))


def rematerialised(d=6):
    @jax.checkpoint
    def block(p, x):
        return jnp.tanh(x @ p["w"] + p["b"])

    params = {"layers": [{"w": normal(i, d, d), "b": normal(i, d)} for i in range(2)]}

    def net(p, x):
        for layer in p["layers"]:
            x = block(layer, x)
        return x

    return classifier(net, params, vectors(d))


def used_three_times(d=6):
    def net(w, x):
        return jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w)

    return classifier(net, normal(0, d, d), vectors(d))


def transposed_twin(d=6):
    def net(w, x):
        return jnp.tanh(jnp.tanh(x @ w) @ w.T)

    return classifier(net, normal(0, d, d + 1), vectors(d))


def ignored(d=6):
    params = {"w": normal(0, d, d), "unused": normal(1, d, d), "stopped": normal(2, d)}

    def net(p, x):
        return x @ p["w"] + jax.lax.stop_gradient(p["stopped"])

    return classifier(net, params, vectors(d))


def regularised(d=6):
    problem = mlp(d)

    def loss(params, example):
        return problem.loss(params, example) + 0.1 * jnp.sum(params["h"][0] ** 2)

    return problem._replace(loss=loss)


def weight_norm(d=6):
    params = {"v": normal(0, d, d), "g": jnp.ones(d)}

    def net(p, x):
        return x @ (p["g"] * p["v"] / jnp.linalg.norm(p["v"], axis=0))

    return classifier(net, params, vectors(d))


def lora(d=6):
    frozen = normal(0, d, d)
    params = {"a": normal(1, d, 2), "b": normal(2, 2, d)}

    def net(p, x):
        return jnp.tanh(x @ frozen + 0.5 * (x @ p["a"] @ p["b"]))

    return classifier(net, params, vectors(d))


def lora_merged(d=6):
    frozen = normal(0, d, d)
    params = {"a": normal(1, d, 2), "b": normal(2, 2, d)}

    def net(p, x):
        return jnp.tanh(x @ (frozen + p["a"] @ p["b"]))

    return classifier(net, params, vectors(d))


def activations_with_params(d=6):
    params = {"slope": jnp.full(d, 0.3), "temperature": jnp.float32(2.0), "floor": normal(1, d)}

    def net(p, x):
        x = jnp.where(x > 0, x, p["slope"] * x) / p["temperature"]
        return jnp.maximum(x, p["floor"]) - p["floor"]

    return classifier(net, params, vectors(d))


def bilinear(d=6):
    def net(w, x):
        return jnp.einsum("i,kij,j->k", x, w, x)

    return classifier(net, normal(0, CLASSES, d, d), vectors(d))


def branches(d=6):
    params = {"w": normal(0, d, d), "v": normal(1, d, d)}

    def net(p, x):
        return jax.lax.cond(x[0] > 0, lambda: x @ p["w"], lambda: jnp.tanh(x @ p["v"]))

    return classifier(net, params, vectors(d))


def own_derivative(d=6):
    @jax.custom_vjp
    def layer(w, x):
        return x @ w

    # Both are traced outside of the loss.
    def forward(w, x):
        return jnp.matmul(x, w, precision="highest"), (w, x)

    def back(kept, g):
        w, x = kept
        return jnp.outer(x, g), jnp.matmul(w, g, precision="highest")

    layer.defvjp(forward, back)
    params = {"w": normal(0, d, d), "v": normal(1, d, d)}

    def net(p, x):
        return jnp.tanh(layer(p["w"], x)) @ p["v"]

    return classifier(net, params, vectors(d))


def mapped_tokens(d=6):
    params = {"w": normal(0, d, d), "b": normal(1, d)}

    def net(p, x):
        return jnp.mean(jax.vmap(lambda t: jnp.tanh(p["w"] @ t + p["b"]))(x), axis=0)

    return classifier(net, params, sequences(4, d))


def experts(d=6):
    params = {"gate": normal(0, d, 4), "w": normal(1, 4, d, d), "b": normal(2, 4, d)}

    def net(p, x):
        gates = jax.nn.softmax(x @ p["gate"])
        h = jnp.einsum("td,edk->tek", x, p["w"]) + p["b"]
        return jnp.mean(jnp.einsum("te,tek->tk", gates, jnp.tanh(h)), axis=0)

    return classifier(net, params, sequences(5, d))


def fused_projection(d=6):
    def net(w, x):
        q, k, v = x @ w[:, :d], x @ w[:, d : 2 * d], x @ w[:, 2 * d :]
        return jnp.mean(jax.nn.softmax(q @ k.T) @ v, axis=0)

    return classifier(net, normal(0, d, 3 * d), sequences(4, d))


# Convolutions.


def conv_net(d=6):
    params = {
        "k1": normal(0, 3, 3, 3, d),
        "b1": normal(1, d),
        "k2": normal(2, 3, 3, d, d),
        "scale": normal(3, d),
        "out": normal(4, d, CLASSES),
    }

    def net(p, x):
        x = jax.nn.gelu(conv(x, p["k1"]) + p["b1"])
        x = jax.nn.gelu(conv(x, p["k2"], 2) * p["scale"])
        return jnp.mean(x, axis=(0, 1)) @ p["out"]

    return classifier(net, params, images(d=d))


def separable(d=6):
    params = {"depth": normal(0, 3, 3, 1, 2 * d), "point": normal(1, 1, 1, 2 * d, d)}

    def net(p, x):
        x = jnp.tanh(conv(x, p["depth"], feature_group_count=d))
        return jnp.mean(conv(x, p["point"]), axis=(0, 1))

    return classifier(net, params, images(6, d, d))


def dilated(d=6):
    params = [normal(i, 3, d, d) for i in range(2)]

    def net(p, x):
        for i, kernel in enumerate(p):
            pad = (2 * 2**i, 0)
            x = x + jnp.tanh(conv(x, kernel, 1, [pad], ("NWC", "WIO", "NWC"), rhs_dilation=(2**i,)))
        return x[-1]

    return classifier(net, params, sequences(9, d))


def upsampling(d=6):
    def net(kernel, x):
        y = jax.lax.conv_transpose(
            x[None], kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.mean(jnp.tanh(y[0]), axis=(0, 1))

    return classifier(net, normal(0, 4, 4, 3, d), images(4, d=d))


def channels_first(d=6):
    def net(kernel, x):
        y = jax.lax.conv(x.transpose(2, 0, 1)[None], kernel, (1, 1), "VALID")
        return jnp.mean(jnp.tanh(y[0]), axis=(1, 2))

    return classifier(net, normal(0, d, 3, 2, 3), images(5, d=d))


# Loops.


def rnn(d=6):
    params = {"x": normal(0, d, d), "h": normal(1, d, d), "b": normal(2, d)}

    def net(p, x):
        def step(h, x):
            return jnp.tanh(x @ p["x"] + h @ p["h"] + p["b"]), None

        return jax.lax.scan(step, jnp.zeros(d), x)[0]

    return classifier(net, params, sequences(5, d))


def lstm_both_ways(d=6):
    def cell(seed):
        return {"x": normal(seed, d, 4 * d), "h": normal(seed, d, 4 * d), "b": normal(seed, 4 * d)}

    def run(p, x, reverse):
        def step(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ p["x"] + h @ p["h"] + p["b"], 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        return jax.lax.scan(step, (jnp.zeros(d), jnp.zeros(d)), x, reverse=reverse)[1]

    def net(p, x):
        return run(p["there"], x, False)[-1] + run(p["back"], x, True)[0]

    return classifier(net, {"there": cell(0), "back": cell(1)}, sequences(4, d))


def learned_start(d=6):
    params = {"h0": normal(0, d), "w": normal(1, d, d)}

    def net(p, x):
        return jax.lax.scan(lambda h, x: (jnp.tanh(h @ p["w"] + x), None), p["h0"], x)[0]

    return classifier(net, params, sequences(4, d))


def scanned_layers(d=6):
    params = {"w": normal(0, 3, d, d) / d**0.5, "b": normal(1, 3, d)}

    def net(p, x):
        def layer(x, p):
            return x + jnp.tanh(x @ p["w"].T + p["b"]), None

        return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, p)[0], axis=0)

    return classifier(net, params, sequences(4, d))


def nested_loops(d=6):
    params = {"deep": normal(0, 2, d, d), "shared": normal(1, d, d)}

    def net(p, x):
        def time(h, x):
            def layer(h, w):
                return jnp.tanh(h @ w + x @ p["shared"]), None

            return jax.lax.scan(layer, h, p["deep"])

        return jax.lax.scan(lambda h, x: (time(h, x)[0], None), jnp.zeros(d), x)[0]

    return classifier(net, params, sequences(3, d))


def counted_loop(d=6):
    def net(w, x):
        return jax.lax.fori_loop(0, 3, lambda _, h: jnp.tanh(h @ w), x)

    return classifier(net, normal(0, d, d), vectors(d))


# Language.


def bag_of_words(d=6):
    params = {"table": normal(0, 7, d), "out": normal(1, d, CLASSES)}

    def loss(params, example):
        words, label = example
        return cross_entropy(jnp.mean(params["table"][words], axis=0) @ params["out"], label)

    return Problem(exact(loss), params, labelled(tokens(4)))


def taken_with_fill(d=6):
    def loss(table, words):
        return jnp.sum(jnp.nan_to_num(jnp.take(table, words, axis=0)) ** 2)

    return Problem(exact(loss), normal(0, 7, d), tokens(4, 9) - 1)  # some indices are out of range


def words_beyond_the_table(d=6):
    """Look up indices out of range: JAX reads the nearest row, whose gradient is zero."""

    def loss(table, words):
        return jnp.sum(table[words] ** 2)

    return Problem(exact(loss), normal(0, 7, d), tokens(4, 30) - 15)


def _block(p, x, heads=2):
    t, d = x.shape
    h = layer_norm(x, p["s1"], p["c1"])
    q, k, v = jnp.einsum("td,dnhe->nthe", h, p["qkv"])
    scores = jnp.einsum("the,she->hts", q, k) / (d // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    x = x + jnp.einsum("hts,she,hed->td", jax.nn.softmax(scores), v, p["o"])
    h = layer_norm(x, p["s2"], p["c2"])
    return x + jax.nn.gelu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def _block_params(seed, d, heads=2):
    shapes = {
        "s1": (d,),
        "c1": (d,),
        "qkv": (d, 3, heads, d // heads),
        "o": (heads, d // heads, d),
        "s2": (d,),
        "c2": (d,),
        "w1": (d, 2 * d),
        "b1": (2 * d,),
        "w2": (2 * d, d),
        "b2": (d,),
    }
    return {name: normal(seed + i, *shape) for i, (name, shape) in enumerate(shapes.items())}


def _language_model(run, blocks, d):
    length, vocabulary = 6, 7
    params = {"table": normal(0, vocabulary, d), "place": normal(1, length, d), "blocks": blocks}

    def loss(params, words):
        x = params["table"][words[:-1]] + params["place"]
        logits = run(params["blocks"], x) @ params["table"].T
        return jnp.mean(jax.vmap(cross_entropy)(logits, words[1:]))

    return Problem(exact(loss), params, tokens(length + 1, vocabulary))


def transformer(d=6):
    def run(blocks, x):
        for block in blocks:
            x = _block(block, x)
        return x

    return _language_model(run, [_block_params(10, d), _block_params(30, d)], d)


def transformer_scanned(d=6):
    def run(blocks, x):
        return jax.lax.scan(jax.checkpoint(lambda x, p: (_block(p, x), None)), x, blocks)[0]

    blocks = jax.tree.map(lambda *x: jnp.stack(x), _block_params(10, d), _block_params(30, d))
    return _language_model(run, blocks, d)


def vision_transformer(d=6):
    params = {"patch": normal(0, 12, d), "class": normal(1, 1, d), "place": normal(2, 5, d)}
    params |= {"block": _block_params(10, d), "head": normal(3, d, CLASSES)}

    def net(p, x):
        patches = x.reshape(2, 2, 2, 2, 3).transpose(0, 2, 1, 3, 4).reshape(4, 12)
        x = jnp.concatenate([p["class"], patches @ p["patch"]]) + p["place"]
        return _block(p["block"], x)[0] @ p["head"]

    return classifier(net, params, images(4))


# Libraries.


def linen_conv(d=6):
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.GroupNorm(num_groups=2)(nn.Conv(d, (3, 3), strides=2)(x)))
            x = nn.max_pool(nn.Conv(d, (3, 3))(x), (2, 2), strides=(2, 2))
            return nn.Dense(CLASSES)(x.reshape(-1))

    model = Net()
    return classifier(model.apply, model.init(jax.random.key(0), images(d=d)[0]), images(d=d))


def linen_attention(d=6):
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x))
            return nn.Dense(CLASSES)(jnp.mean(x, axis=0))

    model, x = Net(), sequences(4, d)
    return classifier(model.apply, model.init(jax.random.key(0), x[0]), x)


def linen_lstm(d=6):
    nn = pytest.importorskip("flax.linen")
    model, x = nn.RNN(nn.OptimizedLSTMCell(d)), sequences(4, d)
    params = model.init(jax.random.key(0), x[0])
    return classifier(lambda p, x: model.apply(p, x)[-1], params, x)


def nnx_model(d=6):
    nnx = pytest.importorskip("flax.nnx")
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        nnx.Linear(d, d, rngs=rngs),
        nnx.LayerNorm(d, rngs=rngs),
        nnx.tanh,
        nnx.Linear(d, 3, rngs=rngs),
    )
    graph, params = nnx.split(model)
    return classifier(lambda p, x: nnx.merge(graph, p)(x), params, vectors(d))


def equinox_conv(d=6):
    eqx = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0))
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(3, d, 3, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.AdaptiveAvgPool2d(1),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(d, CLASSES, key=keys[1]),
        ]
    )
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    x = images(6).transpose(0, 3, 1, 2)
    return classifier(lambda p, x: eqx.combine(p, rest)(x), params, x)


def equinox_gru(d=6):
    eqx = pytest.importorskip("equinox")
    params, rest = eqx.partition(eqx.nn.GRUCell(d, d, key=jax.random.key(0)), eqx.is_inexact_array)

    def net(p, x):
        cell = eqx.combine(p, rest)
        return jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(d), x)[0]

    return classifier(net, params, sequences(4, d))


MODELS = (
    mlp,
    rematerialised,
    used_three_times,
    transposed_twin,
    ignored,
    regularised,
    weight_norm,
    lora,
    lora_merged,
    activations_with_params,
    bilinear,
    branches,
    own_derivative,
    mapped_tokens,
    experts,
    fused_projection,
    conv_net,
    separable,
    dilated,
    upsampling,
    channels_first,
    rnn,
    lstm_both_ways,
    learned_start,
    scanned_layers,
    nested_loops,
    counted_loop,
    bag_of_words,
    taken_with_fill,
    words_beyond_the_table,
    transformer,
    transformer_scanned,
    vision_transformer,
    linen_conv,
    linen_attention,
    linen_lstm,
    nnx_model,
    equinox_conv,
    equinox_gru,
)
