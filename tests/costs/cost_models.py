"""Small models, and formulas for their exact costs."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


class Counts(NamedTuple):
    matmul: int
    other: int
    transcendentals: int


# --- a multi-layer perceptron: n examples, widths d[0] .. d[-1] -------------------------------


def mlp(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def mlp_loss(params, x, y):
    return jnp.mean(jnp.square(mlp(params, x) - y))


def mlp_shapes(n=128, d=(784, 256, 128, 10)):
    params = [(f32(i, o), f32(o)) for i, o in itertools.pairwise(d)]
    return params, f32(n, d[0]), f32(n, d[-1])


def mlp_counts(n=128, d=(784, 256, 128, 10)):
    """Count products, biases and tanh; the loss has a difference, a square, a sum, a division."""
    pairs = list(itertools.pairwise(d))
    return Counts(
        matmul=sum(2 * n * i * o for i, o in pairs),
        other=sum(n * o for _, o in pairs) + n * d[-1] * 3,
        transcendentals=sum(n * o for _, o in pairs[:-1]),
    )


# --- a transformer: b sequences of t tokens, width d, h heads, l layers, vocabulary v ---------


def layer_norm(scale, x):
    with jax.named_scope("norm"):
        mean = jnp.mean(x, -1, keepdims=True)
        centred = x - mean
        variance = jnp.mean(jnp.square(centred), -1, keepdims=True)
        return centred * lax.rsqrt(variance + 1e-6) * scale


def attention(p, x, heads):
    b, t, d = x.shape
    q, k, v = (jnp.reshape(x @ p[name], (b, t, heads, d // heads)) for name in "qkv")
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (d // heads) ** -0.5
    causal = jnp.tril(jnp.ones((t, t), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.reshape(jnp.einsum("bhqk,bkhd->bqhd", weights, v), (b, t, d)) @ p["o"]


def layer(p, x, heads):
    with jax.named_scope("attention"):
        x = x + attention(p, layer_norm(p["n1"], x), heads)
    with jax.named_scope("mlp"):
        return x + jax.nn.relu(layer_norm(p["n2"], x) @ p["w1"]) @ p["w2"]


def transformer(params, tokens, heads=4, scan=False):
    x = params["embed"][tokens]
    if scan:
        x = lax.scan(lambda x, p: (layer(p, x, heads), None), x, params["layers"])[0]
    else:
        depth = params["layers"]["q"].shape[0]
        for i in range(depth):
            x = layer(jax.tree.map(lambda p, i=i: p[i], params["layers"]), x, heads)
    with jax.named_scope("logits"):
        return x @ params["embed"].T


def transformer_loss(params, tokens, heads=4, scan=False):
    logits = transformer(params, tokens, heads, scan)
    hit = jax.nn.one_hot(tokens, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * hit, -1))


def transformer_shapes(b=4, t=64, d=64, layers=2, v=256):
    square = {name: f32(layers, d, d) for name in "qkvo"}
    mlp_ = {"w1": f32(layers, d, 4 * d), "w2": f32(layers, 4 * d, d)}
    norms = {"n1": f32(layers, d), "n2": f32(layers, d)}
    params = {"embed": f32(v, d), "layers": square | mlp_ | norms}
    return params, jax.ShapeDtypeStruct((b, t), jnp.int32)


def transformer_counts(b=4, t=64, d=64, layers=2, v=256, heads=4):
    n = b * t
    rows = b * heads * t  # of the attention matrix
    projections = 4 * 2 * n * d * d
    scores_and_mixture = 2 * 2 * b * t * t * d
    hidden = 2 * 2 * n * d * 4 * d
    # Two sums of d - 1, centering, squares, two scalings; two divisions and epsilon.
    norm = n * (2 * (d - 1) + 4 * d + 3)
    # Scale, mask; the maximum (with -inf), difference, a sum of t - 1, division.
    softmax = rows * (2 * t + t + t + (t - 1) + t)
    return Counts(
        matmul=layers * (projections + scores_and_mixture + hidden) + 2 * n * d * v,
        other=layers * (2 * norm + softmax + n * 4 * d + 2 * n * d),
        transcendentals=layers * (rows * t + 2 * n),
    )


# --- an LSTM in a scan: t steps, n examples, inputs of width i, states of width h -------------


def lstm(params, x):
    w, u, b = params

    def step(carry, x_t):
        h, c = carry
        gates = x_t @ w + h @ u + b
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[1], u.shape[0]), x.dtype)
    return lax.scan(step, (zeros, zeros), x)[1]


def lstm_shapes(t=50, n=16, i=32, h=64):
    return (f32(i, 4 * h), f32(h, 4 * h), f32(4 * h)), f32(t, n, i)


def lstm_counts(t=50, n=16, i=32, h=64):
    """Count two products and two sums for the gates, three products, a sum and 5 sigmoids."""
    return Counts(
        matmul=t * (2 * n * i * 4 * h + 2 * n * h * 4 * h),
        other=t * n * (2 * 4 * h + 4 * h),
        transcendentals=t * n * 5 * h,
    )


# --- a convolutional network: n images of s x s x c -------------------------------------------


def cnn(params, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, params[0], (1, 1), "SAME", dimension_numbers=numbers)
    x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(
        lax.conv_general_dilated(x, params[1], (2, 2), "SAME", dimension_numbers=numbers)
    )
    return jnp.reshape(x, (x.shape[0], -1)) @ params[2]


def cnn_shapes(n=8, s=16):
    return [f32(3, 3, 3, 16), f32(3, 3, 16, 32), f32((s // 4) ** 2 * 32, 10)], f32(n, s, s, 3)
