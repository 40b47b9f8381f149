"""SOAP against its authors' update in float64, step by step and matrix by matrix."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt
from fnopt.programs import jaxprs

STEPS, EVERY = 18, 4
SHAPES = {"a": (4, 3), "b": (4, 3), "tall": (5, 4), "wide": (3, 4), "stack": (2, 3, 4)}
AXES = {name: fnopt.MatrixDimensionNumbers(-2, -1) for name in SHAPES}


# With sides that differ by more than one the first factor has several eigenvalues 0, whose
# eigenvectors are nobody's.


class Reference:
    """The published algorithm for one matrix: the moments are kept in the rotated axes."""

    def __init__(self, shape, b1, b2, eps, rotate):
        self.m, self.v, self.step = np.zeros(shape), np.zeros(shape), 0
        self.b1, self.b2, self.eps = b1, b2, eps
        self.GG = [np.zeros((n, n)) if yes else None for n, yes in zip(shape, rotate, strict=True)]
        self.Q = None

    def project(self, x, back=False):
        for axis, Q in enumerate(self.Q):
            if Q is not None:
                x = np.moveaxis(np.tensordot(x, Q.T if back else Q, ((axis,), (0,))), -1, axis)
        return x

    def update(self, g):
        if self.Q is None:  # the first step only makes the preconditioner
            self._precondition(g)
            return np.zeros_like(g)
        self.step += 1
        rotated = self.project(g)
        self.m = self.b1 * self.m + (1 - self.b1) * rotated
        self.v = self.b2 * self.v + (1 - self.b2) * rotated**2
        size = np.sqrt(1 - self.b2**self.step) / (1 - self.b1**self.step)
        u = size * self.project(self.m / (np.sqrt(self.v) + self.eps), back=True)
        self.m = self.project(self.m, back=True)
        self._precondition(g)
        self.m = self.project(self.m)
        return u

    def _precondition(self, g):
        for i, outer in enumerate((g @ g.T, g.T @ g)):
            if self.GG[i] is not None:
                self.GG[i] = self.b2 * self.GG[i] + (1 - self.b2) * outer
        if self.Q is None:
            eye = [None if m is None else 1e-30 * np.eye(len(m)) for m in self.GG]
            both = zip(self.GG, eye, strict=True)
            self.Q = [None if m is None else np.linalg.eigh(m + e)[1][:, ::-1] for m, e in both]
        elif self.step % EVERY == 0:
            for i, (m, q) in enumerate(zip(self.GG, self.Q, strict=True)):
                if m is not None:
                    order = np.argsort(-np.diag(q.T @ m @ q))
                    self.v = np.take(self.v, order, axis=i)
                    self.Q[i] = np.linalg.qr(m @ q[:, order])[0]


def matrices(shape, x):
    return [x] if len(shape) == 2 else list(x)


@functools.lru_cache
def gradients():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((STEPS, *shape)) for name, shape in SHAPES.items()}


def published(rotate, b1=0.9, b2=0.8, eps=1e-8):
    """The updates of every step; `rotate` says of a side whether it is rotated."""
    out = {}
    for name, shape in SHAPES.items():
        sides = [rotate(shape[-2:], i) for i in (0, 1)]
        one = [Reference(shape[-2:], b1, b2, eps, sides) for _ in matrices(shape, range(2))]
        steps = [
            [r.update(x) for r, x in zip(one, matrices(shape, g), strict=True)]
            for g in gradients()[name]
        ]
        out[name] = np.asarray(steps).reshape(STEPS, *shape)
    return out


def updates_of(tx, dtype):
    g = {name: jnp.asarray(x, dtype) for name, x in gradients().items()}

    def run(g):
        start = tx.init(jax.tree.map(lambda x: x[0], g))
        return jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], start, g)[1]

    return jax.tree.map(np.asarray, jax.jit(run)(g))


KINDS = {
    "both sides": ({}, lambda sides, i: True),
    "short sides": ({"max_precond_dim": 3}, lambda sides, i: sides[i] <= 3),
    "one-sided": ({"one_sided": True}, lambda sides, i: sides[i] < sides[1 - i]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_is_the_authors_update(kind):
    options, rotate = KINDS[kind]
    tx = fnopt.scale_by_soap(
        0.9, 0.8, precondition_frequency=EVERY, weight_dimension_numbers=AXES, **options
    )
    expected = published(rotate)
    with jax.enable_x64(True):
        wide = updates_of(tx, jnp.float64)
    for name, x in wide.items():
        assert x.dtype == np.float64
        np.testing.assert_allclose(x, expected[name], atol=1e-8, err_msg=name)
    if kind == "short sides":  # eigenvectors of nearly equal eigenvalues lose digits
        for name, x in updates_of(tx, jnp.float32).items():
            np.testing.assert_allclose(x, expected[name], atol=5e-3, err_msg=name)


def test_with_no_side_rotated_it_is_adam_one_step_late():
    tx, adam = fnopt.scale_by_soap(max_precond_dim=1), fnopt.scale_by_adam(0.95, 0.95)
    g = {"w": jnp.asarray(gradients()["a"], jnp.float32)}
    state = tx.init({"w": g["w"][0]})
    assert jax.tree.leaves((state.factors, state.bases)) == []
    ours = jax.lax.scan(lambda s, g: tx.update(g, s)[::-1], state, g)[1]["w"]
    start = adam.init({"w": g["w"][0]})
    theirs = jax.lax.scan(lambda s, g: adam.update(g, s)[::-1], start, {"w": g["w"][1:]})[1]["w"]
    np.testing.assert_allclose(ours[1:], theirs, atol=1e-4)
    assert not ours[0].any()


@pytest.mark.parametrize("make", [fnopt.scale_by_soap, fnopt.scale_by_kl_shampoo])
@pytest.mark.parametrize("magnitude", [1.0, 1e2, 1e4, 1e8])
def test_a_constant_gradient_of_rank_one_gives_steps_in_its_direction(make, magnitude):
    rng = np.random.default_rng(0)
    direction = np.einsum("ki,kj->kij", *(rng.standard_normal((200, n)) for n in (4, 3)))
    direction /= np.linalg.norm(direction, axis=(1, 2), keepdims=True)
    g = {"w": jnp.asarray(magnitude * direction, jnp.float32)}
    tx = make(weight_dimension_numbers=fnopt.MatrixDimensionNumbers(-2, -1))
    updates = jax.lax.scan(lambda s, _: tx.update(g, s)[::-1], tx.init(g), length=40)[1]["w"]
    length = np.sum(updates * direction, axis=(2, 3), keepdims=True)
    if make is fnopt.scale_by_soap:  # Adam's steps for a constant gradient have length 1
        np.testing.assert_allclose(length[1:], 1.0, rtol=1e-5)
    np.testing.assert_allclose(updates, length * direction, atol=1e-4)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("magnitude", [1.0, 1e2, 1e4])
def test_steps_for_constant_gradients_are_bounded(magnitude, rank, dtype):
    rng = np.random.default_rng(1)
    left, right = rng.standard_normal((200, 4, rank)), rng.standard_normal((200, rank, 3))
    g = {"w": jnp.asarray(magnitude * left @ right, jnp.float32)}
    axes = fnopt.MatrixDimensionNumbers(-2, -1)
    tx = fnopt.scale_by_soap(mu_dtype=dtype, weight_dimension_numbers=axes)
    updates = jax.lax.scan(lambda s, _: tx.update(g, s)[::-1], tx.init(g), length=40)[1]["w"]
    # With b1 = b2, the rotated entries are at most 1 by Jensen's inequality, as in Adam. Refreshes
    # change the bases of close eigenvalues, but not the bases of the moments.
    assert np.linalg.norm(updates, axis=(2, 3)).max() < 2 * np.sqrt(12)


def test_what_is_stored():
    state = fnopt.soap(0.1).init({"w": jnp.ones((6, 4)), "b": jnp.ones(3)})
    slots = fnopt.slots(state)
    sizes = {k: sum(x.size for x in jax.tree.leaves(v)) for k, v in slots.items()}
    own = {k.split("/")[-1]: n for k, n in sizes.items() if not k.startswith("adam")}
    assert own == {"mu": 24, "nu": 24, "factors": 16 + 36, "bases": 16 + 36}


@pytest.mark.parametrize("make", [fnopt.scale_by_soap, fnopt.scale_by_kl_shampoo])
def test_factorizations_are_inside_the_branch_of_a_refresh(make):
    g = {f"layer_{i}": jnp.ones((4, 3)) for i in range(24)}
    tx = make()
    jaxpr = jax.make_jaxpr(tx.update)(g, jax.eval_shape(tx.init, g)).jaxpr

    def names(jaxpr, inside=False):
        for eqn in jaxpr.eqns:
            yield eqn.primitive.name, inside
            for sub in jaxprs.sub_jaxprs(eqn):
                yield from names(sub.jaxpr, inside or eqn.primitive.name == "cond")

    found = [inside for name, inside in names(jaxpr) if name in ("eigh", "householder_product")]
    assert found
    assert all(found)
    assert len(found) <= 4  # of both sides, for all layers together


def test_a_gradient_that_is_not_finite_leaves_factors_and_bases():
    tx, g = fnopt.scale_by_soap(precondition_frequency=1), {"w": jnp.eye(3), "v": 2 * jnp.eye(3)}
    update = jax.jit(tx.update)
    _, state = update(g, tx.init(g))
    bad = {"w": g["w"].at[0, 1].set(jnp.nan), "v": g["v"] * 1e30}  # the square overflows
    _, after = update(bad, state)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves((after.factors, after.bases)))
    safe = fnopt.apply_if_finite(tx)
    state = safe.init(g)
    updates, after = jax.jit(safe.update)(bad, state)
    assert all((x == 0).all() for x in jax.tree.leaves(updates))
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, state.inner_state)


def test_complex_params_are_refused_by_name():
    with pytest.raises(TypeError, match="leaf 'w' is complex64, expected a real matrix"):
        fnopt.soap(0.1).init({"w": jnp.ones((2, 3), jnp.complex64)})
