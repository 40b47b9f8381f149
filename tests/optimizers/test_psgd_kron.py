"""PSGD-Kron against its update in float64, its fixed point, and how often it learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import fnopt
from fnopt.optimizers._psgd_kron import _due

STEPS = 6


def norm_from_below(A):
    largest = np.abs(A).max()
    A = A / largest
    x = A[np.argmax((A**2).sum(1))] @ A
    return largest * np.linalg.norm(x / np.linalg.norm(x) @ A)


def published(steps, randoms, b1, rate):
    """The updates of one wide matrix, step by step."""
    m, n = steps.shape[1:]
    size = np.mean(steps[0] ** 2) ** -0.125  # so that Q^T Q (x) Q^T Q makes it 1
    mu, Ql, Qr, out = np.zeros((m, n)), size * np.eye(m), size * np.eye(n), []
    for t, (G, V) in enumerate(zip(steps, randoms, strict=True), 1):
        mu = b1 * mu + (1 - b1) * G
        M = mu / (1 - b1**t)
        A, B = Ql @ M @ Qr.T, np.linalg.inv(Ql).T @ V @ np.linalg.inv(Qr)
        moved = []
        for Q, ours, wanted in ((Ql, A @ A.T, B @ B.T), (Qr, A.T @ A, B.T @ B)):
            size = rate / norm_from_below(ours + wanted)
            moved.append(Q - size * np.triu(ours - wanted) @ Q)
        Ql, Qr = moved
        u = Ql.T @ Ql @ M @ Qr.T @ Qr
        out.append(u * min(1, 1.1 / np.sqrt(np.mean(u**2))))
    return np.stack(out)


def test_is_the_published_update():
    tx = fnopt.scale_by_psgd_kron(0.8, 0.2)
    rng = np.random.default_rng(0)
    g = {"wide": rng.standard_normal((STEPS, 3, 4)), "tall": rng.standard_normal((STEPS, 5, 2))}
    with jax.enable_x64(True):
        start = tx.init({k: jnp.asarray(x[0]) for k, x in g.items()})
        run = jax.jit(lambda g: jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], start, g)[1])
        ours = jax.tree.map(np.asarray, run(jax.tree.map(jnp.asarray, g)))
        keys = [jax.random.fold_in(jax.random.key(0), i) for i in range(STEPS)]
        fold = jax.random.fold_in
        V = {  # by the number of the matrix in the tree
            s: np.stack([jax.random.normal(fold(k, i), s) for k in keys])
            for i, s in enumerate([(2, 5), (3, 4)])
        }
    wide = published(g["wide"], V[3, 4], 0.8, 0.2)
    tall = published(np.swapaxes(g["tall"], 1, 2), V[2, 5], 0.8, 0.2)
    np.testing.assert_allclose(ours["wide"], wide, atol=1e-10)
    np.testing.assert_allclose(ours["tall"], np.swapaxes(tall, 1, 2), atol=1e-10)


def test_units_of_the_loss_do_not_matter():
    tx = fnopt.scale_by_psgd_kron()
    g = jnp.asarray(np.random.default_rng(0).standard_normal((STEPS, 3, 4)), jnp.float32)

    @jax.jit
    def run(size):
        step = lambda s, g: tx.update({"w": size * g}, s)[::-1]  # noqa: E731
        return jax.lax.scan(step, tx.init({"w": g[0]}), g)[1]["w"]

    usual, *others = jax.vmap(run)(2.0 ** jnp.asarray([0.0, 40.0, -40.0]))
    for found in others:
        np.testing.assert_allclose(found, usual, rtol=1e-4, atol=1e-5)
    plain = fnopt.scale_by_psgd_kron(initial_scale=1.0, precond_lr=1e-6)
    first = plain.update({"w": 1e-3 * g[0]}, plain.init({"w": g[0]}))[0]["w"]
    np.testing.assert_allclose(first, 1e-3 * g[0], rtol=1e-4)


def test_it_learns_to_whiten():
    """Gradients with scales from 0.1 to 10 come out ever more alike."""
    tx = fnopt.scale_by_psgd_kron(0.0)
    rows, columns = jnp.geomspace(0.3, 3.0, 4)[:, None], jnp.geomspace(0.3, 3.0, 4)[None]
    noise = jax.random.normal(jax.random.key(1), (500, 4, 4))
    step = lambda s, g: tx.update({"w": rows * columns * g}, s)[::-1]  # noqa: E731
    state, _ = jax.jit(lambda g: jax.lax.scan(step, tx.init({"w": g[0]}), g))(noise)
    (left, right), *_ = state.factors["w"]
    gain = np.asarray(jnp.diag(left[0])[:, None] * jnp.diag(right[0]) * rows * columns)
    assert gain.max() / gain.min() < 15  # from 100 at first
    assert 0.5 < np.exp(np.log(gain).mean()) < 2


def test_how_often_factors_are_learned():
    due = np.asarray(jax.jit(jax.vmap(_due))(jnp.arange(20_000)))
    assert due[:500].all()
    assert abs(due[500:1500].sum() - 632) <= 1  # (1 - 1/e) / 0.001
    assert abs(due[10_000:].mean() - 0.03) < 1e-3
    assert np.diff(np.flatnonzero(due)).max() <= 34


def test_a_gradient_that_is_not_finite_leaves_the_factors():
    tx, g = fnopt.scale_by_psgd_kron(), {"w": jnp.eye(3), "v": 2 * jnp.eye(3)}
    update = jax.jit(tx.update)
    _, state = update(g, tx.init(g))
    _, after = update({"w": g["w"].at[0, 1].set(jnp.nan), "v": g["v"] * 1e30}, state)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(after.factors))
    long = fnopt.scale_by_psgd_kron(max_size_triangular=2).init({"w": jnp.ones((2, 3))})
    assert long.factors["w"][0][1] is None
