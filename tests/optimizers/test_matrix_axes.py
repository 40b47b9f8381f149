"""Which leaves are matrices: read from the programs of models of four libraries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import MatrixDimensionNumbers as Numbers

RNG = np.random.default_rng(0)
TOKENS = jax.ShapeDtypeStruct((2, 5), jnp.int32)


def found(axes):
    return jax.tree.leaves(axes, is_leaf=lambda x: isinstance(x, Numbers))


def assert_equals_single_matrices(axes, params):
    """Every matrix of the leaves gets its own polar factor."""
    leaves = zip(
        jax.tree.leaves(axes, is_leaf=lambda x: x is None or isinstance(x, Numbers)),
        jax.tree.leaves(params, is_leaf=lambda x: x is None),
        strict=True,
    )
    chosen = {str(i): pair for i, pair in enumerate(leaves) if pair[0] is not None}
    g = {i: RNG.standard_normal(leaf.shape) for i, (_, leaf) in chosen.items()}
    rule = {i: numbers for i, (numbers, _) in chosen.items()}
    with jax.enable_x64(True):
        tx = fnopt.orthogonalize("polar_express", 14, weight_dimension_numbers=rule)
        updates = jax.tree.map(np.asarray, jax.jit(lambda g: tx.update(g, tx.init(g))[0])(g))
    for i, numbers in rule.items():
        np.testing.assert_allclose(updates[i], single_polar_factors(g[i], numbers), atol=1e-6)


def single_polar_factors(g, numbers):
    rows, columns = (
        tuple(np.atleast_1d(a) % g.ndim) for a in (numbers.reduction_axis, numbers.output_axis)
    )
    order = [a for a in range(g.ndim) if a not in rows + columns] + [*rows, *columns]
    x = np.transpose(g, order)
    stack = x.reshape(
        -1, np.prod([g.shape[a] for a in rows]), np.prod([g.shape[a] for a in columns])
    )
    parts = []
    for part in np.split(stack, numbers.split, axis=2):
        u, _, v = np.linalg.svd(part, full_matrices=False)
        parts.append(u @ v)
    return np.transpose(np.concatenate(parts, axis=2).reshape(x.shape), np.argsort(order))


def test_flax_linen_with_a_scan_over_layers():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            h = nn.LayerNorm(use_bias=False)(x)
            x += nn.MultiHeadDotProductAttention(num_heads=2, name="attention")(h, h)
            return x + nn.Dense(6, name="down")(nn.gelu(nn.Dense(8, name="up")(x))), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            embed = nn.Embed(9, 6, name="embed")
            x = nn.Conv(6, (3,), name="conv")(embed(tokens))
            x = nn.Conv(6, (3,), feature_group_count=6, name="depthwise")(x)
            stacked = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 3}
            x, _ = nn.scan(Block, **stacked)(name="layers")(x, None)
            return embed.attend(nn.RMSNorm(name="norm")(x))

    model = Model()
    params = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]

    def loss(params, tokens):
        return jnp.sum(model.apply({"params": params}, tokens) ** 2)

    axes = fnopt.matrix_axes(loss)(params, TOKENS)
    attention = axes["layers"]["attention"]
    for name in ("query", "key", "value"):
        assert attention[name]["kernel"] == Numbers(1, (2, 3))
    assert attention["out"]["kernel"] == Numbers((1, 2), 3)
    assert axes["layers"]["up"]["kernel"] == axes["layers"]["down"]["kernel"] == Numbers(1, 2)
    assert axes["conv"]["kernel"] == Numbers((0, 1), 2)
    assert len(found(axes)) == 7
    assert_equals_single_matrices(axes, params)
    tx = fnopt.chain(fnopt.clip(1.0), fnopt.soap(0.1, weight_dimension_numbers=axes))
    rows = {row.name: row for row in fnopt.matrix_report(tx, params).rows}
    assert rows["layers/up/kernel"].matrices == ((3, 6, 8),)
    assert rows["layers/LayerNorm_0/scale"][2:] == ("adam", ())


def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(9, 6, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 6, rngs=rngs, decode=False)
            self.norm = nnx.LayerNorm(6, rngs=rngs)
            self.head = nnx.Linear(6, 9, rngs=rngs)

        def __call__(self, tokens):
            return self.head(self.norm(self.attention(self.embed(tokens))))

    graph, params = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))), nnx.Param)

    def loss(params, tokens):
        return jnp.sum(nnx.merge(graph, params)(tokens) ** 2)

    axes = fnopt.matrix_axes(loss, {"head/*": False})(params, TOKENS)
    assert found(axes) == [
        Numbers(0, (1, 2)),
        Numbers((0, 1), 2),
        Numbers(0, (1, 2)),
        Numbers(0, (1, 2)),
    ]
    assert_equals_single_matrices(axes, params)


def test_equinox_with_stacked_layers():
    eqx = pytest.importorskip("equinox")

    def layer(key):
        return eqx.nn.MLP(6, 6, 8, 1, key=key)

    keys = jax.random.split(jax.random.key(0), 3)
    experts = eqx.filter_vmap(layer)(keys)
    model = {"table": eqx.nn.Embedding(9, 6, key=keys[0]), "experts": experts}
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, tokens):
        model = eqx.combine(params, rest)
        x = jax.vmap(model["table"])(tokens[0])

        def one(expert, x):
            return jax.vmap(expert)(x)

        return jnp.sum(eqx.filter_vmap(one)(model["experts"], jnp.stack([x, 2 * x, 3 * x])))

    axes = fnopt.matrix_axes(loss)(params, TOKENS)
    assert found(axes) == [Numbers(2, 1), Numbers(2, 1)]  # [expert, outputs, inputs]
    assert_equals_single_matrices(axes, params)


def test_haiku():
    hk = pytest.importorskip("haiku")

    def model(tokens):
        x = hk.Embed(9, 6, name="embed")(tokens)
        x = hk.Linear(18, name="qkv")(hk.LayerNorm(-1, True, True)(x))[..., :6]
        return jnp.sum(hk.Conv1D(4, 3, name="conv")(x) ** 2)

    net = hk.without_apply_rng(hk.transform(model))
    params = jax.eval_shape(net.init, jax.random.key(0), TOKENS)
    axes = fnopt.matrix_axes(net.apply, {"qkv/w": 3})(params, TOKENS)
    assert axes["qkv"]["w"] == Numbers(0, 1, split=3)
    assert axes["conv1_d" if "conv1_d" in axes else "conv"]["w"] == Numbers((0, 1), 2)
    assert len(found(axes)) == 2
    assert_equals_single_matrices(axes, params)


def test_what_is_no_matrix_in_a_program():
    params = {
        "used twice": jnp.ones((4, 4)),
        "transposed": jnp.ones((4, 3)),
        "scaled": jnp.ones((3, 3)),
        "heads": jnp.ones((3, 6)),
        "unused": jnp.ones((2, 2)),
    }

    def loss(params, x):
        x = x @ params["used twice"] @ params["used twice"].T  # along both axes
        x = x @ params["transposed"].astype(jnp.bfloat16).astype(jnp.float32).T.T
        x = x @ (2 * params["scaled"])
        heads = params["heads"].reshape(3, 2, 3)
        return jnp.sum(jnp.einsum("bi,ihk->bhk", x, heads)), None

    axes = fnopt.matrix_axes(loss, has_aux=True)(params, jnp.ones((5, 4)))
    assert {k for k, v in axes.items() if v is None} == {"used twice", "scaled", "unused"}
    assert axes["transposed"] == axes["heads"] == Numbers()
    with pytest.raises(TypeError, match=r"returned float32\[5,4\], expected a scalar"):
        fnopt.matrix_axes(lambda params, x: x @ params["used twice"])(params, jnp.ones((5, 4)))
    with pytest.raises(ValueError, match="match no leaf"):
        fnopt.matrix_axes(loss, {"head": False}, has_aux=True)(params, jnp.ones((5, 4)))
    with pytest.raises(ValueError, match="has no partition_matrices"):
        fnopt.matrix_report(fnopt.adam(0.1), params)
