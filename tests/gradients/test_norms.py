from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.gradients import clipped_grad, per_example_norms


@pytest.mark.parametrize("options", [{"method": "vmap"}, {"chunk_size": 3}, {}], ids=str)
def test_equals_a_loop(dense, naive, options):
    leaves = [np.asarray(g, np.float64).reshape(7, -1) for g in jax.tree.leaves(naive(dense)[1])]
    expected = np.sqrt(sum((g**2).sum(1) for g in leaves))
    norms = per_example_norms(dense.loss, **options)(*dense[1:])
    assert norms.dtype == jnp.float32
    np.testing.assert_allclose(norms, expected, rtol=2e-6)


@pytest.mark.parametrize("method", ["vmap", "ghost"])
def test_by_leaf_and_by_group(dense, naive, method):
    grads = naive(dense)[1]
    paths = jax.tree.leaves(fnopt.leaf_paths(grads))
    leaves = [np.asarray(g, np.float64).reshape(7, -1) for g in jax.tree.leaves(grads)]
    squares = {path: (g**2).sum(1) for path, g in zip(paths, leaves, strict=True)}
    norms = per_example_norms(dense.loss, groups="leaf", method=method)(*dense[1:])
    assert jax.tree.structure(norms) == jax.tree.structure(dense[1])
    for found, expected in zip(jax.tree.leaves(norms), squares.values(), strict=True):
        assert_norms(found, expected)
    # A leaf counts once, in the first group; one in no group counts nowhere.
    first, *rest = squares
    groups = {"z first": first, "all but the last": list(squares)[:-1]}
    some = per_example_norms(dense.loss, groups=groups, method=method)(*dense[1:])
    assert_norms(some["z first"], squares[first])
    assert_norms(some["all but the last"], sum(squares[path] for path in rest[:-1]))


def assert_norms(found, squares):
    # A small one is a difference of numbers of order 1, each rounded by up to 6e-8.
    np.testing.assert_allclose(found, np.sqrt(squares), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("groups", ["leaves", {}, {"a": "nowhere"}, {"all": "*", "b": "*"}, 3])
def test_groups_that_make_no_sense(dense, groups):
    with pytest.raises(ValueError, match=r"per_example_norms: .*groups"):
        per_example_norms(dense.loss, groups=groups)(*dense[1:])


def test_agrees_with_clipping(lstm_problem):
    _, info = clipped_grad(lstm_problem.loss, 1.0)(*lstm_problem[1:])
    norms = per_example_norms(lstm_problem.loss)(*lstm_problem[1:])
    np.testing.assert_allclose(norms, info.norm, rtol=2e-6)


def test_argnums_aux_and_zero():
    def loss(a, b, x):
        return jnp.sum(a * x) + jnp.sum(b * x**2), x[0]

    x = jnp.array([[1.0, 2.0], [0.0, 0.0]])
    args = jnp.ones(2), jnp.ones(2), x
    both = per_example_norms(loss, argnums=(0, 1), has_aux=True)
    norms, aux = both(*args)
    np.testing.assert_allclose(norms, [np.sqrt(22.0), 0.0], rtol=1e-6)
    np.testing.assert_array_equal(aux, [1.0, 0.0])
    slope = jax.grad(lambda x: jnp.sum(both(*args[:2], x)[0]))(x)
    assert jnp.all(jnp.isfinite(slope))


def test_takes_bounded_memory():
    def loss(w, x):
        return jnp.sum(jnp.tanh(w @ (w @ x)))

    def temporary(**options):
        norms = per_example_norms(loss, **options)
        compiled = jax.jit(norms).lower(jnp.ones((96, 96)), jnp.ones((128, 96))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(chunk_size=4) < 128 * 96 * 96 * 4 / 8
