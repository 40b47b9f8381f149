"""Inner products between examples that are never formed, against materialized gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from fnopt.costs import cost
from fnopt.gradients import gradient_similarity, per_example_grads
from fnopt.gradients.ghost import _gram


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
        (zoo.used_three_times, 40),
        (zoo.bag_of_words, 6),
        (zoo.learned_start, 40),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_equals_materialised_gradients(make, d):
    assert compare(*make(d)) < 1e-6


def test_many_positions_are_formed_in_slices(monkeypatch):
    # 24 positions: 24^2 (300 + 300) multiplications for a pair of examples, or 300 x 300.
    def loss(w, x):
        return jnp.sum(jnp.tanh(x @ w["a"]) @ w["b"])

    w = {"a": zoo.normal(0, 300, 300) / 17, "b": zoo.normal(1, 300)}
    x = zoo.normal(2, 5, 24, 300)
    used = []
    slices = _gram.by_slices
    monkeypatch.setattr(_gram, "by_slices", lambda *a: used.append(a) or slices(*a))
    monkeypatch.setattr(_gram, "BLOCK_BYTES", 2**20)  # 87 of 300 rows at a time
    assert compare(zoo.exact(loss), w, x) < 1e-6
    assert len(used) == 1


def test_matrix_products_beside_a_plain_gradient():
    # The goal of the design: all pairs of a batch for a fifth more than the gradient alone.
    loss = zoo.mlp(4).loss  # the same for all sizes
    shapes = jax.eval_shape(lambda: tuple(zoo.mlp(512)[1:]))

    def plain(params, batch):
        return jnp.sum(jax.vmap(loss, (None, 0))(params, batch))

    ours = cost(gradient_similarity(loss, method="ghost"))(*shapes).matmul_flops
    assert ours <= 1.2 * cost(jax.grad(plain))(*shapes).matmul_flops
