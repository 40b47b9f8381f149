from __future__ import annotations

import jax
import jax.numpy as jnp

import fnopt

G = {"w": jnp.asarray([3.0, -4.0])}


def update(tx, g=G):
    return tx.update(g, tx.init(g), g)[0]["w"].tolist()


def test_identity_passes_on_the_same_arrays():
    tx = fnopt.identity()
    assert tx.update(G, tx.init(G))[0] is G


def test_scale_keeps_the_sign():
    assert update(fnopt.scale(2.0)) == [6.0, -8.0]


def test_scale_can_be_swept():
    stacked = jax.vmap(fnopt.scale)(jnp.asarray([1.0, 10.0]))
    out = jax.vmap(lambda tx: tx.update(G, tx.init(G))[0]["w"])(stacked)
    assert out.tolist() == [[3.0, -4.0], [30.0, -40.0]]


def test_set_to_zero_keeps_shapes_and_dtypes():
    g = {"w": jnp.ones((2, 1), jnp.bfloat16), "n": None}
    out = fnopt.set_to_zero().update(g, fnopt.core.EmptyState())[0]
    assert out["n"] is None
    assert (out["w"].shape, out["w"].dtype, float(out["w"].sum())) == ((2, 1), jnp.bfloat16, 0.0)


def test_stateless_sees_the_params():
    def towards_zero(updates, params):
        return jax.tree.map(lambda g, p: g + 0.5 * p, updates, params)

    assert update(fnopt.stateless(towards_zero)) == [4.5, -6.0]
