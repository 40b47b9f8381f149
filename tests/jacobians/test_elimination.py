"""Plans of elimination: their groups, their levels, and what they say."""

import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.jacobians import Sparsity, elimination
from fnopt.jacobians import _pairs as pairing
from fnopt.jacobians._pairs import unknown_groups

CAMERA, POINT = np.repeat(np.arange(20), 20), np.tile(np.arange(400), 1)


def seen(p):
    """Every camera sees some points; a camera has four params, in one leaf or in three."""
    camera = p["camera"] if "camera" in p else jnp.c_[p["shift"], p["focal"], p["twist"]]
    c, x = camera[CAMERA], p["point"][POINT]
    again = camera[(CAMERA + 1) % 20]
    c, again, squares = jnp.sum(c, 1), jnp.sum(again, 1), jnp.sum(x**2, 1)
    return jnp.stack([c * jnp.sum(x, 1), again + squares, c - squares, again * squares])


def params(one_leaf):
    point = jnp.ones((400, 3))
    if one_leaf:
        return {"camera": jnp.ones((20, 4)), "point": point}
    return {
        "focal": jnp.ones(20),
        "point": point,
        "shift": jnp.ones((20, 2)),
        "twist": jnp.ones(20),
    }


@pytest.mark.parametrize("one_leaf", [True, False])
def test_points_are_eliminated_and_cameras_left_however_they_are_laid_out(one_leaf):
    plan = fnopt.sparse_jacobian(seen).plan(params(one_leaf))
    assert plan.level
    assert (plan.level.size, plan.level.groups) == (3, 400)
    assert plan.left == 80
    assert str(plan).splitlines()[1:3] == [
        "  eliminated: 400 groups of 3 unknowns",
        "  remaining: 80 unknowns, dense Cholesky",
    ]


def random_chain():
    """A chain of 60 unknowns with 20 more couplings: the rows and columns of its Jacobian."""
    i = np.arange(59)
    extra = np.random.default_rng(1).integers(0, 60, (20, 2))
    ends = np.r_[np.c_[i, i + 1], extra]
    return np.repeat(np.arange(len(ends)), 2), ends


def dense_factor(rows, ends, order):
    A = np.zeros((len(ends), 60))
    np.add.at(A, (rows, ends.ravel()), np.random.default_rng(2).normal(size=rows.size))
    return np.linalg.cholesky((A.T @ A + np.eye(60))[np.ix_(order, order)])


def test_groups_of_the_level_are_not_coupled_and_the_factor_has_all_entries(monkeypatch):
    monkeypatch.setattr("fnopt.jacobians._elimination._SPARSE_COST", 1e9)
    rows, ends = random_chain()
    plan = elimination(Sparsity(rows, ends.ravel(), (len(ends), 60)))
    position = plan.position[ends]
    inside = position < plan.eliminated
    assert plan.eliminated
    assert not np.any(inside.all(1) & (position[:, 0] != position[:, 1]))
    L = dense_factor(rows, ends, plan.order)
    row, col = plan.blocks[1, 1]
    L[row, col] = 0
    assert np.all(L[:, : plan.eliminated] == 0)


def test_a_plan_names_what_is_used_instead_of_an_elimination():
    def chain(x):
        return jnp.append(x[0], x[1:] - x[:-1] ** 2)

    for fn, n, text in [
        (chain, 300, "300 unknowns from 300 residuals: Cholesky factorization of a band, in 19 bl"),
        (chain, 256, "256 unknowns from 256 residuals: factorization of a dense matrix"),
        (lambda x: chain(x)[1:], 300, "300 unknowns from 299 residuals: conjugate gradients"),
    ]:
        assert str(fnopt.sparse_jacobian(fn).plan(jnp.ones(n))).startswith(text)


def test_the_cost_of_a_sparse_factor_counts_its_entries(monkeypatch):
    monkeypatch.setattr("fnopt.jacobians._elimination._SPARSE_COST", 1e-9)
    rows, ends = random_chain()
    plan = elimination(Sparsity(rows, ends.ravel(), (len(ends), 60)))
    L = dense_factor(rows, ends, plan.order)
    assert plan.entries == np.count_nonzero(L)
    assert plan.widest == np.max(np.count_nonzero(L, axis=0))
    assert "remaining: 60 unknowns, sparse Cholesky on the host" in str(plan)
    natural = dense_factor(rows, ends, np.arange(60))
    assert plan.entries < np.count_nonzero(natural)


def test_a_full_row_has_no_plan(monkeypatch):
    monkeypatch.setattr(pairing, "_MOST_GRAM_PAIRS", 100)
    full = Sparsity(np.zeros(50, int), np.arange(50), (50, 50))
    plan = elimination(full)
    assert not plan.is_affordable
    assert "conjugate gradients" in str(plan)


def test_groups_of_many_sizes_are_split():
    # Six cliques of one to six unknowns.
    group = np.repeat(np.arange(6), np.arange(1, 7))
    row = np.repeat(np.arange(21), np.arange(1, 7)[group])
    col = np.concatenate([np.flatnonzero(group == g) for g in group])
    assert np.array_equal(unknown_groups(row, col, 21, ()), np.arange(21))
    same = unknown_groups(row[group[col] > 2], col[group[col] > 2], 21, ())
    assert np.unique(same[6:]).size == 3
