"""EKFAC: second moments of gradients in the eigenbases of the factors, against the definition."""

from __future__ import annotations

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt import Status
from fnopt.curvature import KroneckerModel, KroneckerSpec, rebase_moments
from fnopt.curvature._eigenbasis import eigenbases

N, DAMPING = 6, 0.1


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


SHAPES = {"table": (5, 4), "w": (4, 3), "b": (3,), "place": (2, 3), "gain": (3,)}


def net(params, example):
    """A lookup at two positions, a shared and tied matrix, a bias, a param without a product."""
    h = params["table"][example["ids"]]
    z = jnp.tanh(h @ params["w"] + params["b"]) + jnp.sin(params["place"] * example["x"])
    return params["gain"] * (z + 0.1 * jnp.tanh(z @ params["w"].T) @ params["w"])


def loss(outputs, example):
    return jnp.sum(jax.nn.logsumexp(outputs, axis=-1)) + 0 * jnp.sum(example["x"])


def problem():
    params = {k: draw(i, *s) for i, (k, s) in enumerate(SHAPES.items())}
    ids = np.asarray([[0, 1], [2, 2], [4, 0], [3, 3], [1, 2], [0, 4]])
    return params, {"ids": ids, "x": draw(9, N, 2, 3)}


def _dense(stack, jacobian, half):
    """The exact block: rows of the root of the loss's Hessian times the Jacobian, `[n C, D K]`."""
    rows = jax.vmap(lambda J, h: jnp.tensordot(h, J, 1))
    matrices = jax.vmap(jax.vmap(lambda t: stack.matrix(jax.tree.leaves(t))))
    m = matrices(jax.tree.map(lambda J: rows(J, half), jacobian))
    return m.reshape(m.shape[0] * m.shape[1], -1)


def _whole(x):
    """A factor or a basis as one matrix."""
    return jax.scipy.linalg.block_diag(*x[0]) if x.ndim == 4 else jnp.diag(x[0])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("max_side", [5, 2])
def test_moments_and_products_are_those_of_the_definition(max_side):
    params, batch = problem()
    spec = KroneckerSpec(net, loss, None, max_side=max_side, eigenbasis=True)

    @jax.jit
    def found(params, batch):
        model = KroneckerModel(spec, params, batch)
        tape = model.tape(model.outputs(params), jax.random.key(0))
        factors = model.factors_of(tape)
        bases = model.bases(factors, jnp.asarray(DAMPING))
        moments = model.moments(tape, bases)
        given = model.matrices(params)
        divided = model.multiply_inverse(given, bases, jnp.asarray(DAMPING), moments)
        fn = lambda p, e: net(p, e).reshape(-1)  # noqa: E731
        jacobian = jax.vmap(jax.jacobian(fn), (None, 0))(params, batch)
        hessian = jax.vmap(jax.hessian(lambda f, e: loss(f.reshape(2, 3), e)))
        values, vectors = jnp.linalg.eigh(hessian(model.outputs(params), batch))
        half = jnp.sqrt(jnp.maximum(values, 0))[:, :, None] * jnp.swapaxes(vectors, 1, 2)
        out = []
        of_all = zip(model.stacks, factors, bases, moments, divided, given, strict=True)
        for stack, factor, basis, moment, *pair in of_all:
            if moment:
                rows = _dense(stack, jacobian, half)
                out.append((stack.sides, rows, factor, basis, moment[0], pair))
        return out

    blocks = found(params, batch)
    assert len(blocks) == 3
    for sides, rows, factors, bases, moments, (divided, given) in blocks:
        A, G = (
            np.asarray(_whole(x))[: s.size, : s.size] for x, s in zip(factors, sides, strict=True)
        )
        QA, QG = (
            np.eye(s.size) if not s.count else np.asarray(_whole(q))[: s.size]
            for q, s in zip(bases, sides, strict=True)
        )
        exact = rows.T @ rows / N
        np.testing.assert_allclose(QA @ QA.T, np.eye(len(QA)), atol=1e-12)
        Q = np.kron(QA, QG)
        wanted = np.sum((rows @ Q) ** 2, 0) / N
        np.testing.assert_allclose(moments[0].reshape(-1), wanted, atol=1e-12)
        corrected, plain = Q @ np.diag(wanted) @ Q.T, np.kron(A, G)
        # Whatever the factors are, no diagonal is nearer in their basis.
        best = np.linalg.norm(exact - corrected)
        assert best <= np.linalg.norm(exact - plain) * (1 + 1e-12)
        solved = np.linalg.solve(corrected + DAMPING * np.eye(len(Q)), np.ravel(given))
        np.testing.assert_allclose(np.ravel(divided), solved, atol=1e-10)


