from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.gradients.ghost._factors import Dense, OneHot, Pair, inner, outer, squared_norm

T, R, D, K = 2, 3, 5, 4


def dense(seed, rows, *widths):
    keys = jax.random.split(jax.random.key(seed), len(widths))
    blocks = [jax.random.normal(k, (T, rows, w)) for k, w in zip(keys, widths, strict=True)]
    return Dense(tuple(blocks))


def one_hot(rows):
    return OneHot(jnp.arange(T * rows, dtype=jnp.int32).reshape(T, rows) * 3 % D)


PAIRS = {
    "dense": Pair(dense(0, R, D), dense(1, R, K)),
    "one row": Pair(dense(2, 1, D), dense(3, 1, K)),
    "rows of a table": Pair(one_hot(R), dense(4, R, K)),
    "one row of a table": Pair(one_hot(1), dense(5, 1, K)),
}


def by_hand(pair):
    def full(factor):
        if isinstance(factor, OneHot):
            return np.eye(D)[np.asarray(factor.index)]
        return np.concatenate([np.asarray(b, np.float64) for b in factor.blocks], axis=-1)

    return np.einsum("trd,trk->tdk", full(pair.left), full(pair.right))


@pytest.mark.parametrize("name", PAIRS)
def test_outer(name):
    np.testing.assert_allclose(outer(PAIRS[name], (D, K)), by_hand(PAIRS[name]), atol=1e-5)


@pytest.mark.parametrize(("a", "b"), [*itertools.product(PAIRS, PAIRS)])
def test_inner_products(a, b):
    expected = np.sum(by_hand(PAIRS[a]) * by_hand(PAIRS[b]))
    np.testing.assert_allclose(inner(PAIRS[a], PAIRS[b]), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_length_of_a_sum(count):
    pairs = list(PAIRS.values())[:count]
    total = sum(by_hand(p) for p in pairs)
    np.testing.assert_allclose(squared_norm(pairs), np.sum(total**2), rtol=1e-5)


def test_blocks():
    pair = Pair(dense(0, R, 2, 3), dense(1, R, K))
    np.testing.assert_allclose(outer(pair, (D, K)), by_hand(pair), atol=1e-5)
    np.testing.assert_allclose(squared_norm([pair]), np.sum(by_hand(pair) ** 2), rtol=1e-5)
    flipped = Pair(pair.right, pair.left)
    np.testing.assert_allclose(outer(flipped, (K, D)), by_hand(flipped), atol=1e-5)


def test_products_of_float16_do_not_overflow():
    big = Dense((jnp.full((1, 1, 4), 300.0, jnp.float16),))
    assert squared_norm([Pair(big, big)]) == (4 * 300.0**2) ** 2
    np.testing.assert_array_equal(outer(Pair(big, big), (4, 4)), np.full((1, 4, 4), 9e4))
