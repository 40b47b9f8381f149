"""Gradients of a batch that is divided over a named axis equal those of one device."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fnopt
from fnopt import curvature

RNG = np.random.RandomState(0)
PARAMS = {"w": RNG.randn(3, 2).astype("f"), "b": RNG.randn(2).astype("f")}
BATCH = {"x": RNG.randn(8, 3).astype("f"), "y": RNG.randn(8, 2).astype("f")}
WEIGHTS = np.linspace(0, 1, 8, dtype=np.float32)
WANTED = np.arange(8) != 2  # another number of examples on either device
KEY = np.asarray([0, 7], np.uint32)


def loss(p, e):
    return jnp.mean((jnp.tanh(e["x"] @ p["w"] + p["b"]) - e["y"]) ** 2)


def noisy_loss(p, e, key):
    # Little noise: where tanh is flat, a gradient has hardly any digits.
    return loss(p, {**e, "x": e["x"] + 0.1 * jax.random.normal(key, (3,))})


def totals(axis_name, p, batch, weights, wanted):
    """What is the same on all devices."""
    named = {"axis_name": axis_name}
    clipped = functools.partial(fnopt.clipped_grad, clip_norm=0.3, **named)
    found = fnopt.gradient_statistics(loss, **named)(p, batch, where=wanted)
    total = clipped(noisy_loss, method="vmap")(p, batch, key=KEY)[0]
    return {
        "mean": clipped(loss, reduction="mean", method="ghost")(p, batch, where=wanted)[0],
        "keys": total,
        "noisy": fnopt.add_noise(total, KEY, 1.0, 0.3)[0],
        "weighted": fnopt.weighted_grad(loss, reduction="mean", chunk_size=2, **named)(
            p, batch, weights
        ),
        "statistics": (found.mean, found.variance, found.noise_scale, found.count),
        "hardest": fnopt.hardest_examples(noisy_loss, 5, **named)(p, batch, key=KEY, where=wanted),
        "apart": fnopt.hardest_examples(loss, 3, by="disagreement", **named)(p, batch),
    }


def model(p, e):
    return jnp.tanh(e["x"] @ p["w"] + p["b"])


def error(out, e):
    return jnp.sum((out - e["y"]) ** 4)


def products(axis_name, p, batch):
    """Curvature is a sum over examples too."""
    named = {"axis_name": axis_name, "reduction": "sum", "chunk_size": 2}
    key = jax.random.wrap_key_data(KEY)
    v = jax.tree.map(jnp.cos, p)
    return {
        "hessian": curvature.hvp(loss, axis_name=axis_name)(p, v, batch),
        "ggn": curvature.ggn_vp(model, error, **named)(p, v, batch),
        "fisher": curvature.fisher_vp(loss, **named)(p, v, batch),
        "diagonal": curvature.ggn_diagonal(model, error, **named)(p, batch),
        "estimate": curvature.hessian_diagonal(loss, samples=2, **named)(p, key, batch).value,
    }


def by_example(axis_name, p, batch):
    """What every device has for its own examples."""
    similar = fnopt.gradient_similarity(noisy_loss, axis_name=axis_name)
    other = jax.tree.map(lambda x: -x, batch)
    found = similar(p, batch, key=KEY), similar(p, batch, other=other, key=KEY)
    norms = fnopt.per_example_norms(loss)(p, batch)
    return norms, [(x.inner, x.cosine, x.norm) for x in found]


def everything(axis_name, p, batch, weights, wanted):
    same = totals(axis_name, p, batch, weights, wanted), products(axis_name, p, batch)
    return same, by_example(axis_name, p, batch)


def on_two_devices(check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return jax.shard_map(
        functools.partial(everything, "data"),
        mesh=mesh,
        in_specs=(P(), P("data"), P("data"), P("data")),
        out_specs=(P(), P("data")),
        check_vma=check_vma,
    )


on_one = functools.partial(everything, None)


@pytest.mark.usefixtures("two_devices")
def test_equals_one_device(x64):
    # JAX sums derivatives by params that are the same everywhere over the devices: of an example's
    # gradient that would be the gradient of two examples. In float64, for a cosine near 0 is a sum
    # of terms near 1, which rounds in another way on either side.
    args = jax.tree.map(wide, (PARAMS, BATCH, WEIGHTS, WANTED))
    found, expected = jax.jit(on_two_devices(True))(*args), jax.jit(on_one)(*args)
    paths = fnopt.leaf_paths(found)
    for path, x, y in zip(*map(jax.tree.leaves, (paths, found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13, err_msg=path)


def wide(x):
    return x.astype(np.float64) if x.dtype == np.float32 else x


@pytest.mark.usefixtures("two_devices")
def test_types_agree_where_they_are_not_tracked():
    args = PARAMS, BATCH, WEIGHTS, WANTED
    found, expected = (jax.eval_shape(f, *args) for f in (on_two_devices(False), on_one))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), found) == jax.tree.map(
        lambda x: (x.shape, x.dtype), expected
    )


def test_noise_scale_of_all_devices():
    norms = np.asarray([3.0, 1.0, 2.0], "f")
    one = functools.partial(fnopt.noise_scale, small_size=1, big_size=3)
    expected = one(norms, 1.5)
    found = jax.vmap(lambda n: one(n, 1.5, axis_name="data"), axis_name="data")(norms)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_an_axis_needs_a_batch():
    with pytest.raises(ValueError, match="got axis_name='data' but no batch"):
        curvature.hvp(lambda p: jnp.sum(p["b"]), axis_name="data")(PARAMS, PARAMS)


@pytest.mark.usefixtures("two_devices")
def test_axes_and_batches_that_do_not_fit():
    step = fnopt.clipped_grad(loss, 0.3, axis_name="model")
    with pytest.raises(ValueError, match=r"no axis .model. is in scope here"):
        jax.eval_shape(step, PARAMS, BATCH)
    seven = jax.tree.map(lambda x: x[:7], BATCH)
    # JAX says which argument; a batch that is filled up, and where=, is the way: see above
    with pytest.raises(ValueError, match=r"evenly divisible(.|\n)*args\[1\]"):
        jax.eval_shape(on_two_devices(True), PARAMS, seven, WEIGHTS, WANTED)
