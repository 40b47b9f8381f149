"""Gradients of a batch that is divided over a named axis equal those of one device."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fnopt

RNG = np.random.RandomState(0)
PARAMS = {"w": RNG.randn(3, 2).astype("f"), "b": RNG.randn(2).astype("f")}
BATCH = {"x": RNG.randn(8, 3).astype("f"), "y": RNG.randn(8, 2).astype("f")}
WEIGHTS = np.linspace(0, 1, 8, dtype=np.float32)
WANTED = np.arange(8) != 2  # another number of examples on either device
KEY = np.asarray([0, 7], np.uint32)


def loss(p, e):
    return jnp.mean((jnp.tanh(e["x"] @ p["w"] + p["b"]) - e["y"]) ** 2)


def noisy_loss(p, e, key):
    return loss(p, {**e, "x": e["x"] + jax.random.normal(key, (3,))})


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
    }


def on_two_devices(check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    return jax.shard_map(
        lambda p, *batch: (totals("data", p, *batch), fnopt.per_example_norms(loss)(p, batch[0])),
        mesh=mesh,
        in_specs=(P(), P("data"), P("data"), P("data")),
        out_specs=(P(), P("data")),
        check_vma=check_vma,
    )


def on_one(p, *batch):
    return totals(None, p, *batch), fnopt.per_example_norms(loss)(p, batch[0])


def test_equals_one_device():
    # JAX sums derivatives by params that are the same everywhere over the devices: of an example's
    # gradient that would be the gradient of two examples.
    args = PARAMS, BATCH, WEIGHTS, WANTED
    found, expected = jax.jit(on_two_devices(True))(*args), jax.jit(on_one)(*args)
    paths = fnopt.leaf_paths(found)
    for path, x, y in zip(*map(jax.tree.leaves, (paths, found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6, err_msg=path)


def test_types_agree_where_they_are_not_tracked():
    args = PARAMS, BATCH, WEIGHTS, WANTED
    found, expected = (jax.eval_shape(f, *args) for f in (on_two_devices(False), on_one))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), found) == jax.tree.map(
        lambda x: (x.shape, x.dtype), expected
    )
