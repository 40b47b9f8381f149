"""Training loops with params on manifolds: exactness, the contract, checkpoints."""

from __future__ import annotations

import pickle

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest

import fnopt
from fnopt.manifolds import (
    SO3,
    Oblique,
    PositiveDefinite,
    Simplex,
    Stiefel,
    UnitVector,
    on,
    riemannian,
)

RNG = np.random.default_rng(2)
TARGETS = {
    "rotation": RNG.normal(size=(2, 3, 3)),
    "frame": RNG.normal(size=(5, 2)),
    "unit": RNG.normal(size=(3,)),
    "rows": RNG.normal(size=(2, 4)),
    "spd": np.diag([2.0, 0.5]),
    "simplex": np.asarray([0.7, 0.2, 0.1]),
    "bias": RNG.normal(size=(3,)),
}


def _params(dtype=jnp.float32):
    points = {
        "rotation": (SO3, np.stack([np.eye(3)] * 2)),
        "frame": (Stiefel, np.eye(5, 2)),
        "unit": (UnitVector, np.eye(3)[0]),
        "rows": (Oblique, np.ones((2, 4))),
        "spd": (PositiveDefinite, np.eye(2)),
        "simplex": (Simplex, np.full(3, 1 / 3)),
    }
    made = {name: on(m, jnp.asarray(x, dtype)) for name, (m, x) in points.items()}
    return made | {"bias": jnp.zeros(3, dtype)}


def _loss(params):
    targets = jax.tree.map(jnp.asarray, TARGETS)
    arrays = {name: getattr(p, "value", p) for name, p in params.items()}
    squares = [
        jnp.sum(jnp.square(arrays[k].astype(jnp.float32) - targets[k].astype(jnp.float32)))
        for k in arrays
    ]
    return sum(squares)


@jax.jit
def _run(tx, params, state, steps):
    def step(_, carry):
        params, state = carry
        updates, state = tx.update(jax.grad(_loss)(params), state, params)
        return fnopt.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, steps, step, (params, state))


def _away(params):
    return max(
        float(jnp.max(node.manifold.distance(node.value.astype(jnp.float32))))
        for node in params.values()
        if isinstance(node, on)
    )


@pytest.mark.parametrize(
    "tx", [fnopt.sgd(0.05, momentum=0.8), fnopt.adamw(0.02)], ids=["momentum", "adamw"]
)
def test_a_loop_ends_at_the_minimum_on_the_manifolds(tx):
    params = _params()
    tx = riemannian(tx)
    params, _ = _run(tx, params, tx.init(params), 400)
    assert _away(params) < 1e-6
    gradient = jax.jit(jax.grad(_loss))(params)
    slopes = jax.jit(
        lambda params, gradient: [
            node.manifold.gradient(node.value, gradient[name].value)
            for name, node in params.items()
            if name != "bias"
        ]
    )(params, gradient)
    assert max(float(jnp.max(jnp.abs(g))) for g in slopes) < 2e-2
    np.testing.assert_allclose(params["bias"], TARGETS["bias"], atol=2e-2)


