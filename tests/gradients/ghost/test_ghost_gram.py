"""Inner products between examples that are never formed, against materialised gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from fnopt.gradients import gradient_similarity, per_example_grads
from fnopt.gradients.ghost import _gram
from fnopt.monitor import cost


def compare(loss, params, batch):
    """The largest error, against float64 NumPy, beside the product of the norms."""

    def both(params, batch):
        grads = per_example_grads(loss)(params, batch)
        return grads, gradient_similarity(loss, method="ghost")(params, batch).inner

    grads, found = jax.jit(both)(params, batch)
    leaves = jax.tree.leaves(grads)
    flat = np.concatenate([np.asarray(g, np.float64).reshape(len(g), -1) for g in leaves], axis=1)
    norms = np.linalg.norm(flat, axis=1)
    return np.max(np.abs(found - flat @ flat.T) / np.outer(norms, norms))


# Each meets another way: single positions, scans, tables, several uses, forms that are cheaper
# to write down, params that are left to vmap.
@pytest.mark.parametrize(
    ("make", "d"),
    [
        (zoo.mlp, 40),
        (zoo.used_three_times, 40),
        (zoo.bag_of_words, 6),
        (zoo.learned_start, 40),
        (zoo.nested_loops, 6),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_equals_materialised_gradients(make, d):
    assert compare(*make(d)) < 1e-6


@pytest.mark.parametrize("blocks", [1, 2**12], ids=["one by one", "some at once"])
def test_many_positions_are_formed_in_slices(monkeypatch, blocks):
    # 24 positions: 24^2 (300 + 300) multiplications for a pair of examples, or 300 x 300.
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w["a"]) @ w["b"])

    w = {"a": zoo.normal(0, 300, 300) / 17, "b": zoo.normal(1, 300)}
    x = zoo.normal(2, 5, 24, 300)
    used = []
    slices = _gram._by_slices
    monkeypatch.setattr(_gram, "_by_slices", lambda *a: used.append(a) or slices(*a))
    monkeypatch.setattr(_gram, "_BLOCK_BYTES", blocks * 1000)
    assert compare(loss, w, x) < 1e-6
    assert len(used) == 1


def test_matrix_products_beside_a_plain_gradient():
    # The goal of the design: all pairs of a batch for a fifth more than the gradient alone.
    problem = zoo.mlp(512)

    def plain(params, batch):
        return jnp.sum(jax.vmap(problem.loss, (None, 0))(params, batch))

    ours = cost(gradient_similarity(problem.loss, method="ghost"))(*problem[1:]).matmul_flops
    assert ours <= 1.2 * cost(jax.grad(plain))(*problem[1:]).matmul_flops
