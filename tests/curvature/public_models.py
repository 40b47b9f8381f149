"""Ten networks in the usual style of flax, Equinox and haiku; only shapes, without computation.

`python -m tests.curvature.public_models` prints the blocks that `kfac` uses for each network.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

IMAGE, TOKENS, SERIES = (32, 32, 3), (64,), (64, 24)
INPUTS = {
    "MLP": ((784,), jnp.float32),
    "LeNet": (IMAGE, jnp.float32),
    "ResNet block": (IMAGE, jnp.float32),
    "ViT block": (IMAGE, jnp.float32),
    "GPT": (TOKENS, jnp.int32),
    "LSTM": (SERIES, jnp.float32),
    "autoencoder": (IMAGE, jnp.float32),
    "MLP-Mixer": (IMAGE, jnp.float32),
    "U-Net": (IMAGE, jnp.float32),
    "WaveNet": (SERIES, jnp.float32),
}
WIDTH, HEADS, VOCABULARY = 256, 4, 5000


def shape_of(name: str) -> Any:
    """Return shape and dtype of an example."""
    shape, dtype = INPUTS[name]
    return jax.ShapeDtypeStruct(shape, dtype)


def flax_models() -> dict[str, Any]:
    """Return flax modules by name."""
    from flax import linen as nn

    def mlp_block(x: Any, width: int) -> Any:
        return nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(width)(x)))

    def patches(x: Any) -> Any:
        return nn.Conv(WIDTH, (4, 4), strides=4)(x).reshape(-1, WIDTH)

    class MLP(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(nn.relu(nn.Dense(300)(nn.relu(nn.Dense(300)(x)))))

    class LeNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            for channels in (32, 64):
                x = nn.avg_pool(nn.relu(nn.Conv(channels, (5, 5))(x)), (2, 2), (2, 2))
            return nn.Dense(10)(nn.relu(nn.Dense(256)(x.reshape(-1))))

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            norm = lambda: nn.BatchNorm(use_running_average=True)  # noqa: E731
            x = nn.relu(norm()(nn.Conv(64, (3, 3), use_bias=False)(x)))
            h = nn.relu(norm()(nn.Conv(128, (3, 3), strides=2, use_bias=False)(x)))
            h = norm()(nn.Conv(128, (3, 3), use_bias=False)(h))
            x = nn.relu(h + norm()(nn.Conv(128, (1, 1), strides=2, use_bias=False)(x)))
            return nn.Dense(10)(x.mean((0, 1)))

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, mask=None):
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(num_heads=HEADS)(h, h, mask=mask)
            return x + mlp_block(nn.LayerNorm()(x), 4 * WIDTH), None

    class ViT(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = patches(x)
            first = self.param("cls", nn.initializers.normal(), (1, WIDTH))
            x = jnp.concatenate([first, x])
            x = x + self.param("place", nn.initializers.normal(), x.shape)
            return nn.Dense(10)(nn.LayerNorm()(Block()(x)[0][0]))

    class GPT(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            embed, place = nn.Embed(VOCABULARY, WIDTH), nn.Embed(*TOKENS, WIDTH)
            x = embed(tokens) + place(jnp.arange(len(tokens)))
            layers = nn.scan(
                Block,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=nn.broadcast,
                length=3,
            )
            x, _ = layers()(x, nn.make_causal_mask(tokens))
            return embed.attend(nn.LayerNorm()(x))

    class LSTM(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(10)(nn.RNN(nn.OptimizedLSTMCell(WIDTH))(x[None])[0, -1])

    class Autoencoder(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(64, (3, 3), strides=2)(nn.relu(nn.Conv(32, (3, 3), strides=2)(x))))
            x = nn.Dense(x.size)(nn.Dense(32)(x.reshape(-1))).reshape(x.shape)
            return nn.ConvTranspose(3, (3, 3), strides=(2, 2))(
                nn.relu(nn.ConvTranspose(32, (3, 3), strides=(2, 2))(x))
            )

    class Mixer(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = patches(x)
            x = x + mlp_block(nn.LayerNorm()(x).T, 128).T
            x = x + mlp_block(nn.LayerNorm()(x), 4 * WIDTH)
            return nn.Dense(10)(nn.LayerNorm()(x).mean(0))

    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            a = nn.silu(nn.GroupNorm(8)(nn.Conv(64, (3, 3))(x)))
            b = nn.silu(nn.GroupNorm(8)(nn.Conv(128, (3, 3), strides=2)(a)))
            c = nn.ConvTranspose(64, (2, 2), strides=(2, 2))(b)
            return nn.Conv(3, (1, 1))(nn.silu(nn.Conv(64, (3, 3))(jnp.concatenate([a, c], -1))))

    class WaveNet(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(64, (1,))(x)
            for d in (1, 2, 4):
                h = nn.Conv(128, (2,), kernel_dilation=d, padding="CAUSAL")(x)
                x = x + nn.Conv(64, (1,))(jnp.tanh(h[:, :64]) * nn.sigmoid(h[:, 64:]))
            x = nn.Conv(64, (3,), feature_group_count=64)(x)
            return nn.Conv(256, (1,))(nn.relu(x))

    return dict(
        zip(
            INPUTS,
            (MLP, LeNet, ResNet, ViT, GPT, LSTM, Autoencoder, Mixer, UNet, WaveNet),
            strict=True,
        )
    )


def of_flax(name: str) -> tuple[Any, Any, Any]:
    """Model, params and batch."""
    module, example = flax_models()[name](), shape_of(name)
    variables = jax.eval_shape(module.init, jax.random.key(0), example)
    state = {k: jax.tree.map(lambda x: jnp.zeros(x.shape), v) for k, v in variables.items()}
    params = variables["params"]

    def apply(params: Any, x: Any) -> Any:
        return module.apply({**state, "params": params}, x)

    return apply, params, batch_of(example)


def batch_of(example: Any) -> Any:
    """Return the shape of a batch of two examples."""
    return jax.ShapeDtypeStruct((2, *example.shape), example.dtype)


def haiku_models() -> dict[str, Any]:
    """Return haiku functions by name."""
    import haiku as hk

    def norm(x: Any) -> Any:
        return hk.LayerNorm(-1, True, True)(x)

    def mlp_block(x: Any, width: int) -> Any:
        return hk.Linear(x.shape[-1])(jax.nn.gelu(hk.Linear(width)(x)))

    def patches(x: Any) -> Any:
        return hk.Conv2D(WIDTH, 4, stride=4)(x).reshape(-1, WIDTH)

    def block(x: Any, mask: Any = None) -> Any:
        h = norm(x)
        init = hk.initializers.VarianceScaling()
        x = x + hk.MultiHeadAttention(HEADS, WIDTH // HEADS, w_init=init)(h, h, h, mask=mask)
        return x + mlp_block(norm(x), 4 * WIDTH)

    def lenet(x: Any) -> Any:
        for channels in (32, 64):
            x = hk.avg_pool(jax.nn.relu(hk.Conv2D(channels, 5)(x)), (2, 2, 1), (2, 2, 1), "SAME")
        return hk.Linear(10)(jax.nn.relu(hk.Linear(256)(x.reshape(-1))))

    def resnet(x: Any) -> Any:
        bn = lambda x: hk.BatchNorm(True, True, 0.9)(x, hk.running_init())  # noqa: E731
        x = jax.nn.relu(bn(hk.Conv2D(64, 3, with_bias=False)(x)))
        h = jax.nn.relu(bn(hk.Conv2D(128, 3, stride=2, with_bias=False)(x)))
        h = bn(hk.Conv2D(128, 3, with_bias=False)(h))
        x = jax.nn.relu(h + bn(hk.Conv2D(128, 1, stride=2, with_bias=False)(x)))
        return hk.Linear(10)(x.mean((0, 1)))

    def vit(x: Any) -> Any:
        normal = hk.initializers.RandomNormal()
        x = jnp.concatenate([hk.get_parameter("cls", (1, WIDTH), init=normal), patches(x)])
        x = x + hk.get_parameter("place", x.shape, init=normal)
        return hk.Linear(10)(norm(block(x)[0]))

    def gpt(tokens: Any) -> Any:
        embed, place = hk.Embed(VOCABULARY, WIDTH), hk.Embed(*TOKENS, WIDTH)
        x = embed(tokens) + place(jnp.arange(len(tokens)))
        mask = jnp.tril(jnp.ones((1, len(tokens), len(tokens))))
        x = hk.experimental.layer_stack(3)(lambda x: block(x, mask))(x)
        return norm(x) @ embed.embeddings.T

    def lstm(x: Any) -> Any:
        core = hk.LSTM(WIDTH)
        return hk.Linear(10)(hk.dynamic_unroll(core, x, core.initial_state(None))[0][-1])

    def autoencoder(x: Any) -> Any:
        x = jax.nn.relu(hk.Conv2D(32, 3, stride=2)(x))
        x = jax.nn.relu(hk.Conv2D(64, 3, stride=2)(x))
        x = hk.Linear(x.size)(hk.Linear(32)(x.reshape(-1))).reshape(x.shape)
        x = jax.nn.relu(hk.Conv2DTranspose(32, 3, stride=2)(x))
        return hk.Conv2DTranspose(3, 3, stride=2)(x)

    def mixer(x: Any) -> Any:
        x = patches(x)
        x = x + mlp_block(norm(x).T, 128).T
        x = x + mlp_block(norm(x), 4 * WIDTH)
        return hk.Linear(10)(norm(x).mean(0))

    def unet(x: Any) -> Any:
        a = jax.nn.silu(hk.GroupNorm(8)(hk.Conv2D(64, 3)(x)[None])[0])
        b = jax.nn.silu(hk.GroupNorm(8)(hk.Conv2D(128, 3, stride=2)(a)[None])[0])
        c = hk.Conv2DTranspose(64, 2, stride=2)(b)
        return hk.Conv2D(3, 1)(jax.nn.silu(hk.Conv2D(64, 3)(jnp.concatenate([a, c], -1))))

    def wavenet(x: Any) -> Any:
        x = hk.Conv1D(64, 1)(x)
        for d in (1, 2, 4):
            h = hk.Conv1D(128, 2, rate=d)(x)
            x = x + hk.Conv1D(64, 1)(jnp.tanh(h[:, :64]) * jax.nn.sigmoid(h[:, 64:]))
        x = hk.Conv1D(64, 3, feature_group_count=64)(x)
        return hk.Conv1D(256, 1)(jax.nn.relu(x))

    mlp = lambda x: hk.nets.MLP([300, 300, 10])(x)  # noqa: E731
    functions = (mlp, lenet, resnet, vit, gpt, lstm, autoencoder, mixer, unet, wavenet)
    return dict(zip(INPUTS, functions, strict=True))


def of_haiku(name: str) -> tuple[Any, Any, Any]:
    """Model, params and batch."""
    import haiku as hk

    module, example = hk.transform_with_state(haiku_models()[name]), shape_of(name)
    params, state = jax.eval_shape(module.init, jax.random.key(0), example)
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)

    def apply(params: Any, x: Any) -> Any:
        return module.apply(params, state, None, x)[0]

    return apply, params, batch_of(example)


def equinox_models() -> dict[str, Any]:
    """Return `make(keys) -> modules` and `apply(modules, x)` by name; channels come first."""
    import equinox as eqx

    nn = eqx.nn

    def first(x: Any) -> Any:
        return jnp.moveaxis(x, -1, 0)

    def block(k: Any) -> dict[str, Any]:
        return {
            "norm1": nn.LayerNorm(WIDTH),
            "attend": nn.MultiheadAttention(HEADS, WIDTH, use_output_bias=True, key=next(k)),
            "norm2": nn.LayerNorm(WIDTH),
            "mlp": nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, key=next(k)),
        }

    def run(m: Any, x: Any, mask: Any = None) -> Any:
        h = jax.vmap(m["norm1"])(x)
        x = x + m["attend"](h, h, h, mask=mask)
        return x + jax.vmap(lambda x: m["mlp"](m["norm2"](x)))(x)

    def conv(n: int, m: int, size: int, k: Any, **options: Any) -> Any:
        return nn.Conv2d(n, m, size, key=next(k), **options)

    def patches(m: Any, x: Any) -> Any:
        return m(first(x)).reshape(WIDTH, -1).T

    def resnet(m: Any, x: Any) -> Any:
        x = jax.nn.relu(m["n0"](m["c0"](first(x))))
        h = m["n2"](m["c2"](jax.nn.relu(m["n1"](m["c1"](x)))))
        return m["head"](jax.nn.relu(h + m["c3"](x)).mean((1, 2)))

    def make_resnet(k: Any) -> Any:
        down = {"stride": 2, "use_bias": False}
        return {
            "c0": conv(3, 64, 3, k, padding=1),
            "c1": conv(64, 128, 3, k, padding=1, **down),
            "c2": conv(128, 128, 3, k, padding=1),
            "c3": conv(64, 128, 1, k, **down),
            "head": nn.Linear(128, 10, key=next(k)),
            **{f"n{i}": nn.GroupNorm(8, c) for i, c in enumerate((64, 128, 128))},
        }

    def make_lenet(k: Any) -> Any:
        return [
            nn.Lambda(first),
            conv(3, 32, 5, k, padding=2),
            nn.Lambda(jax.nn.relu),
            nn.AvgPool2d(2, 2),
            conv(32, 64, 5, k, padding=2),
            nn.Lambda(jax.nn.relu),
            nn.AvgPool2d(2, 2),
            nn.Lambda(jnp.ravel),
            nn.MLP(4096, 10, 256, 1, key=next(k)),
        ]

    def make_autoencoder(k: Any) -> Any:
        up = {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}
        return [
            nn.Lambda(first),
            conv(3, 32, 3, k, stride=2, padding=1),
            conv(32, 64, 3, k, stride=2, padding=1),
            nn.Lambda(jnp.ravel),
            nn.MLP(4096, 4096, 32, 1, key=next(k)),
            nn.Lambda(lambda x: x.reshape(64, 8, 8)),
            nn.ConvTranspose2d(64, 32, key=next(k), **up),
            nn.ConvTranspose2d(32, 3, key=next(k), **up),
        ]

    def in_turn(m: Any, x: Any) -> Any:
        for layer in m:
            x = layer(x)
        return x

    def make_vit(k: Any) -> Any:
        return {
            "patch": conv(3, WIDTH, 4, k, stride=4),
            "cls": jnp.zeros((1, WIDTH)),
            "place": jnp.zeros((65, WIDTH)),
            "block": block(k),
            "head": nn.Linear(WIDTH, 10, key=next(k)),
        }

    def vit(m: Any, x: Any) -> Any:
        x = jnp.concatenate([m["cls"], patches(m["patch"], x)]) + m["place"]
        return m["head"](run(m["block"], x)[0])

    def make_gpt(k: Any) -> Any:
        layers = [block(k) for _ in range(3)]
        dynamic, static = zip(*(eqx.partition(x, eqx.is_array) for x in layers), strict=True)
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *dynamic)
        return {
            "letter": nn.Embedding(VOCABULARY, WIDTH, key=next(k)),
            "place": nn.Embedding(*TOKENS, WIDTH, key=next(k)),
            "blocks": eqx.combine(stacked, static[0]),
            "norm": nn.LayerNorm(WIDTH),
        }

    def gpt(m: Any, tokens: Any) -> Any:
        x = jax.vmap(m["letter"])(tokens) + jax.vmap(m["place"])(jnp.arange(len(tokens)))
        dynamic, static = eqx.partition(m["blocks"], lambda x: isinstance(x, jax.Array))
        mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
        x, _ = jax.lax.scan(lambda x, p: (run(eqx.combine(p, static), x, mask), None), x, dynamic)
        return jax.vmap(m["norm"])(x) @ m["letter"].weight.T

    def lstm(m: Any, x: Any) -> Any:
        start = jnp.zeros(WIDTH), jnp.zeros(WIDTH)
        (h, _), _ = jax.lax.scan(lambda c, x: (m["cell"](x, c), None), start, x)
        return m["head"](h)

    def make_lstm(k: Any) -> Any:
        cell = nn.LSTMCell(SERIES[1], WIDTH, key=next(k))
        return {"cell": cell, "head": nn.Linear(WIDTH, 10, key=next(k))}

    def mixer(m: Any, x: Any) -> Any:
        x = patches(m["patch"], x)
        x = x + jax.vmap(m["tokens"], 1, 1)(m["norm1"](x))
        x = x + jax.vmap(m["channels"])(m["norm2"](x))
        return m["head"](x.mean(0))

    def make_mixer(k: Any) -> Any:
        return {
            "patch": conv(3, WIDTH, 4, k, stride=4),
            "norm1": nn.LayerNorm((64, WIDTH)),
            "tokens": nn.MLP(64, 64, 128, 1, key=next(k)),
            "norm2": nn.LayerNorm((64, WIDTH)),
            "channels": nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, key=next(k)),
            "head": nn.Linear(WIDTH, 10, key=next(k)),
        }

    def unet(m: Any, x: Any) -> Any:
        a = jax.nn.silu(m["n0"](m["c0"](first(x))))
        b = jax.nn.silu(m["n1"](m["c1"](a)))
        return m["c3"](jax.nn.silu(m["c2"](jnp.concatenate([a, m["up"](b)]))))

    def make_unet(k: Any) -> Any:
        return {
            "c0": conv(3, 64, 3, k, padding=1),
            "c1": conv(64, 128, 3, k, stride=2, padding=1),
            "c2": conv(128, 64, 3, k, padding=1),
            "c3": conv(64, 3, 1, k),
            "n0": nn.GroupNorm(8, 64),
            "n1": nn.GroupNorm(8, 128),
            "up": nn.ConvTranspose2d(128, 64, 2, 2, key=next(k)),
        }

    def wavenet(m: Any, x: Any) -> Any:
        x = m["in"](x.T)
        for d, dilated, mixed in zip((1, 2, 4), m["dilated"], m["mixed"], strict=True):
            h = dilated(jnp.pad(x, ((0, 0), (d, 0))))
            x = x + mixed(jnp.tanh(h[:64]) * jax.nn.sigmoid(h[64:]))
        return m["out"](jax.nn.relu(m["each"](x)))

    def make_wavenet(k: Any) -> Any:
        c = nn.Conv1d
        return {
            "in": c(SERIES[1], 64, 1, key=next(k)),
            "dilated": [c(64, 128, 2, dilation=d, key=next(k)) for d in (1, 2, 4)],
            "mixed": [c(64, 64, 1, key=next(k)) for _ in range(3)],
            "each": c(64, 64, 3, groups=64, padding=1, key=next(k)),
            "out": c(64, 256, 1, key=next(k)),
        }

    def make_mlp(k: Any) -> Any:
        return [nn.MLP(784, 10, 300, 2, key=next(k))]

    pairs = (
        (make_mlp, in_turn),
        (make_lenet, in_turn),
        (make_resnet, resnet),
        (make_vit, vit),
        (make_gpt, gpt),
        (make_lstm, lstm),
        (make_autoencoder, in_turn),
        (make_mixer, mixer),
        (make_unet, unet),
        (make_wavenet, wavenet),
    )
    return dict(zip(INPUTS, pairs, strict=True))


def of_equinox(name: str) -> tuple[Any, Any, Any]:
    """Model, params and batch."""
    import equinox as eqx

    make, run = equinox_models()[name]
    shapes = eqx.filter_eval_shape(
        lambda key: make(iter(jax.random.split(key, 20))), jax.random.key(0)
    )
    params, static = eqx.partition(shapes, lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def apply(params: Any, x: Any) -> Any:
        return run(eqx.combine(params, static), x)

    return apply, params, batch_of(shape_of(name))


LIBRARIES = {"flax": of_flax, "Equinox": of_equinox, "haiku": of_haiku}


def block_of(rule: Any) -> str:
    """Return the kind of a block; Kronecker blocks of moments have a separate kind."""
    moments = "moments of rows and columns"
    if rule.block == "kronecker":
        return moments if moments in rule.why else "products"
    return rule.block


def main() -> None:
    """Print for each network the fraction of parameters in each kind of block."""
    from fnopt.curvature import kfac_report

    for library, make in LIBRARIES.items():
        for name in INPUTS:
            model, *shapes = make(name)
            report = kfac_report(model)(*shapes)
            sizes: dict[str, int] = {}
            for p in report.params:
                sizes[block_of(p)] = sizes.get(block_of(p), 0) + math.prod(p.shape)
            total = sum(sizes.values())
            shares = ", ".join(f"{k} {100 * n / total:.1f} %" for k, n in sizes.items() if n)
            size = f"state {report.bytes / total / 4:.1f} x params"
            print(f"{library:8} {name:14} {total:>10,}  {shares}; {size}", flush=True)
            for p in report.params:
                if block_of(p) not in {"products", "dense"}:
                    print(f"    {p.block:9} {p.name} {p.shape} {p.factors}: {p.why}")


if __name__ == "__main__":
    main()
