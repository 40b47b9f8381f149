"""Weights that are stacked, unstacked or tiled before they meet the example."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt


def stacked(p, x):
    w = jnp.stack([p["a"], p["b"]], axis=1)
    return jnp.sum(jnp.tanh(x @ w))


def unstacked(p, x):
    first, second = jnp.unstack(p["w"])
    return jnp.sum(jnp.tanh(x @ first) * (x @ second))


def tiled(p, x):
    return jnp.sum(jnp.tanh(jnp.tile(x, 2) @ jnp.tile(p["w"], (2, 1))))


def beside(p, x):
    return jnp.sum(jnp.tanh(jnp.stack([p["a"] * x, p["b"]], axis=-1)))


def horner(p, x):
    return jnp.sum(jnp.tanh(jnp.polyval(p["c"], x)))


@jax.numpy_dtype_promotion("standard")
def spectral(p, x):
    """Real params among complex numbers, by a cast and by a product of both kinds."""
    z = jnp.fft.rfft(x) * p["a"][:2]
    z = z @ p["w"] * jnp.exp(1j * p["b"])
    z = z + jnp.fft.fft(x) * jax.lax.complex(p["w"][0], p["b"])
    return jnp.sum(jnp.tanh(jnp.real(z)) + jnp.imag(z) ** 2)


A, B = jnp.linspace(-1.0, 1.0, 3), jnp.linspace(0.5, 2.0, 3)
W = jnp.linspace(-1.0, 1.0, 18).reshape(2, 3, 3)
CASES = [
    (stacked, {"a": A, "b": B}),
    (unstacked, {"w": W}),
    (tiled, {"w": W[0]}),
    (beside, {"a": A, "b": B}),
    (horner, {"c": A}),
    (spectral, {"a": A, "b": B, "w": W[0][:2]}),
]


@pytest.mark.parametrize(("loss", "params"), CASES, ids=[loss.__name__ for loss, _ in CASES])
def test_norms_and_sums_are_those_of_single_gradients(loss, params):
    x = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
    each = jax.vmap(jax.grad(loss), (None, 0))(params, x)
    squares = sum(jnp.sum(g.reshape(4, -1) ** 2, 1) for g in jax.tree.leaves(each))
    grads, info = fnopt.clipped_grad(loss, clip_norm=0.5, method="ghost")(params, x)
    np.testing.assert_allclose(info.norm, jnp.sqrt(squares), rtol=1e-5)
    scale = jnp.minimum(1.0, 0.5 / jnp.sqrt(squares))
    for found, g in zip(jax.tree.leaves(grads), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(found, jnp.tensordot(scale, g, 1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("loss", "params"), CASES[:4], ids=[c[0].__name__ for c in CASES[:4]])
def test_no_param_needs_a_gradient_of_its_own(loss, params):
    report = fnopt.gradients.ghost_report(loss)(params, jnp.ones((4, 3)))
    assert report.coverage == 1.0