@pytest.mark.usefixtures("x64")
def test_momentum_is_transported():
    # Absil, Mahony and Sepulchre (2008), section 8.1: project the momentum, add the gradient.
    x, m, target = np.eye(3)[0], np.zeros(3), np.asarray([-1.0, 2.0, 0.5])
    tx = riemannian(fnopt.sgd(0.1, momentum=0.9))
    params = on(UnitVector, x)
    state = tx.init(params)
    step = jax.jit(tx.update)
    for _ in range(5):
        updates, state = step(on._unflatten((UnitVector,), (jnp.asarray(target),)), state, params)
        params = fnopt.apply_updates(params, updates)
        m = 0.9 * (m - x * (x @ m)) + (target - x * (x @ target))
        v = -0.1 * m
        angle = np.linalg.norm(v)
        x = np.cos(angle) * x + np.sin(angle) / angle * v
        np.testing.assert_allclose(params.value, x, atol=1e-14)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_contract_of_optimizers(dtype):
    tx, params = riemannian(fnopt.adamw(0.02)), _params(dtype)
    state = tx.init(params)
    after, new_state = _run(tx, params, state, 1)
    assert jax.tree.structure(after) == jax.tree.structure(params)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    forms = [
        [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(t)]
        for t in (state, new_state, params, after)
    ]
    assert forms[0] == forms[1]
    assert forms[2] == forms[3]
    # Of bfloat16 the points round to 8 bits.
    assert _away(after) < (1e-6 if dtype == jnp.float32 else 2e-2)
    updates, _ = tx.update(jax.jit(jax.grad(_loss))(params), state, params)  # eager
    for a, b in zip(
        jax.tree.leaves(fnopt.apply_updates(params, updates)), jax.tree.leaves(after), strict=True
    ):
        np.testing.assert_allclose(
            np.asarray(a, float), np.asarray(b, float), atol=1e-6 if dtype == jnp.float32 else 1e-2
        )
    assert fnopt.slot_names(tx, params) == ("mu", "nu")


def test_params_and_states_are_saved_as_arrays_are(tmp_path):
    tx, params = riemannian(fnopt.adam(0.01)), _params()
    tree = {"params": params, "state": tx.init(params)}
    fnopt.interop.register_flax_points()
    for loaded in (
        pickle.loads(pickle.dumps(tree)),
        flax.serialization.from_bytes(tree, flax.serialization.to_bytes(tree)),
        _through_orbax(tmp_path, tree),
    ):
        assert jax.tree.structure(loaded) == jax.tree.structure(tree)
        jax.tree.map(np.testing.assert_array_equal, loaded, tree)
    assert params["rotation"] == pickle.loads(pickle.dumps(params["rotation"]))


def _through_orbax(path, tree):
    with orbax.checkpoint.StandardCheckpointer() as saver:
        saver.save(path / "tree", tree)
        saver.wait_until_finished()
        return saver.restore(path / "tree", jax.tree.map(jnp.zeros_like, tree))


def test_other_libraries_and_methods_that_read_functions_are_wrapped_too():
    params = {"u": on(UnitVector, jnp.asarray([0.6, 0.8, 0.0]))}
    target = jnp.asarray([1.0, 2.0, 2.0]) / 3

    def residuals(p):
        return p["u"].value - target

    def loss(p):
        return jnp.sum(residuals(p) ** 2)

    tx = riemannian(optax.sgd(0.3, momentum=0.1))
    lm = riemannian(fnopt.levenberg_marquardt())
    first, second = (params, tx.init(params)), (params, lm.init(params))

    @jax.jit
    def step(first, second):
        updates, state = tx.update(jax.grad(loss)(first[0]), first[1], first[0])
        first = fnopt.apply_updates(first[0], updates), state
        updates, state = lm.update(
            jax.grad(loss)(second[0]), second[1], second[0], residual_fn=residuals
        )
        return first, (fnopt.apply_updates(second[0], updates), state)

    for _ in range(30):
        first, second = step(first, second)
    np.testing.assert_allclose(first[0]["u"].value, target, atol=1e-4)
    np.testing.assert_allclose(second[0]["u"].value, target, atol=1e-6)


def test_learning_rates_are_swept_by_vmap():
    params = {"u": on(UnitVector, jnp.asarray([0.6, 0.8]))}

    def final(rate):
        tx = riemannian(fnopt.sgd(rate))
        updates, _ = tx.update({"u": params["u"]}, tx.init(params), params)
        return fnopt.apply_updates(params, updates)["u"].value

    ends = jax.vmap(final)(jnp.asarray([0.0, 1.0]))
    np.testing.assert_allclose(ends, [[0.6, 0.8]] * 2, atol=1e-6)  # a gradient along the normal