def test_bases_are_those_of_factors_of_any_size():
    # The last block of each side is filled up by one.
    side = types.SimpleNamespace(count=2, size=7, width=4)
    blocks = [types.SimpleNamespace(sides=(side, side), matrices=1)]
    roots = draw(5, 2, 1, 2, 4, 4).astype("f")
    roots[:, :, 1, 3] = 0
    pair = roots @ np.swapaxes(roots, -1, -2)
    found = jax.jit(functools.partial(eigenbases, blocks))
    for size in (1.0, 1e-25, 0.0):
        for F, Q in zip(pair, found([tuple(np.float32(size) * pair)])[0], strict=True):
            rotated = np.swapaxes(Q, -1, -2) @ F @ Q
            off = rotated * (1 - np.eye(4))
            if size:
                np.testing.assert_allclose(off, 0, atol=1e-5 * np.max(F))
            # What fills up is a vector of its own.
            assert np.sum(np.abs(np.asarray(Q)[0, 1, 3]) > 1e-6) == 1


@pytest.mark.usefixtures("x64")
def test_moments_follow_their_bases():
    sides = (4, 3)
    old, new = (
        tuple(np.linalg.qr(draw(seed + s, s, s))[0][None, None] for s in sides) for seed in (0, 7)
    )
    moments = np.abs(draw(3, *sides))[None]
    Q, R = (np.kron(a[0, 0], b[0, 0]) for a, b in (old, new))
    wanted = np.diag(R.T @ Q @ np.diag(moments.reshape(-1)) @ Q.T @ R)
    found = jax.jit(rebase_moments)(old, new, moments)
    np.testing.assert_allclose(np.ravel(found), wanted, atol=1e-12)


def test_trains_and_refuses_bad_batches():
    params, batch = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), problem())
    batch["ids"] = batch["ids"].astype(jnp.int32)

    def drawn(key, outputs, example):  # labels that a NaN comes from, with a finite gradient
        return {**example, "x": example["x"] + jax.random.normal(key, (2, 3)) / example["bad"]}

    def fit(outputs, example):
        return jnp.mean((outputs - example["x"]) ** 2)

    batch["bad"] = jnp.ones(N)
    options = {"statistics_every": 2, "inverse_every": 4, "eigenbasis": True}
    tx = fnopt.kfac(net, fit, batch, sample_fn=drawn, **options)

    def step(carry, bad):
        params, state = carry
        updates, state = tx.update(None, state, params, batch={**batch, "bad": bad * batch["bad"]})
        params = fnopt.apply_updates(params, updates)
        return (params, state), (params, state)

    first = tx.init(params)
    bad = jnp.ones(14).at[8].set(0)  # in a step with statistics: infinite factors
    path, states = jax.jit(lambda p, bad: jax.lax.scan(step, (p, tx.init(p)), bad)[1])(params, bad)
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(states), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape[1:])
    assert all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves((path, states)))
    assert int(states.status[8]) == Status.NONFINITE_STEP
    names = ("averaged", "factors", "inverses", "moments", "momentum")
    kept = path, [getattr(states, k) for k in names]
    jax.tree.map(lambda x: np.testing.assert_array_equal(x[7], x[8]), kept)
    assert float(states.value[-1]) < 0.7 * float(states.value[0])


def test_bases_follow_factors_of_the_same_step():
    _, batch = problem()
    with pytest.raises(ValueError, match="multiple of statistics_every"):
        fnopt.kfac(net, loss, batch, eigenbasis=True, statistics_every=2, inverse_every=5)
