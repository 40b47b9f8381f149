"""Factorizations along a band, against dense ones of NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from fnopt.jacobians import SparseJacobian, Sparsity, band_of
from fnopt.linear import BandedGramSystem

N = 45


def stencil(n, by_rows, seed=0):
    """A matrix `[n + 3, n]` of four entries a row, with its columns in disorder."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    rows = np.repeat(np.arange(n + 3), 4)
    cols = (np.arange(n + 3)[:, None] + np.arange(-3, 1)).ravel()
    inside = (cols >= 0) & (cols < n)
    rows, cols = rows[inside], order[cols[inside]]
    A = np.zeros((n + 3, n))
    A[rows, cols] = rng.standard_normal(rows.size) + 2 * (rng.random(rows.size) < 0.3)
    sparsity = Sparsity(cols, rows, (n, n + 3)) if by_rows else Sparsity(rows, cols, (n + 3, n))
    sums = (A.T if by_rows else A) @ sparsity.seeds(A.dtype).T
    return A, SparseJacobian(jnp.asarray(sums), sparsity, by_rows), rng.standard_normal(n + 3)


def system_of(J, r, start=0.0):
    band = band_of(J.sparsity, J.by_rows, 32)
    assert band is not None
    return BandedGramSystem(band.gram(J), J.rmv(r), jnp.asarray(start, r.dtype), J.rmv, J.mv, band)


def damped(A, b, lam):
    return np.linalg.solve(A.T @ A + lam * np.eye(A.shape[1]), A.T @ b)


def test_steps_agree_with_numpy(x64):
    A, J, r = stencil(N, False)

    @jax.jit
    def steps(J, r):
        system = system_of(J, r)
        radius = jnp.asarray(0.1)
        full, some = system.gauss_newton(), system.damped(jnp.asarray(0.3))
        return full, some, system.trust_region(radius), system.pull_back(some)(r[::-1])

    full, some, short, back = steps(J, jnp.asarray(r))
    np.testing.assert_allclose(full.p, np.linalg.lstsq(A, -r, rcond=None)[0], rtol=1e-8)
    assert full.lam == 0
    np.testing.assert_allclose(some.p, -damped(A, r, 0.3), rtol=1e-9)
    np.testing.assert_allclose(back, damped(A, r[::-1], 0.3), rtol=1e-9)
    assert 0.08 <= np.linalg.norm(short.p) <= 0.12
    np.testing.assert_allclose(short.p, -damped(A, r, float(short.lam)), rtol=1e-9)
    for step in (full, some, short):
        Ap = A @ np.asarray(step.p)
        np.testing.assert_allclose(step.model_norm, Ap @ Ap, rtol=1e-9)
        np.testing.assert_allclose(step.predicted, 0.5 * (r @ r - np.sum((Ap + r) ** 2)), rtol=1e-9)


def test_blocks_are_those_of_the_gram_matrix_and_scale_like_it():
    A, J, _ = stencil(N, False)
    band = band_of(J.sparsity, False, 32)
    assert band is not None
    scale = np.linspace(1.0, 2.0, N)
    G = np.asarray(band.scaled(band.gram(J), jnp.asarray(scale, jnp.float32)))
    want = (A / scale).T @ (A / scale)
    full = np.zeros((band.blocks * band.size,) * 2)
    for i in range(band.blocks):
        at = slice(i * band.size, (i + 1) * band.size)
        full[at, at] = np.tril(G[i, 0])
        if i:
            full[at, (i - 1) * band.size : i * band.size] = G[i, 1]
    got = full[:N, :N]
    np.testing.assert_allclose(got, np.tril(want[np.ix_(band.order, band.order)]), atol=1e-5)
    np.testing.assert_allclose(band.diagonal(band.gram(J)), np.diag(A.T @ A), rtol=1e-5)
    _, transposed, _ = stencil(N, True)  # the same matrix, kept by rows
    same = band_of(transposed.sparsity, True, 32)
    assert same is not None
    np.testing.assert_allclose(same.gram(transposed), band.gram(J), rtol=1e-6)


def test_a_singular_matrix_gives_finite_steps():
    n = 40
    i = np.arange(n)
    J = SparseJacobian(jnp.ones((n, 2)), Sparsity(np.r_[i, i], np.r_[i, (i + 1) % n], (n, n)))

    @jax.jit
    def steps(J):
        system = system_of(J, jnp.ones(n))
        return system.gauss_newton().p, system.trust_region(jnp.float32(0.5)).p

    full, short = steps(J)
    assert np.all(np.isfinite(short))
    np.testing.assert_allclose(full, -0.5, rtol=1e-2)
