"""KL-Shampoo against its authors' update in float64, step by step and matrix by matrix."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

STEPS, EVERY, INITIAL = 18, 4, 0.1
SHAPES = {"a": (4, 3), "tall": (5, 4), "wide": (3, 4), "stack": (2, 3, 4)}
AXES = {name: fnopt.MatrixDimensionNumbers(-2, -1) for name in SHAPES}
# With sides that differ by more than one the first factor has several eigenvalues 0, whose
# eigenvectors are nobody's.


class Reference:
    """The published algorithm for one matrix, side by side."""

    def __init__(self, shape, b1, b2, eps, limit):
        self.mu, self.step, self.Q = np.zeros(shape), 0, None
        self.b1, self.b2, self.eps, self.limit = b1, b2, eps, limit
        self.S = [np.zeros((n, n)) for n in shape]
        self.value = [np.full(n, INITIAL) for n in shape]

    def update(self, g):
        if self.Q is None:  # the first step only makes the preconditioner
            for i, x in enumerate((g, g.T)):
                self.S[i] = (1 - self.b2) * x @ x.T / x.shape[1]
            self.Q = [np.linalg.eigh(S)[1][:, ::-1] for S in self.S]
            return np.zeros_like(g)
        self.step += 1
        self.mu = self.b1 * self.mu + (1 - self.b1) * g
        root = np.sqrt(np.outer(*self.value))
        u = self.Q[0] @ (self.Q[0].T @ self.mu @ self.Q[1] / (root + self.eps)) @ self.Q[1].T
        self._learn(g)
        return u

    def _learn(self, g):
        new = []
        for i, x in enumerate((g, g.T)):
            Q, value = self.Q[1 - i], self.value[1 - i]
            delta = x @ Q @ np.diag(1 / value) @ Q.T @ x.T / x.shape[1]
            new.append((delta, np.diag(self.Q[i].T @ delta @ self.Q[i])))
        for i, (delta, diagonal) in enumerate(new):
            self.S[i] = self.b2 * self.S[i] + (1 - self.b2) * delta
            self.value[i] = self.b2 * self.value[i] + (1 - self.b2) * diagonal
            if self.limit is not None:
                inverse = np.minimum(self.value[i] ** -0.5, max(10, min(len(diagonal), self.limit)))
                self.value[i] = inverse**-2
        if self.step % EVERY == 0:
            self.Q = [np.linalg.qr(S @ Q)[0] for S, Q in zip(self.S, self.Q, strict=True)]


@functools.lru_cache
def gradients():
    """Of very different sizes by entry, so that the bound of inverse roots is met."""
    rng = np.random.default_rng(0)
    sizes = {name: 10.0 ** rng.uniform(-2, 0.5, shape) for name, shape in SHAPES.items()}
    return {name: x * rng.standard_normal((STEPS, *x.shape)) for name, x in sizes.items()}


def published(limit, b1=0.9, b2=0.8, eps=1e-8):
    out = {}
    for name, shape in SHAPES.items():
        stack = gradients()[name].reshape(STEPS, -1, *shape[-2:])
        one = [Reference(shape[-2:], b1, b2, eps, limit) for _ in range(stack.shape[1])]
        steps = [[r.update(x) for r, x in zip(one, g, strict=True)] for g in stack]
        out[name] = np.asarray(steps).reshape(STEPS, *shape)
    return out


@pytest.mark.parametrize("limit", [4000, None])
def test_is_the_authors_update(limit):
    tx = fnopt.scale_by_kl_shampoo(
        0.9,
        0.8,
        precondition_frequency=EVERY,
        max_inverse_root=limit,
        weight_dimension_numbers=AXES,
    )

    def run(g):
        start = tx.init(jax.tree.map(lambda x: x[0], g))
        return jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], start, g)[1]

    expected = published(limit)
    with jax.enable_x64(True):
        g = {name: jnp.asarray(x, jnp.float64) for name, x in gradients().items()}
        ours = jax.tree.map(np.asarray, jax.jit(run)(g))
    assert not any(x[0].any() for x in ours.values())
    for name, x in ours.items():
        assert x.dtype == np.float64
        np.testing.assert_allclose(x, expected[name], rtol=1e-7, atol=1e-8, err_msg=name)
    other = published(None if limit else 4000)
    assert any(np.max(np.abs(other[name] - expected[name])) > 1e-3 for name in SHAPES)


def test_gradients_with_a_kronecker_covariance_are_whitened():
    """It is the fixed point that the divergence has: no grafting gives a step its length."""
    rng = np.random.default_rng(1)
    A, B = (
        np.linalg.qr(rng.standard_normal((n, n)))[0] * s
        for n, s in ((3, [3.0, 1.0, 0.2]), (4, [5.0, 1.0, 0.5, 0.1]))
    )
    G = jnp.asarray(A @ rng.standard_normal((2000, 3, 4)) @ B.T, jnp.float32)
    tx = fnopt.scale_by_kl_shampoo(0.0, 0.99, precondition_frequency=1)
    run = jax.jit(lambda G: jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], tx.init(G[0]), G)[1])
    u = np.asarray(run(G))[1000:].reshape(1000, 12)
    np.testing.assert_allclose(u.T @ u / 1000, np.eye(12), atol=0.2)


def test_what_is_stored():
    slots = fnopt.slots(fnopt.scale_by_kl_shampoo().init({"w": jnp.ones((6, 4))}))
    sizes = {k: sum(x.size for x in jax.tree.leaves(v)) for k, v in slots.items()}
    assert sizes == {"mu": 24, "factors": 16 + 36, "bases": 16 + 36, "values": 10}


def test_gradients_of_any_size_leave_everything_finite():
    tx = fnopt.scale_by_kl_shampoo(precondition_frequency=1, max_inverse_root=None)
    start, g = jax.jit(tx.init)(jnp.eye(3)), jnp.asarray([[2.0, 1, 0], [0, 1, 0], [0, 0, 0]])
    update = jax.jit(tx.update)

    def after(*gradients):
        state = start
        for x in gradients:
            updates, state = update(x, state)
        return updates, state

    for size in (0.0, 1e-24, 1e20):
        assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(after(*[size * g] * 3)))
    _, state = after(g, g.at[0, 1].set(jnp.nan), g * jnp.inf, g)
    kept = (state.factors, state.bases, state.values)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(kept))


def test_no_single_batch_throws_params_away():
    # The first eigenvalues that count are those of gradients of size 0.3, whatever they are.
    tx = fnopt.scale_by_kl_shampoo()
    g = np.random.default_rng(0).standard_normal((5, 3, 4)).astype(np.float32)

    @jax.jit
    def run(sizes):
        step = lambda s, g: tx.update({"w": g}, s)[::-1]  # noqa: E731
        return jax.lax.scan(step, tx.init({"w": g[0]}), sizes[:, None, None] * g)[1]["w"]

    for sizes in ([1e10] * 5, [1, 1, 1, 1e20, 1], [1, 1, 1, 1e30, 1]):
        updates = np.asarray(run(jnp.asarray(sizes, jnp.float32)))
        assert np.sqrt(np.mean(updates**2, (1, 2))).max() <= 10.001


def test_what_is_refused():
    for options in ({"max_inverse_root": 0}, {"precondition_frequency": 0}, {"initial_value": 0.0}):
        with pytest.raises(ValueError, match="scale_by_kl_shampoo"):
            fnopt.scale_by_kl_shampoo(**options)
