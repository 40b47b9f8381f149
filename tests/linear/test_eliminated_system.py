"""Elimination and sparse factors, against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.jacobians import SparseJacobian, Sparsity, elimination
from fnopt.jacobians import _elimination as planning
from fnopt.linear import BlockLayout, EliminatedGramSystem, HostGramSystem, HostLayout

RNG = np.random.default_rng(0)


def bundle_adjustment(cameras=4, points=12):
    """Two rows an observation: nine columns of a camera, three of a point."""
    rows, cols = [], []
    for p in range(points):
        for c in RNG.permutation(cameras)[: RNG.integers(2, cameras + 1)]:
            for _ in range(2):
                cols += [*range(9 * c, 9 * c + 9), *(9 * cameras + 3 * p + np.arange(3))]
                rows += [len(rows) // 12] * 12
    return np.asarray(rows), np.asarray(cols), ((cameras, 9), (points, 3))


def grid(side=7):
    """Differences of neighbors, and every unknown by itself."""
    at = np.arange(side * side).reshape(side, side)
    pairs = np.r_[
        np.c_[at[:, 1:].ravel(), at[:, :-1].ravel()], np.c_[at[1:].ravel(), at[:-1].ravel()]
    ]
    rows = np.r_[np.repeat(np.arange(len(pairs)), 2), len(pairs) + at.ravel()]
    return rows, np.r_[pairs.ravel(), at.ravel()], ((side, side),)


def chain(length=40):
    """Second differences of pairs of unknowns."""
    i = np.arange(length - 1)
    cols = np.concatenate([np.c_[2 * i, 2 * i + 1, 2 * i + 2, 2 * i + 3]] * 3, 1)
    rows = 3 * i[:, None] + np.repeat(np.arange(3), 4)
    return rows.ravel(), cols.ravel(), ((length, 2),)


PROBLEMS = {"bundle_adjustment": bundle_adjustment, "grid": grid, "chain": chain}


def jacobian_of(name, by_rows=False):
    rows, cols, leaves = PROBLEMS[name]()
    m, n = rows.max() + 1, sum(map(np.prod, leaves))
    A = np.zeros((m, n))
    A[rows, cols] = RNG.normal(size=rows.size)
    sparsity = Sparsity(cols, rows, (n, m)) if by_rows else Sparsity(rows, cols, (m, n))
    sparsity.leaves = leaves
    at = (sparsity.rows, sparsity.cols)
    sums = np.zeros((sparsity.shape[0], sparsity.colors))
    sums[at[0], sparsity.color[at[1]]] = (A.T if by_rows else A)[at]
    return A, SparseJacobian(jnp.asarray(sums), sparsity, by_rows)


@pytest.mark.parametrize(
    ("name", "by_rows"), [*((name, False) for name in PROBLEMS), ("grid", True)]
)
@pytest.mark.parametrize("host", [False, True])
def test_damped_steps_are_those_of_dense_algebra(name, by_rows, host, x64, monkeypatch):
    monkeypatch.setattr(planning, "_SPARSE_COST", 1e-9 if host else 1e9)
    if name == "bundle_adjustment":  # in chunks
        monkeypatch.setattr("fnopt.linear._eliminated_system._AT_ONCE", 1000)
    A, J = jacobian_of(name, by_rows)
    plan = elimination(J.sparsity, by_rows)
    assert (plan.level is None) == host
    layout, b = (HostLayout if host else BlockLayout)(plan), RNG.normal(size=A.shape[1])
    scale = RNG.uniform(1, 2, A.shape[1])
    scale[3] = np.inf  # taken out
    G = A.T @ A / scale / scale[:, None]
    lam, w = 0.3, RNG.normal(size=A.shape[0])

    @jax.jit
    def found(J, b, w):
        def pull(w):
            return J.rmv(w) / scale

        G = layout.gram(J)
        system = (HostGramSystem if host else EliminatedGramSystem)(
            layout.scaled(G, jnp.asarray(scale)), b, b[0] * 0, pull, J.mv, layout
        )
        step = system.damped(jnp.asarray(lam))
        within = system.trust_region(b[0] ** 2)
        noise, y, x = system.rounding_solutions(pull(w)[None])
        back = None if host else system.pull_back(step)(w)
        return step.p, back, layout.diagonal(G), within, noise, y, x

    p, back, diagonal, within, noise, y, x = found(J, b, w)
    damped = G + lam * np.eye(b.size)
    np.testing.assert_allclose(p, -np.linalg.solve(damped, b), rtol=1e-9, atol=1e-11)
    if not host:
        np.testing.assert_allclose(
            back, np.linalg.solve(damped, A.T @ w / scale), rtol=1e-9, atol=1e-11
        )
    np.testing.assert_allclose(diagonal, np.diag(A.T @ A), rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(within.p), b[0] ** 2, rtol=0.2)
    b = A.T @ w / scale
    np.testing.assert_allclose((G + noise * np.eye(b.size)) @ x[0], b, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.sum(y**2), b @ x[0], rtol=1e-9)


def test_a_factorization_on_the_host_that_fails_gives_nan(monkeypatch):
    monkeypatch.setattr(planning, "_SPARSE_COST", 1e-9)
    rows, cols, _ = chain()
    sparsity = Sparsity(rows, cols, (int(rows.max()) + 1, 80))
    layout = HostLayout(elimination(sparsity))
    G = layout.gram(SparseJacobian(jnp.ones((sparsity.shape[0], sparsity.colors)), sparsity))
    for lam in (-100.0, np.nan):
        data = layout.columns(G, jnp.float32(lam))
        for root in (False, True):
            assert np.all(np.isnan(layout.solve(data, jnp.ones((1, 80)), root)[0]))
    lams = jnp.asarray([1.0, 2.0])
    solve = lambda lam: layout.solve(layout.columns(G, lam), jnp.ones((1, 80)), False)[0]  # noqa: E731
    each = jnp.stack([solve(lam) for lam in lams])
    np.testing.assert_array_equal(jax.vmap(solve)(lams), each)
    # As on an accelerator.
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, cpu, default: default(*args))
    np.testing.assert_array_equal(jax.vmap(solve)(lams), each)
    with jax.enable_x64(True):  # which the thread of a callback doesn't see
        data = layout.columns(jax.tree.map(lambda g: g.astype(jnp.float64), G), jnp.float64(1))
        x, again = jax.jit(lambda data: layout.solve(data, jnp.ones((1, 80)), False))(data)
        b = layout.solve(data, x, False)[0]
    np.testing.assert_allclose(again, b, rtol=1e-14)
