from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients import per_example_grads, value_and_per_example_grads


def test_equals_a_loop_on_every_model(problem, naive, assert_close):
    expected = naive(problem)
    for chunk_size in (None, 3):
        grads_fn = value_and_per_example_grads(problem.loss, chunk_size=chunk_size)
        assert_close(jax.jit(grads_fn)(*problem[1:]), expected)


@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_chunk_sizes(dense, naive, assert_close, chunk_size):
    grads_fn = per_example_grads(dense.loss, chunk_size=chunk_size)
    assert_close(jax.jit(grads_fn)(dense.params, dense.batch), naive(dense)[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_dtypes(dense, naive, in_dtype, assert_close, x64, dtype):
    cast = dense._replace(params=in_dtype(dense.params, dtype), batch=in_dtype(dense.batch, dtype))
    grads_fn = value_and_per_example_grads(cast.loss, chunk_size=3)
    losses, grads = jax.jit(grads_fn)(*cast[1:])
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype(dtype)}
    assert_close((losses, grads), naive(cast))


def test_aux_has_an_example_axis(dense, assert_close):
    def loss(params, example):
        return dense.loss(params, example), {"twice": 2.0 * example["x"], "none": None}

    for chunk_size in (None, 3):
        grads, aux = per_example_grads(loss, has_aux=True, chunk_size=chunk_size)(*dense[1:])
        assert_close(grads, per_example_grads(dense.loss)(*dense[1:]))
        assert_close(aux, {"twice": 2.0 * dense.batch["x"], "none": None})
        (losses, aux), _ = value_and_per_example_grads(loss, has_aux=True)(*dense[1:])
        assert losses.shape == aux["twice"].shape[:1] == (7,)


def test_argnums_and_shared_arguments():
    def loss(frozen, a, b, x, y, *, power, training):
        assert training is True  # shared arguments are not traced
        return frozen["c"] * jnp.sum(a * x) ** power + b * y

    frozen, a, b = {"c": jnp.float32(2.0)}, jnp.array([1.0, -1.0]), jnp.float32(3.0)
    x, y = jnp.array([[1.0, 2.0], [3.0, 5.0], [0.0, 1.0]]), jnp.array([1.0, 2.0, 3.0])
    keywords = {"power": 2, "training": True}

    grads = per_example_grads(loss, argnums=(1, 2))(frozen, a, b, x, y, **keywords)
    assert isinstance(grads, tuple)
    np.testing.assert_allclose(grads[0], 4.0 * (x @ a)[:, None] * x)
    np.testing.assert_allclose(grads[1], y)

    negative = per_example_grads(loss, argnums=-4, batch_argnums=(3, -1))
    np.testing.assert_allclose(negative(frozen, a, b, x, y, **keywords), grads[0])

    repeated = per_example_grads(lambda y, b, x: b * x * y, argnums=1, batch_argnums=(0, 2))
    np.testing.assert_allclose(repeated(y, b, y), y * y)


def test_nested_batches_with_none_and_numpy_leaves():
    def loss(w, batch):
        assert batch["nothing"] is None
        (x, more), label = batch["inputs"], batch["label"]
        return jnp.where(label, jnp.sum(w["a"] * x), jnp.sum(more["z"]) * w["b"])

    w = {"a": jnp.ones(2), "b": jnp.float32(2.0), "absent": None}
    batch = {
        "inputs": (np.ones((3, 2), np.float32), {"z": jnp.arange(3.0)}),
        "label": np.array([True, False, True]),
        "nothing": None,
    }
    for chunk_size in (None, 2):
        grads = per_example_grads(loss, chunk_size=chunk_size)(w, batch)
        np.testing.assert_array_equal(grads["a"], [[1, 1], [0, 0], [1, 1]])
        np.testing.assert_array_equal(grads["b"], [0, 1, 0])
        assert grads["absent"] is None


def test_params_that_the_loss_ignores_get_zeros():
    grads = per_example_grads(lambda p, x: p["used"] * x)(
        {"used": jnp.float32(1.0), "unused": jnp.ones((2, 3))}, jnp.ones(4)
    )
    np.testing.assert_array_equal(grads["unused"], np.zeros((4, 2, 3)))


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_a_key_per_example_whatever_the_chunk_size(make_key):
    def loss(w, x, *, key):
        return jnp.sum(w * x * jax.random.normal(key, (2,)))

    key, w, x = make_key(7), jnp.ones(2), jnp.arange(14.0).reshape(7, 2)
    expected = [
        x[i] * jax.random.normal(jax.random.fold_in(key, jnp.uint32(i)), (2,)) for i in range(7)
    ]
    for chunk_size in (None, 1, 3):
        grads = per_example_grads(loss, chunk_size=chunk_size)(w, x, key=key)
        np.testing.assert_allclose(grads, jnp.stack(expected), rtol=1e-6)


def test_keys_may_be_a_batched_argument():
    keys = jax.random.split(jax.random.key(0), 5)
    grad = per_example_grads(lambda w, key: w * jax.random.normal(key), chunk_size=2)
    np.testing.assert_array_equal(grad(jnp.float32(1.0), keys), jax.vmap(jax.random.normal)(keys))


def test_inside_jit_and_vmap(dense, assert_close):
    grads_fn = per_example_grads(dense.loss, chunk_size=3)
    expected = grads_fn(dense.params, dense.batch)
    assert_close(jax.jit(grads_fn)(dense.params, dense.batch), expected)

    stacked = jax.tree.map(lambda p: jnp.stack([p, 2.0 * p]), dense.params)
    swept = jax.vmap(grads_fn, (0, None))(stacked, dense.batch)
    assert_close(jax.tree.map(lambda g: g[0], swept), expected)


def test_batch_of_one_example(dense, assert_close):
    one = jax.tree.map(lambda x: x[:1], dense.batch)
    all_grads = per_example_grads(dense.loss)(*dense[1:])
    assert_close(
        per_example_grads(dense.loss)(dense.params, one), jax.tree.map(lambda g: g[:1], all_grads)
    )
