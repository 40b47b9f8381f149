"""Which leaves of real models are matrices by default, and along which axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.optimizers._matrix_names import Axes, axes_by_name
from tests.optimizers.test_matrix_axes import single_polar_factors

RNG = np.random.default_rng(0)
TOKENS = jax.ShapeDtypeStruct((2, 5), jnp.int32)


def axes(params):
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    shapes = {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in leaves}
    found = axes_by_name(tuple(shapes.items()))
    return {name: x for name, x in zip(shapes, found, strict=True) if x is not None}


def assert_default_is_single_matrices(params):
    """The default labels and axes of a chain give every matrix its own polar factor."""
    g = jax.tree.map(lambda x: RNG.standard_normal(x.shape), params)
    polar = fnopt.chain(fnopt.orthogonalize("polar_express", 14))
    tx = fnopt.partition_matrices(polar, fnopt.identity())
    with jax.enable_x64(True):
        updates = jax.jit(lambda g: tx.update(g, tx.init(g))[0])(g)
    chosen = axes(params)
    named = zip(jax.tree_util.tree_leaves_with_path(g), jax.tree.leaves(updates), strict=True)
    for (path, x), u in named:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        expected = x
        if name in chosen:
            rows, columns, split = chosen[name]
            expected = single_polar_factors(x, fnopt.MatrixDimensionNumbers(rows, columns, split))
        np.testing.assert_allclose(u, expected, atol=1e-6, err_msg=name)


def test_flax_linen():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            h = nn.LayerNorm()(x)
            x += nn.MultiHeadDotProductAttention(num_heads=2, use_bias=False, name="att")(h, h)
            h = nn.Dense(18, use_bias=False, name="qkv")(x)[..., :6]
            h = nn.Conv(6, (3,), feature_group_count=6, use_bias=False)(h)
            experts = nn.vmap(nn.Dense, {"params": 0}, {"params": True}, 0, 0, axis_size=2)
            x += experts(6, name="experts")(jnp.stack([h, h])).sum(0)
            self.param("A_log", jax.nn.initializers.ones, (6, 4))
            return nn.Conv(6, (3,), use_bias=False)(x), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(9, 6, name="embed")(tokens)
            x = nn.Conv(6, (3, 3), name="stem")(x[..., None]).sum(-2)
            stacked = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}, "length": 3}
            x, _ = nn.scan(Block, **stacked)(name="layers")(x, None)
            return nn.Dense(9, name="lm_head")(nn.RMSNorm(name="norm")(x))

    params = jax.eval_shape(Model().init, jax.random.key(0), TOKENS)["params"]
    assert axes(params) == {
        "layers/Conv_1/kernel": Axes((1, 2), (3,)),
        "layers/att/key/kernel": Axes((1,), (2, 3)),
        "layers/att/out/kernel": Axes((1, 2), (3,)),
        "layers/att/query/kernel": Axes((1,), (2, 3)),
        "layers/att/value/kernel": Axes((1,), (2, 3)),
        "layers/experts/kernel": Axes((2,), (3,)),
        "layers/qkv/kernel": Axes((1,), (2,), 3),
    }
    assert_default_is_single_matrices(params)
    rows = fnopt.matrix_report(fnopt.muon(0.1), params).rows
    assert {row.name for row in rows if row.matrices} == {*axes(params)}


def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(9, 6, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 6, rngs=rngs, decode=False)
            self.conv = nnx.Conv(6, 4, (3, 3), rngs=rngs)
            self.norm = nnx.LayerNorm(6, rngs=rngs)
            make = nnx.vmap(lambda key: nnx.Linear(6, 8, rngs=nnx.Rngs(key)))
            self.layers = make(jax.random.split(jax.random.key(0), 3))
            self.head = nnx.Linear(6, 9, rngs=rngs)

    params = nnx.state(nnx.eval_shape(lambda: Model(nnx.Rngs(0))), nnx.Param)
    pure = nnx.to_pure_dict(params)
    assert axes(pure) == {
        "attention/key/kernel": Axes((0,), (1, 2)),
        "attention/out/kernel": Axes((0, 1), (2,)),
        "attention/query/kernel": Axes((0,), (1, 2)),
        "attention/value/kernel": Axes((0,), (1, 2)),
        "conv/kernel": Axes((0, 1, 2), (3,)),
        "layers/kernel": Axes((1,), (2,)),
    }
    assert_default_is_single_matrices(pure)
    rows = fnopt.matrix_report(fnopt.muon(0.1), params).rows  # of variables
    assert sum(bool(row.matrices) for row in rows) == 6


def test_equinox():
    eqx = pytest.importorskip("equinox")
    keys = jax.random.split(jax.random.key(0), 6)
    model = {
        "embedding": eqx.nn.Embedding(9, 6, key=keys[0]),
        "layers": eqx.filter_vmap(lambda key: eqx.nn.Linear(6, 8, key=key))(keys[:3]),
        "norms": eqx.filter_vmap(lambda _: eqx.nn.LayerNorm(6))(keys[:3]),
        "plain": eqx.nn.Linear(6, 8, use_bias=False, key=keys[1]),
        "conv": eqx.nn.Conv2d(3, 4, 3, key=keys[2]),
        "attention": eqx.nn.MultiheadAttention(2, 6, key=keys[3]),
        "depthwise": eqx.nn.Conv1d(6, 6, 3, groups=6, key=keys[4]),
        "head": eqx.nn.Linear(6, 9, key=keys[5]),
    }
    params = eqx.filter(model, eqx.is_array)
    projections = ("query", "key", "value", "output")
    assert axes(params) == {
        "conv/weight": Axes((1, 2, 3), (0,)),
        "layers/weight": Axes((2,), (1,)),
        "plain/weight": Axes((1,), (0,)),
        **{f"attention/{name}_proj/weight": Axes((1,), (0,)) for name in projections},
    }
    assert_default_is_single_matrices(params)


def test_haiku():
    hk = pytest.importorskip("haiku")

    def block(x):
        x = hk.LayerNorm(-1, True, True)(x)
        x = hk.MultiHeadAttention(2, 3, w_init=hk.initializers.RandomNormal())(x, x, x)
        return x + hk.Linear(18, with_bias=False, name="qkv")(x)[..., :6]

    def model(tokens):
        x = hk.Conv1D(6, 3, name="conv")(hk.Embed(9, 6, name="embed")(tokens))
        x = hk.experimental.layer_stack(3)(block)(x)
        return hk.Linear(9, name="logits")(x)

    net = hk.without_apply_rng(hk.transform(model))
    params = jax.eval_shape(net.init, jax.random.key(0), TOKENS)
    found = {name.split("/")[-2]: x for name, x in axes(params).items()}
    assert found.pop("conv") == Axes((0, 1), (2,))
    assert found.pop("qkv") == Axes((1,), (2,), 3)
    assert found == dict.fromkeys(["key", "linear", "query", "value"], Axes((1,), (2,)))
    assert_default_is_single_matrices(params)


UNCERTAIN = {
    "three axes, and nothing that says which": {"dense/kernel": (3, 4, 5)},
    "a bias that fits two ways": {"dense/kernel": (3, 3, 5), "dense/bias": (3, 5)},
    "a stack or a convolution": {"conv/kernel": (3, 3, 4, 5)},
    "stacked scales without a bias": {"norms/weight": (3, 4), "ln_1/w": (3, 4)},
    "stacked scales by their own names": {"attention_norm": (3, 4), "norm_weight": (3, 4)},
    "stacked biases": {"layer/w": (2, 3, 4), "layer/b": (2, 5)},
    "of one input, or depthwise": {"conv/w": (3, 1, 4), "conv/b": (4,)},
    "tables and outputs": {"wte/weight": (9, 4), "pos_emb": (9, 4), "classifier/kernel": (4, 9)},
    "vectors of stacked layers": {"ssm/A_log": (3, 4, 2), "ssm/D": (3, 4), "experts/b1": (3, 4)},
    "no axis": {"w": (), "": ()},
}


@pytest.mark.parametrize("what", UNCERTAIN)
def test_a_leaf_of_uncertain_axes_is_no_matrix(what):
    assert axes_by_name(tuple(UNCERTAIN[what].items())) == (None,) * len(UNCERTAIN[what])


def test_plain_trees():
    shapes = {"a/weight": (4, 3), "a/bias": (3,), "qkv": (4, 12), "ensemble": (2, 3), "b": (2, 3)}
    assert axes_by_name(tuple(shapes.items())) == (
        Axes((0,), (1,)),  # the bias says that the outputs are last
        None,
        Axes((0,), (1,), 3),
        Axes((0,), (1,)),
        Axes((0,), (1,)),
    )
    assert axes_by_name((("experts/w1", (2, 3, 4)),)) == (Axes((1,), (2,)),)
    assert axes_by_name((("head/w", (4, 9)),), True) == (Axes((0,), (1,)),)
