"""Kronecker factors from the tape, against dense Gauss-Newton blocks and closed forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.curvature import KroneckerModel, KroneckerSpec, hessian_diagonal, kfac_report
from fnopt.curvature._output_root import block_size, output_rows

N = 6


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def squares(outputs, example):
    del example
    return sum(0.5 * jnp.sum(f**2) for f in jax.tree.leaves(outputs))


def cross_entropy(outputs, example):
    return jax.nn.logsumexp(outputs) - outputs[example[1]]


def model_of(model, loss, params, batch, samples=None, **options):
    return KroneckerModel(KroneckerSpec(model, loss, samples, **options), params, batch)


def deep(params, x):
    return (x @ params["w"] + params["b"]) @ params["v"]


def turned(params, x):
    return params["v"] @ (params["w"] @ x + params["b"])


def lookup(params, x):
    return params["table"][x.astype(int)[:1]][0] @ params["w"]


def lookups_by_vmap(params, x):  # as embeddings of Equinox are
    return jax.vmap(lambda i: params["table"][i])(x.astype(int)[:1])[0] @ params["w"]


def heads(params, x):
    h = jnp.einsum("d,dhk->hk", x, params["q"]) + params["bias"]
    return jnp.einsum("hk,hkd->hd", h, params["each"]) + params["offset"]


def scanned(params, x):
    def layer(h, p):
        return h @ p["w"] + p["b"], None

    return jax.lax.scan(layer, x, params)[0]


def convolved(params, x):
    image = x[:12].reshape(1, 3, 2, 2)
    h = jax.lax.conv_general_dilated(
        image, params["k"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return (h + params["b"]).reshape(-1) @ params["w"]


def grouped(params, x):
    image = x[:8].reshape(1, 4, 2)
    h = jax.lax.conv_general_dilated(image, params["k"], (1,), "VALID", feature_group_count=2)
    return h + params["b"]


def joined(params, x):  # as gates of a recurrent cell are
    w, b = (jnp.concatenate([params[n + k] for k in "gfi"], -1) for n in "wb")
    gates = jnp.split(x @ w + b, [3, 5])
    return gates[0][:2] + gates[1] + gates[2]


def cut(params, x):  # kernels out of one param, for several products
    q, k = jnp.split(params["qk"], 2, axis=1)
    v = params["v"].reshape(2, 2, 3)
    h = (x @ q + params["b"]) @ v[0] + (x[::-1] @ k) @ v[1]
    return h @ params["out"]


def unrolled(params, x):  # layers out of one array
    for i in range(2):
        x = params["w"][i] @ x
    return x


def scanned_and_joined(params, x):
    def layer(h, p):
        both = h @ jnp.concatenate([p["w"], p["v"]], 1) + jnp.concatenate([p["b"], p["c"]])
        return both[:12] + jnp.pad(both[12:], (0, 10)), None

    return jax.lax.scan(layer, x, params)[0]


def upsampled(params, x):  # a single position of a transposed convolution sees all
    image = x[:12].reshape(1, 3, 2, 2)
    h = jax.lax.conv_general_dilated(
        image, params["k"], (1, 1), [(0, 0)] * 2, (2, 3), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return (h + params["b"]).reshape(-1) @ params["w"]


LINEAR = {
    "joined": (
        joined,
        {"wf": (12, 2), "wg": (12, 3), "wi": (12, 2), "bf": (2,), "bg": (3,), "bi": (2,)},
    ),
    "cut": (cut, {"qk": (12, 4), "b": (2,), "v": (4, 3), "out": (3, 2)}),
    "unrolled": (unrolled, {"w": (2, 12, 12)}),
    "scanned_and_joined": (
        scanned_and_joined,
        {"w": (2, 12, 12), "v": (2, 12, 2), "b": (2, 12), "c": (2, 2)},
    ),
    "upsampled": (upsampled, {"k": (5, 4, 2, 3), "b": (3,), "w": (3, 2)}),
    "deep": (deep, {"w": (12, 4), "b": (4,), "v": (4, 3)}),
    "turned": (turned, {"w": (4, 12), "b": (4,), "v": (3, 4)}),
    "lookup": (lookup, {"table": (5, 4), "w": (4, 3)}),
    "lookups_by_vmap": (lookups_by_vmap, {"table": (5, 4), "w": (4, 3)}),
    "heads": (heads, {"q": (12, 2, 3), "bias": (2, 3), "each": (2, 3, 2), "offset": (2, 2)}),
    "scanned": (scanned, {"w": (2, 12, 12), "b": (2, 12)}),
    "convolved": (convolved, {"k": (3, 2, 2, 3), "b": (3,), "w": (3, 2)}),
    "grouped": (grouped, {"k": (4, 2, 2), "b": (4, 1)}),
}


def start(shapes):
    return {name: draw(i, *shape) / 2 for i, (name, shape) in enumerate(sorted(shapes.items()))}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", LINEAR)
def test_blocks_of_linear_networks_are_those_of_the_dense_matrix(name):
    # Squared errors of a network that is linear in its activations: cotangents are the same for
    # all examples, so that nothing is lost by the Kronecker product.
    fn, shapes = LINEAR[name]
    params, batch = start(shapes), np.abs(draw(99, N, 12)) * 1.5

    @jax.jit
    def both(params, batch):
        model = model_of(fn, squares, params, batch)
        assert all(block.kind == "kronecker" for block in model.blocks)
        factors = model.factors(model.outputs(params), jax.random.key(0))
        J = jax.vmap(jax.jacobian(lambda p, x: fn(p, x).reshape(-1)), (None, 0))(params, batch)
        pairs = []
        for stack, (left, right) in zip(model.stacks, factors, strict=True):
            rows = jax.vmap(jax.vmap(lambda J, s=stack: s.matrix(jax.tree.leaves(J))))(J)
            dense = jnp.einsum("nctdk,nctel->tdekl", rows, rows) / N
            left = jax.vmap(jnp.diag)(left) if left.ndim == 2 else left[:, 0]
            pairs.append((jnp.einsum("tde,tkl->tdekl", left, right[:, 0]), dense))
        return pairs

    for found, wanted in both(params, batch):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("sharing", ["expand", "reduce"])
def test_a_transposed_convolution_is_one_of_an_image_with_zeros_between(sharing):
    params, batch = {"k": draw(0, 4, 3, 2, 3), "b": draw(1, 3)}, draw(2, N, 3, 4, 2)
    numbers = jax.lax.conv_dimension_numbers((1, 3, 4, 2), (4, 3, 2, 3), ("NHWC", "HWIO", "NHWC"))

    def after(params, image, padding, dilation):
        options = {"lhs_dilation": dilation, "rhs_dilation": (1, 2), "dimension_numbers": numbers}
        h = jax.lax.conv_general_dilated(image[None], params["k"], (1, 1), padding, **options)
        return jnp.tanh(h + params["b"])

    def transposed(params, image):
        return after(params, image, ((2, 1), (-1, 3)), (2, 3))

    def written_out(params, image):
        wide = jax.lax.pad(image, 0.0, ((2, 1, 1), (-1, 3, 2), (0, 0, 0)))
        return after(params, wide, "VALID", (1, 1))

    @jax.jit
    def both(params, batch):
        found = []
        for fn in (transposed, written_out):
            model = model_of(fn, squares, params, batch, sharing=sharing)
            assert [b.kind for b in model.blocks] == ["kronecker"]
            found.append(model.factors(model.outputs(params), jax.random.key(0)))
        return found

    found, wanted = both(params, batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-12), found, wanted)


@pytest.mark.usefixtures("x64")
def test_factors_of_a_classifier_are_those_of_the_formula():
    params = {"w": draw(0, 4, 5), "b": draw(1, 5), "v": draw(2, 5, 3), "c": draw(3, 3)}
    batch = draw(4, N, 4), np.arange(N) % 3

    def net(params, example):
        h = jnp.tanh(example[0] @ params["w"] + params["b"])
        return h @ params["v"] + params["c"]

    @jax.jit
    def found(params, batch):
        whole = model_of(net, cross_entropy, params, batch)
        cut = model_of(net, cross_entropy, params, batch, max_side=2)
        outputs = whole.outputs(params)
        key = jax.random.key(0)
        keys = jax.random.split(key, 300)
        sampled = model_of(net, cross_entropy, params, batch, 4)
        mean = jax.vmap(lambda k: sampled.factors(outputs, k))(keys)
        return (
            whole.factors(outputs, key),
            cut.factors(outputs, key),
            jax.tree.map(lambda x: jnp.mean(x, 0), mean),
        )

    whole, cut, sampled = found(params, batch)
    h = np.tanh(batch[0] @ params["w"] + params["b"])
    p = np.asarray(jax.nn.softmax(h @ params["v"] + params["c"]))
    H = np.einsum("ni,ij->nij", p, np.eye(3)) - np.einsum("ni,nj->nij", p, p)
    B = (1 - h**2)[:, :, None] * params["v"]
    one = np.ones((N, 1))
    a, b = np.c_[batch[0], one], np.c_[h, one]
    first = a.T @ a / N, np.einsum("nic,ncd,njd->ij", B, H, B) / N
    second = b.T @ b / N, H.mean(0)
    # Blocks are in the order of their weights, v before w.
    for pair, wanted in zip(whole, (second, first), strict=True):
        for x, y in zip(pair, wanted, strict=True):
            np.testing.assert_allclose(x[0, 0], y, atol=1e-12)
    for pair, wanted in zip(sampled, (second, first), strict=True):
        for x, y in zip(pair, wanted, strict=True):
            np.testing.assert_allclose(x[0, 0], y, atol=0.05 * np.abs(y).max())
    blocks = cut[1][0]
    assert blocks.shape == (1, 3, 2, 2)
    np.testing.assert_allclose(blocks[0, 1], first[0][2:4, 2:4], atol=1e-12)
    np.testing.assert_allclose(blocks[0, 2], [[1, 0], [0, 0]], atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_a_large_param_without_product_has_moments_of_rows_and_columns():
    params, x = {"place": draw(0, 4, 3)}, draw(1, N, 4)

    def net(params, x):
        # Gradients are outer products of independent vectors: nothing is lost.
        return jnp.sum(params["place"] * x[:, None], 0)

    @jax.jit
    def found(params, x):
        model = model_of(net, squares, params, x, max_side=11)
        J = jax.vmap(jax.jacobian(net), (None, 0))(params, x)["place"].reshape(N, 3, 12)
        return model.factors(model.outputs(params), jax.random.key(0))[0], J

    (left, right), J = found(params, x)
    dense = np.einsum("nci,ncj->ij", J, J) / N
    np.testing.assert_allclose(np.kron(left[0, 0], right[0, 0]), dense, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_shared_weights_expand_and_reduce():
    params, x = {"w": draw(0, 3, 2), "b": draw(1, 2)}, draw(2, N, 4, 3)

    def net(params, x):  # four positions
        return jnp.tanh(x @ params["w"] + params["b"])

    def tied(params, x):
        return (x[0] @ params["w"] + params["b"]) @ params["w"].T

    @jax.jit
    def found(params, x):
        out = []
        for fn, sharing in ((net, "expand"), (net, "reduce"), (tied, "expand")):
            model = model_of(fn, squares, params, x, sharing=sharing)
            out.append(model.factors(model.outputs(params), jax.random.key(0)))
        return out

    (expand,), (reduce,), both = found(params, x)
    ones = np.ones((N, 4, 1))
    a, slope = np.concatenate([x, ones], 2), 1 - np.tanh(x @ params["w"] + params["b"]) ** 2
    c = slope**2
    np.testing.assert_allclose(expand[0][0, 0], np.einsum("nri,nrj->ij", a, a) / (4 * N))
    np.testing.assert_allclose(expand[1][0, 0], np.diag(c.sum((0, 1)) / N), atol=1e-12)
    mean = a.mean(1)
    np.testing.assert_allclose(reduce[0][0, 0], mean.T @ mean / N)
    # Every output sees one position only, so that the sum over positions is that one.
    np.testing.assert_allclose(reduce[1][0, 0], np.diag(c.sum((0, 1)) / N), atol=1e-12)
    # A weight and its transpose: the trace is that of the sum of the two blocks.
    (left, right), (bias,) = sorted(both, key=len, reverse=True)
    w, h = params["w"], x[:, 0] @ params["w"] + params["b"]
    terms = [(x[:, 0], np.broadcast_to(w @ w.T, (N, 3, 3))), (h, np.eye(3))]
    first = np.einsum("ni,ni->", x[:, 0], x[:, 0]) / N * np.trace(w.T @ w)
    second = np.einsum("ni,ni->", h, h) / N * 3
    assert len(terms) == 2
    np.testing.assert_allclose(np.trace(left[0, 0]) * np.trace(right[0, 0]), first + second)
    np.testing.assert_allclose(bias[0, 0], w.T @ w, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_roots_of_the_hessian_in_the_outputs():
    def positions(f, example):
        del example
        return jnp.sum(jax.nn.logsumexp(f.reshape(2, 3), axis=1) ** 2)

    def elementwise(f, example):
        return jnp.sum(jax.nn.softplus(f) - example * f)

    f, example = draw(0, 1, 6), np.ones((1, 6))
    losses = {1: elementwise, 3: positions, 6: lambda f, _: jax.nn.logsumexp(f)}

    @jax.jit
    def rows(f, example):
        found = []
        for loss in losses.values():
            V = output_rows(loss, f, example, jax.random.key(0), None, "test")[0]
            found.append((V.T @ V, jax.hessian(lambda f, loss=loss: loss(f, example[0]))(f[0])))
        return found

    for size, loss in losses.items():
        assert block_size(loss, f, example, "test") == size
    for found, wanted in rows(f, example):
        np.testing.assert_allclose(found, wanted, atol=1e-12)
    with pytest.raises(ValueError, match="sample_fn"):
        block_size(losses[6], np.zeros((1, 600)), example, "test")


def test_the_report_says_what_was_read():
    # A vector for every position is no bias, though there are as many positions as features.
    shapes = {
        "pos": (3, 1),
        "v": (3,),
        "w": (3, 3),
        "big": (1200,),
        "rows": (3, 40),
        "idle": (2,),
        "scale": (3,),
    }
    params = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in shapes.items()}

    def net(params, x):
        h = x * params["scale"] @ params["w"] + params["pos"]
        waves = jnp.sum(jnp.sin(params["big"] * x[0, 0])) + jnp.sum(x[:, :1] * params["rows"])
        return h @ params["w"] + params["v"] + waves

    report = kfac_report(net, max_side=4)(params, jax.ShapeDtypeStruct((2, 3, 3), jnp.float32))
    blocks = {p.name: (p.block, p.factors) for p in report.params}
    assert blocks == {
        "big": ("diagonal", "diagonal 1200"),
        "idle": ("none", ""),
        "pos": ("dense", "3"),
        "rows": ("kronecker", "3 x (10 x 4)"),
        "scale": ("dense", "3"),
        "v": ("kronecker", "bias of w"),
        "w": ("kronecker", "4 x 3"),
    }
    assert report.coverage == pytest.approx(1 - 1200 / 1338)  # 1340 without "idle"
    assert "in 2 operations" in str(report)
    with pytest.raises(TypeError, match="int32"):
        kfac_report(net)({"w": jnp.ones(2, jnp.int32)}, jnp.ones((2, 3)))


@pytest.mark.parametrize("eigenbasis", [False, True])
def test_the_size_of_the_state_is_known_before(eigenbasis):
    shapes = {
        "w": (7, 4),
        "b": (4,),
        "table": (9, 3),
        "scale": (5,),
        "each": (30,),
        "place": (3, 4),
        "p": (7, 1),
        "q": (7, 2),
        "cut": (5, 2),
    }
    params = {k: jax.ShapeDtypeStruct(s, jnp.bfloat16) for k, s in shapes.items()}

    def net(params, x):
        h = x[:7] @ params["w"] + params["b"] + jnp.sum(params["place"] * x[:3, None], 0)
        h = h * jnp.sum(params["table"][x[:2].astype(int)]) + jnp.sum(params["scale"] * x[:5])
        gates = x @ jnp.concatenate([params["p"], params["q"]], 1)
        parts = x[:3] @ params["cut"][:3] + x[:2] @ params["cut"][3:]
        return h + jnp.sum(params["each"] * x[:1]) + jnp.sum(gates) * jnp.sum(parts)

    batch = jax.ShapeDtypeStruct((2, 7), jnp.bfloat16)
    report = kfac_report(net, max_side=3, eigenbasis=eigenbasis)(params, batch)
    options = {"max_side": 3, "eigenbasis": eigenbasis}
    state = jax.eval_shape(fnopt.kfac(net, squares, batch, **options).init, params)
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(state) if x.size and x.ndim]
    weights = state.weights.size * state.weights.dtype.itemsize
    assert report.bytes == sum(p.bytes for p in report.params) == sum(sizes) - weights
    assert "state" in str(report)
    factors = {p.name: p.factors for p in report.params}
    assert [factors[k] for k in ("p", "q", "cut")] == ["(3 x 3) x 3", "joined to p", "3 x 2; 2 x 2"]


def test_a_param_without_numbers_is_named():
    params = {"act": jnp.tanh, "w": jnp.ones((2, 2))}

    def model(p, x):
        return p["act"](x @ p["w"])

    def loss(f, x):
        return jnp.sum((f - x) ** 2)

    batch = jnp.ones((3, 2))
    calls = {
        "kfac_report": lambda: kfac_report(model)(params, batch),
        "kfac": lambda: fnopt.kfac(model, loss, batch).init(params),
        "hessian_diagonal": lambda: hessian_diagonal(lambda p: jnp.sum(model(p, batch)))(
            params, jax.random.key(0)
        ),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"{name}.*'act'"):
            call()
