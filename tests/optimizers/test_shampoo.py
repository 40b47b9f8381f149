"""Shampoo against its formulas in float64: sums and means, grafting, blocks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

STEPS, EVERY, EPS = 8, 3, 1e-6
SHAPES = {"a": (4, 3), "tall": (5, 2), "wide": (3, 4), "cut": (6, 5)}


@functools.lru_cache
def gradients():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((STEPS, *shape)) for name, shape in SHAPES.items()}


def root(A, exponent):
    values, vectors = np.linalg.eigh(A)
    values = np.maximum(values, 0) + EPS * values[-1]
    return vectors * values**-exponent @ vectors.T


def reference(steps, b1, b2, exponent, grafting):
    """The updates of one block."""
    m, n = steps.shape[1:]
    mu, nu, L, R, out = np.zeros((m, n)), np.zeros((m, n)), np.zeros((m, m)), np.zeros((n, n)), []
    for t, G in enumerate(steps, 1):
        gain = 1 if b2 == 1 else 1 - b2
        mu, nu = b1 * mu + (1 - b1) * G, 0.9 * nu + 0.1 * G**2
        L, R = b2 * L + gain * G @ G.T, b2 * R + gain * G.T @ G
        mean = mu / (1 - b1**t)
        if (t - 1) % EVERY == 0:
            seen = 1 if b2 == 1 else 1 - b2**t
            PL, PR = root(L / seen, exponent), root(R / seen, exponent)
        u = PL @ mean @ PR
        d = {"none": u, "sgd": mean, "adam": mean / (np.sqrt(nu / (1 - 0.9**t)) + 1e-8)}[grafting]
        out.append(u * np.linalg.norm(d) / np.linalg.norm(u))
    return np.stack(out)


def in_blocks(steps, most, fn):
    """The same for every block of a matrix, in parts that are as near to equal as can be."""
    if most is None:
        return fn(steps)
    bands = np.array_split(steps, -(-steps.shape[1] // most), axis=1)
    cut = [np.array_split(band, -(-band.shape[2] // most), axis=2) for band in bands]
    return np.concatenate([np.concatenate([fn(x) for x in row], axis=2) for row in cut], axis=1)


KINDS = {
    "first paper": {"b1": 0.0, "b2": 1.0, "grafting": "none", "block_size": None},
    "means, Adam's length, blocks": {"b1": 0.9, "b2": 0.8, "grafting": "adam", "block_size": 3},
    "exponent, sgd's length": {"b1": 0.9, "b2": 0.9, "grafting": "sgd", "exponent": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_is_the_formula(kind):
    options = {"exponent": 0.25, "block_size": 1024, **KINDS[kind]}
    tx = fnopt.scale_by_shampoo(precondition_frequency=EVERY, eps=EPS, graft_b2=0.9, **options)
    block = options.pop("block_size")
    one = functools.partial(reference, **options)
    expected = {name: in_blocks(g, block, one) for name, g in gradients().items()}

    def run(g):
        start = tx.init(jax.tree.map(lambda x: x[0], g))
        return jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], start, g)[1]

    with jax.enable_x64(True):
        ours = jax.jit(run)({k: jnp.asarray(x) for k, x in gradients().items()})
        ours = jax.tree.map(np.asarray, ours)
    for name, x in ours.items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-6, atol=1e-8, err_msg=name)


def test_what_is_stored():
    params = {"w": jnp.ones((6, 4))}
    sizes = {}
    for options in ({}, {"grafting": "sgd"}, {"block_size": 3}):
        slots = fnopt.slots(jax.eval_shape(fnopt.scale_by_shampoo(**options).init, params))
        sizes[str(options)] = sum(x.size for x in jax.tree.leaves(slots))
    factors = 2 * (16 + 36)
    # in blocks of 3 by 2: four of them
    assert [*sizes.values()] == [2 * 24 + factors, 24 + factors, 2 * 24 + 2 * 4 * (9 + 4)]


def test_a_gradient_that_is_not_finite_leaves_factors_and_roots():
    tx, g = fnopt.scale_by_shampoo(precondition_frequency=1), {"w": jnp.eye(3), "v": 2 * jnp.eye(3)}
    update = jax.jit(tx.update)
    _, state = update(g, tx.init(g))
    _, after = update({"w": g["w"].at[0, 1].set(jnp.nan), "v": g["v"] * 1e30}, state)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves((after.factors, after.roots)))
    for size in (1e-24, 1e20):  # squares are zero, or not finite
        updates, _ = update(jax.tree.map(lambda x, s=size: s * x, g), tx.init(g))
        assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(updates))


def test_what_is_refused():
    for options in ({"grafting": "lion"}, {"block_size": 0}, {"precondition_frequency": 0}):
        with pytest.raises(ValueError, match="scale_by_shampoo"):
            fnopt.scale_by_shampoo(**options)
