"""The Gram matrix and the products of a Jacobian that is never formed, against J formed."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.costs import cost
from fnopt.curvature import batch_jacobian
from fnopt.jacobians import ravel


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def layers(*widths):
    pairs = itertools.pairwise(widths)
    return [
        {"w": draw(i, a, b) / a**0.5, "b": draw(9 + i, b) / 9} for i, (a, b) in enumerate(pairs)
    ]


def net(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def by_hessian(params, x):
    return jnp.trace(jax.hessian(lambda x: net(params, x)[0])(x))


def by_jvp(params, x):
    def second(v):
        return jax.jvp(lambda x: jax.jvp(lambda x: net(params, x)[0], (x,), (v,))[1], (x,), (v,))[1]

    return jnp.sum(jax.vmap(second)(jnp.eye(x.size, dtype=x.dtype)))


def by_jet(params, x):
    from jax.experimental.jet import jet

    def second(v):
        return jet(lambda x: net(params, x)[0], (x,), ((v, jnp.zeros_like(v)),))[1][1]

    return sum(second(e) for e in jnp.eye(x.size, dtype=x.dtype))


def tied(params, tokens):
    hidden = jnp.tanh(jnp.mean(params["table"][tokens], axis=0) @ params["w"])
    return {"scores": params["table"] @ hidden, "size": jnp.sum(params["b"] * hidden)}


def recurrent(params, sequence):
    def step(h, x):
        h = jnp.tanh(x @ params["x"] + h @ params["h"] + params["b"])
        return h, h[:2]

    _, seen = jax.lax.scan(step, params["first"], sequence)
    return jnp.mean(seen, 0), seen[-1, 0]


def image(params, x):
    maps = jax.lax.conv_general_dilated(
        x[None], params["k"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    # Computed from params before they meet the example, and a constant part.
    scale = params["s"] / jnp.linalg.norm(params["s"])
    return jnp.append(jnp.mean(jnp.tanh(maps[0] * scale), (0, 1)) @ params["o"], params["s"][0])


@jax.numpy_dtype_promotion("standard")
def spectral(params, x):
    """Real params among complex numbers, by a cast and by a product of both kinds."""
    z = jnp.fft.rfft(x, axis=0) * params["s"]
    z = jnp.tanh(jnp.real(z @ params["w"])) + 1j * (z @ params["v"]).imag
    return jnp.fft.irfft(z * jax.lax.complex(params["s"], params["w"][0]), axis=0)


def problems():
    """By name: the residuals of an example, params and a batch; in float64."""
    points = layers(2, 9, 1)
    x = np.random.default_rng(5).uniform(size=(5, 2))
    rnn = {"x": draw(0, 3, 6), "h": draw(1, 6, 6) / 3, "b": draw(2, 6), "first": draw(3, 6)}
    words = {"table": draw(0, 7, 9), "w": draw(1, 9, 9), "b": draw(2, 9)}
    tokens = np.random.default_rng(1).integers(0, 7, (5, 3))
    waves = {"s": draw(0, 3), "w": draw(1, 3, 3), "v": draw(2, 3, 3)}
    conv = {"k": draw(0, 3, 3, 2, 4), "s": draw(1, 4), "o": draw(2, 4, 3)}
    return {
        "one residual": (lambda p, x: net(p, x)[0] ** 2, layers(20, 20, 1), draw(3, 5, 20)),
        "three residuals": (net, layers(8, 20, 3), draw(3, 5, 8)),
        "by hessian": (by_hessian, points, x),
        "by jvp": (by_jvp, points, x),
        "by jet": (by_jet, points, x),
        "tied table": (tied, words, tokens),
        "scan": (recurrent, rnn, draw(4, 4, 5, 3)),
        "complex numbers": (spectral, waves, draw(4, 3, 4, 3)),
        "convolution": (image, conv, draw(4, 3, 6, 6, 2)),
    }


def formed(fn, params, batch):
    """J, written down."""

    def row(params, example):
        return ravel(fn(params, example))[0]

    n = jax.tree.leaves(batch)[0].shape[0]
    J = jax.vmap(jax.jacrev(row), (None, 0))(params, batch)
    r = jax.vmap(row, (None, 0))(params, batch)
    rows = [x.reshape(n * r.shape[1], -1) for x in jax.tree.leaves(J)]
    return jnp.concatenate(rows, 1), r.reshape(-1)


def by_example(tree):
    """Leaves `[n, ...]` as one vector, example by example."""
    leaves = [x.reshape(x.shape[0], -1) for x in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves, 1).reshape(-1)


def end_to_end(residuals, several):
    parts = residuals if several else (residuals,)
    return jnp.concatenate([by_example(x) for x in parts])


def products(J, params, a, v, several=False):
    weighted = jax.tree.map(jnp.multiply, J.residuals, J.residuals)
    return (
        J.gram(),
        end_to_end(J.mv(ravel(params)[1](v)), several),
        ravel(J.rmv(a))[0],
        ravel(J.rmv(weighted))[0],
        J.vector,
    )


def assert_close(found, wanted, tolerance):
    for x, y in zip(found, wanted, strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * float(jnp.max(jnp.abs(y))))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", problems())
def test_equals_the_jacobian_that_is_formed(name):
    fn, params, batch = problems()[name]

    def both(params, batch):
        J, r = formed(fn, params, batch)
        a, v = (jnp.sin(jnp.linspace(0.5, 9.0, size)) for size in J.shape)
        found = products(batch_jacobian(fn, method="ghost")(params, batch), params, a, v)
        return found, (J @ J.T, J @ v, J.T @ a, J.T @ (r * r), r)

    assert_close(*jax.jit(both)(params, batch), 1e-12)


@pytest.mark.usefixtures("x64")
def test_several_residual_functions_are_one_jacobian_in_chunks_and_however_known():
    # Interior and boundary points: the same params, other programs. With few params the interior
    # is formed, the boundary is not.
    params = layers(2, 9, 1)
    fns = (by_jvp, lambda p, x: {"u": net(p, x)[0], "b": p[-1]["b"] * x[0]})
    batches = tuple(np.random.default_rng(i).uniform(size=(n, 2)) for i, n in ((0, 5), (1, 4)))
    ways = [{"method": "ghost"}, {}, {"method": "ghost", "chunk_size": 2}, {"method": "formed"}]

    def both(params, batches):
        pairs = [formed(fn, params, b) for fn, b in zip(fns, batches, strict=True)]
        J, r = (jnp.concatenate(parts) for parts in zip(*pairs, strict=True))
        a, v = (jnp.sin(jnp.linspace(0.5, 9.0, size)) for size in J.shape)
        wanted = (J @ J.T, J @ v, J.T @ a, J.T @ (r * r), r, J.T @ J)
        found = []
        for way in ways:
            operator = batch_jacobian(fns, **way)(params, batches)
            assert operator.shape == J.shape
            found.append((*products(operator, params, a, v, several=True), operator.normal()))
        return found, wanted

    found, wanted = jax.jit(both)(params, batches)
    for way in found:
        assert_close(way, wanted, 1e-12)


def wide(n, *widths):
    params = jax.eval_shape(lambda: jax.tree.map(lambda x: x.astype(jnp.float32), layers(*widths)))
    return params, jax.ShapeDtypeStruct((n, widths[0]), jnp.float32)


def test_flops_and_memory_beside_a_gradient():
    # The Gauss-Newton step of 1.9 M params on 512 examples, J of 3.8 GB not formed: 1.76 gradients.
    shapes = wide(512, 784, 1024, 1024, 1)

    def gradient(params, batch):
        return jax.grad(lambda p: jnp.mean(jax.vmap(net, (None, 0))(p, batch) ** 2))(params)

    def step(params, batch):
        J = batch_jacobian(net)(params, batch)
        return J.rmv(J.gram() @ J.vector)

    ours, plain = (cost(fn)(*shapes).matmul_flops for fn in (step, gradient))
    assert ours <= 1.8 * plain
    memory = jax.jit(step).lower(*shapes).compile().memory_analysis().temp_size_in_bytes
    assert memory <= 20e6


def test_refuses_what_it_cannot_do():
    x = jnp.ones((3, 2))
    at = batch_jacobian(lambda w, x: w @ x)
    with pytest.raises(TypeError, match="complex64"):
        at(jnp.ones(2, jnp.complex64), x)
    with pytest.raises(TypeError, match="int32"):
        at(jnp.ones(2, jnp.int32), x)
    with pytest.raises(ValueError, match="the batch is empty"):
        at(jnp.ones(2), x[:0])
    with pytest.raises(ValueError, match=r"float32\[0\].* expected at least one number"):
        batch_jacobian(lambda w, x: (w * x)[:0])(jnp.ones(2), x)
    with pytest.raises(TypeError, match="expected a sequence of 2"):
        batch_jacobian([net, net])(jnp.ones(2), [x])
    with pytest.raises(ValueError, match="v have shape"):
        at(jnp.ones(2), x).mv(jnp.ones(3))
    with pytest.raises(ValueError, match=r"weights have shape \(5,\)"):
        at(jnp.ones(2), x).rmv(jnp.ones(5))
