"""Products, diagonals, traces and eigenvalues against dense matrices in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.curvature import (
    fisher_vp,
    ggn_diagonal,
    ggn_vp,
    hessian_diagonal,
    hvp,
    top_eigenvalues,
    trace_estimate,
)
from fnopt.jacobians import ravel

SIZE = 5
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def model(params, example):
    return jnp.tanh(example[0] @ params["w"]) @ params["o"] + params["b"]


def loss_of(outputs, example):
    return jax.nn.logsumexp(outputs) - outputs[example[1]]


def loss(params, example):
    return loss_of(model(params, example), example)


def problem():
    rng = np.random.default_rng(0)
    params = {
        "w": rng.standard_normal((3, 4)),
        "o": rng.standard_normal((4, 3)),
        "b": rng.standard_normal(3),
    }
    return params, (rng.standard_normal((SIZE, 3)), np.arange(SIZE) % 3)


def close(found, wanted, tolerance=1e-12):
    scale = float(jnp.max(jnp.abs(wanted)))
    np.testing.assert_allclose(ravel(found)[0], wanted, rtol=0, atol=tolerance * scale)


@pytest.mark.usefixtures("x64")
def test_products_and_diagonals_equal_dense_matrices():
    def run(params, batch):
        x, unravel = ravel(params)
        v = jnp.sin(jnp.linspace(1.0, 7.0, x.size))
        tree = unravel(v)

        def mean(x):
            return jnp.mean(jax.vmap(lambda e: loss(unravel(x), e))(batch))

        H = jax.hessian(mean)(x)
        J = jax.vmap(lambda e: jax.jacobian(lambda x: model(unravel(x), e))(x))(batch)
        outputs = jax.vmap(model, (None, 0))(params, batch)
        inner = jax.vmap(jax.hessian(loss_of))(outputs, batch)
        G = jnp.einsum("icp,icd,idq->pq", J, inner, J) / SIZE
        g = jax.vmap(lambda e: jax.grad(lambda x: loss(unravel(x), e))(x))(batch)
        F = g.T @ g / SIZE
        found = [
            (hvp(lambda p: mean(ravel(p)[0]))(params, tree), H @ v),
            (hvp(loss, chunk_size=2)(params, tree, batch), H @ v),
            (ggn_vp(model, loss_of, chunk_size=2)(params, tree, batch), G @ v),
            (fisher_vp(loss, chunk_size=2, reduction="sum")(params, tree, batch), SIZE * (F @ v)),
            (ggn_diagonal(model, loss_of, chunk_size=2)(params, batch), jnp.diag(G)),
        ]
        key = jax.random.key(0)
        estimates = (
            hessian_diagonal(loss, samples=400)(params, key, batch),
            trace_estimate(lambda v: hvp(loss)(params, v, batch), params, key, samples=400),
        )
        ends = [
            top_eigenvalues(
                lambda v: hvp(loss)(params, v, batch), params, key, k=3, which=which, iterations=99
            )
            for which in ("largest", "smallest", "magnitude")
        ]
        return found, estimates, ends, H

    found, (diagonal, trace), ends, H = jax.jit(run, compiler_options=FAST)(*problem())
    for ours, wanted in found:
        close(ours, wanted)
    # The variance that is claimed is the exact one: the squares beside the diagonal, by probes.
    off = np.array(H) - np.diag(np.diag(H))
    expected = (off**2).sum(1) / 400
    value, variance = ravel(diagonal.value)[0], ravel(diagonal.variance)[0]
    assert np.all(np.abs(value - np.diag(H)) < 5 * np.sqrt(expected))
    assert np.all((variance > expected / 2) & (variance < 2 * expected))
    exact = 2 * (off**2).sum() / 400
    assert abs(trace.value - np.trace(H)) < 5 * exact**0.5
    assert exact / 2 < trace.variance < 2 * exact
    values = np.linalg.eigvalsh(H)
    by_size = values[np.argsort(-np.abs(values))]
    for pairs, wanted in zip(ends, (values[::-1][:3], values[:3], by_size[:3]), strict=True):
        np.testing.assert_allclose(pairs.values, wanted, rtol=0, atol=1e-12)
        assert float(jnp.max(pairs.errors)) < 1e-12


def test_an_invariant_space_is_left_for_another_direction():
    # The first vector spans with its products only two dimensions of six.
    d = jnp.asarray([4.0, 4.0, 4.0, 0.0, 0.0, 0.0])
    found = top_eigenvalues(lambda v: d * v, d, jax.random.key(1), k=6, iterations=6)
    np.testing.assert_allclose(found.values, d, atol=1e-5)
    identity = top_eigenvalues(lambda v: v, jnp.zeros(3, jnp.bfloat16), jax.random.key(1), k=3)
    np.testing.assert_allclose(identity.values, 1.0, atol=1e-2)


def test_sixteen_bits_keep_their_dtype():
    params, batch = jax.eval_shape(problem)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), (params, batch[0]))
    half, (x, labels) = shapes[0], (shapes[1], jax.ShapeDtypeStruct((SIZE,), jnp.int32))
    for product in (hvp(loss, chunk_size=2), ggn_vp(model, loss_of), fisher_vp(loss)):
        found = jax.eval_shape(product, half, half, (x, labels))
        assert jax.tree.map(lambda x: (x.shape, x.dtype), found) == jax.tree.map(
            lambda x: (x.shape, x.dtype), half
        )


def test_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="v have shape"):
        hvp(lambda x: jnp.sum(x))(jnp.ones(2), jnp.ones(3))
    with pytest.raises(ValueError, match="k is 4"):
        top_eigenvalues(lambda v: v, jnp.ones(3), jax.random.key(0), k=4)
    with pytest.raises(ValueError, match="reduction"):
        ggn_vp(model, loss_of, reduction="none")
    with pytest.raises(TypeError, match="PRNG key"):
        trace_estimate(lambda v: v, jnp.ones(3), 0)
