"""Sparse Hessians by star coloring, against dense ones."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.jacobians import Sparsity, SymmetricSparsity, ravel, sparse_hessian

RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 1.5, 9)
GRID = RNG.uniform(0.5, 1.5, (4, 5))
TREE = {"b": np.asarray(0.7), "x": RNG.uniform(0.5, 1.5, 6)}
FIRST, SECOND = RNG.integers(0, 9, (2, 8))


def chain(x):
    return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def surface(u):
    steps = (u[1:, 1:] - u[:-1, :-1]) ** 2 + (u[1:, :-1] - u[:-1, 1:]) ** 2
    return jnp.sum(jnp.sqrt(1 + steps))


def springs(x):
    return jnp.sum((jnp.abs(x[FIRST] - x[SECOND] + 3.0) - 1) ** 2)


def recurrent(x):
    def step(carry, x):
        return x, jnp.sin(carry * x)

    return jnp.sum(jax.lax.scan(step, x[0], x[1:])[1])


@jax.custom_vjp
def backward_only(x):
    return jnp.sum(jnp.cos(x))


backward_only.defvjp(lambda x: (backward_only(x), x), lambda x, g: (-g * jnp.sin(x),))

# By name: the function, where it is taken, a pattern, and how many products it takes.
CASES = {
    "chain": (chain, X, None, 3),
    "chain, lower triangle given": (
        chain,
        X,
        (np.r_[np.arange(9), np.arange(1, 9)], np.r_[np.arange(9), np.arange(8)]),
        3,
    ),
    "separable": (lambda x: jnp.sum(jnp.exp(x)), X, None, 1),
    "arrow": (lambda p: jnp.sum(jnp.sin(p["x"]) * p["b"] ** 2), TREE, None, 2),
    "arrow, given": (
        lambda p: p["b"] ** 3 * jnp.sum(p["x"]),
        TREE,
        np.r_[np.ones((1, 7), bool), np.c_[np.ones((6, 1), bool), np.eye(6, dtype=bool)]],
        2,
    ),
    "ring": (lambda x: jnp.sum(x**3 * jnp.roll(x, 1)), X, None, 3),
    "surface": (surface, GRID, None, None),
    "second differences": (lambda x: jnp.sum((x[2:] - 2 * x[1:-1] + x[:-2]) ** 4), X, None, 5),
    "springs": (springs, X, None, None),
    "scan": (recurrent, X, None, None),
    "full": (lambda x: jnp.log(jnp.sum(jnp.exp(x))), X, None, 9),
    "linear": (jnp.sum, X, None, None),
    "without a forward mode": (backward_only, X, None, 1),
}


@functools.cache
def both():
    """All of them in one program."""
    with jax.enable_x64(True):

        @jax.jit
        def run(points):
            found = {}
            for name, (fn, _, pattern, _) in CASES.items():
                x, unravel = ravel(points[name])
                slope = jax.grad(lambda x, fn=fn, unravel=unravel: fn(unravel(x)))
                dense = jax.jacrev(slope)(x)
                H = sparse_hessian(fn, pattern)(points[name])
                v = jnp.cos(jnp.arange(x.size, dtype=x.dtype))
                found[name] = H, H.matrix(), dense, H.mv(v), dense @ v
            return found

        return run({name: jax.tree.map(jnp.asarray, x) for name, (_, x, *_) in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_dense_one(name):
    H, matrix, dense, product, wanted = both()[name]
    products = CASES[name][3]
    np.testing.assert_allclose(matrix, dense, rtol=0, atol=1e-12 * max(1, np.max(np.abs(dense))))
    np.testing.assert_allclose(product, wanted, rtol=0, atol=1e-12 * max(1, np.max(np.abs(wanted))))
    np.testing.assert_array_equal(matrix, matrix.T)
    assert H.shape == dense.shape
    assert products is None or H.products == products
    # No more than for a matrix that isn't known to be symmetric.
    at = H.sparsity
    assert H.products <= max(Sparsity(at.rows, at.cols, at.shape).colors, 1)
    np.testing.assert_array_equal(H.to_scipy().toarray(), matrix)


def test_every_entry_of_a_random_matrix_is_found():
    rng = np.random.default_rng(1)
    fewer = 0
    for _ in range(200):
        n = int(rng.integers(1, 30))
        A = rng.integers(1, 9, (n, n)) * (rng.random((n, n)) < rng.choice([0.02, 0.1, 0.3]))
        A = A + A.T
        rows, cols = np.nonzero(A)
        at = SymmetricSparsity(rows, cols, n)
        sums = A @ at.seeds(int).T
        np.testing.assert_array_equal(sums[at.places], A[at.rows, at.cols])
        plain = Sparsity(rows, cols, (n, n)).colors
        fewer += at.colors < plain
        assert at.colors <= plain
    assert fewer > 50


def test_a_large_band_takes_few_products():
    H = sparse_hessian(chain)(jnp.ones(5_000))
    assert H.products == 3
    assert repr(H) == "SparseHessian(shape=(5000, 5000), entries=14998, products=3)"
    np.testing.assert_allclose(H.values[:4], [802, -400, -400, 1002])


def test_refuses_what_it_cannot_do():
    x = jnp.ones(3)
    with pytest.raises(TypeError, match=r"sparse_hessian: the function returned .*float32\[3\]"):
        sparse_hessian(jnp.sin)(x)
    with pytest.raises(TypeError, match="expected a real scalar"):
        sparse_hessian(lambda x: jnp.sum(x).astype(jnp.complex64))(x)
    with pytest.raises(TypeError, match=r"sparse_hessian.*int32"):
        sparse_hessian(lambda x: jnp.sum(x**2))(jnp.arange(3))
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        sparse_hessian(lambda x: jnp.sum(x**2), np.ones((2, 2), bool))(x)
    with pytest.raises(ValueError, match="indices from 0 to 7"):
        sparse_hessian(lambda x: jnp.sum(x**2), (np.asarray([0, 7]), np.asarray([0, 0])))(x)
    with pytest.raises(TypeError, match=r"boolean array of shape \[n, n\]"):
        sparse_hessian(chain, "band")
    assert fnopt.sparse_hessian is sparse_hessian
