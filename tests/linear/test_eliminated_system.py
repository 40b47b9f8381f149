"""Elimination by levels, against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnopt.jacobians import SparseJacobian, Sparsity, elimination
from fnopt.jacobians import _elimination as planning
from fnopt.linear import BlockLayout, EliminatedGramSystem

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
    """Differences of neighbours, and every unknown by itself."""
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
    sums = np.zeros((sparsity.shape[0], sparsity.colours))
    sums[at[0], sparsity.colour[at[1]]] = (A.T if by_rows else A)[at]
    return A, SparseJacobian(jnp.asarray(sums), sparsity, by_rows)


@pytest.mark.parametrize(
    ("name", "by_rows"), [*((name, False) for name in PROBLEMS), ("grid", True)]
)
def test_damped_steps_are_those_of_dense_algebra(name, by_rows, x64, monkeypatch):
    monkeypatch.setattr(planning, "_LEVEL", 5000)  # of such small problems a dense factor is all
    if name == "bundle_adjustment":  # in chunks
        monkeypatch.setattr("fnopt.linear._eliminated_system._AT_ONCE", 1000)
    A, J = jacobian_of(name, by_rows)
    plan = elimination(J.sparsity, by_rows)
    assert plan.levels
    layout, b = BlockLayout(plan), RNG.normal(size=A.shape[1])
    scale = RNG.uniform(1, 2, A.shape[1])
    scale[3] = np.inf  # taken out
    G = A.T @ A / scale / scale[:, None]
    lam, w = 0.3, RNG.normal(size=A.shape[0])

    @jax.jit
    def found(J, b, w):
        G = layout.gram(J)
        system = EliminatedGramSystem(
            layout.scaled(G, scale), b, b[0] * 0, lambda w: J.rmv(w) / scale, J.mv, layout
        )
        step = system.damped(jnp.asarray(lam))
        return step.p, system.pull_back(w, step), layout.diagonal(G), system.trust_region(b[0] ** 2)

    p, back, diagonal, within = found(J, b, w)
    damped = G + lam * np.eye(b.size)
    np.testing.assert_allclose(p, -np.linalg.solve(damped, b), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(
        back, np.linalg.solve(damped, A.T @ w / scale), rtol=1e-9, atol=1e-11
    )
    np.testing.assert_allclose(diagonal, np.diag(A.T @ A), rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(within.p), b[0] ** 2, rtol=0.2)
