"""Methods that can't stand in the table of comparisons: their peers need other trees or keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fnopt
from tests.optimizers.cases import cast, rate

STEPS = 20


def gradients(shapes, steps=STEPS):
    rng = np.random.default_rng(0)
    return {k: rng.standard_normal((steps, *shape)) for k, shape in shapes.items()}


def path(tx, params, noise, **extras):
    """The params after every step, in one program."""

    def body(carry, g):
        params, state = carry
        grads = jax.tree.map(lambda p, g: 0.5 * p + g, params, g)
        updates, state = tx.update(grads, state, params, **extras)
        params = jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates)
        return (params, state), params

    run = jax.jit(lambda p, g: jax.lax.scan(body, (p, tx.init(p)), g)[1])
    return jax.tree.map(np.asarray, run(params, noise))


def assert_same(ours, theirs, rtol):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def test_sm3_on_vectors_and_matrices():
    noise = gradients({"m": (4, 3), "v": (5,), "t": (2, 3, 2)})
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wide = cast(noise, jnp.float64)
        start = jax.tree.map(lambda g: g[0], wide)
        expected = path(optax.sm3(0.1), start, wide)
        assert_same(path(fnopt.sm3(0.1), start, wide), expected, 1e-9)
        narrow = cast(noise, jnp.float32)
        ours = path(fnopt.sm3(0.1), cast(start, jnp.float32), narrow)
        assert_same(ours, expected, 5e-5)


def test_layerwise_dog_on_what_is_no_scalar():
    noise = gradients({"m": (2, 3), "v": (5,)})
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wide = cast(noise, jnp.float64)
        start = jax.tree.map(lambda g: g[0], wide)
        theirs = optax.scale_by_distance_over_gradients(0.1, param_dtype=jnp.float64)
        expected = path(optax.chain(theirs, optax.sgd(1.0)), start, wide)
        ours = fnopt.chain(fnopt.scale_by_distance_over_gradients(0.1), fnopt.sgd(1.0))
        assert_same(path(ours, start, wide), expected, 1e-9)


def test_sophia_where_one_sample_knows_the_diagonal():
    """For a Hessian that is diagonal, every sample of signs gives all of it: keys don't matter."""
    noise = gradients({"a": (4,), "b": (2, 2)})

    def loss(p):
        return jnp.sum(jnp.cosh(p["a"])) + jnp.sum(p["b"] ** 4)

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wide = cast(noise, jnp.float64)
        start = jax.tree.map(lambda g: g[0], wide)
        make = lambda m, f: f(rate(m), gamma=0.5, update_interval=3)  # noqa: E731
        expected = path(make(optax, optax.contrib.sophia), start, wide, obj_fn=loss)
        assert_same(path(make(fnopt, fnopt.sophia), start, wide, obj_fn=loss), expected, 1e-9)


def test_lookahead_keeps_what_the_peer_has_in_its_params():
    noise = gradients({"a": (3,)})
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        wide = cast(noise, jnp.float64)
        start = jax.tree.map(lambda g: g[0], wide)
        for reset in (False, True):
            theirs = optax.lookahead(optax.adam(0.1), 4, 0.3, reset_state=reset)
            pair = optax.LookaheadParams.init_synced(start)

            def body(carry, g, theirs=theirs):
                pair, state = carry
                grads = jax.tree.map(lambda p, g: 0.5 * p + g, pair.fast, g)
                updates, state = theirs.update(grads, state, pair)
                pair = optax.apply_updates(pair, updates)
                return (pair, state), pair.fast

            expected = jax.lax.scan(body, (pair, theirs.init(pair)), wide)[1]
            tx = fnopt.chain(fnopt.lookahead(fnopt.adam(0.1), 4, 0.3, reset_state=reset))
            assert_same(path(tx, start, wide), expected, 1e-9)


def test_opaque_sam_hands_its_function_on():
    params, seen = {"w": jnp.asarray([1.0, 2.0])}, []
    adversary = fnopt.chain(fnopt.normalize_by_update_norm(eps=0.0), fnopt.sgd(0.5))
    tx = fnopt.chain(fnopt.sam(fnopt.sgd(1.0), adversary, 3, opaque_mode=True))

    def grad_fn(p, i):
        seen.append(i)
        return p

    updates, _ = tx.update(params, tx.init(params), params, grad_fn=grad_fn)
    length = np.sqrt(5.0)
    np.testing.assert_allclose(updates["w"], -(1 + 1 / length) * params["w"], rtol=1e-6)
    assert seen == [0, 1]
    with pytest.raises(TypeError, match="grad_fn"):
        tx.update(params, tx.init(params), params)


def test_estimates_survive_zero_gradients():
    """A first batch without gradients: nothing to estimate from, and nothing lost."""
    params = {"w": jnp.ones(2)}
    zero = {"w": jnp.zeros(2)}
    for tx in (fnopt.prodigy(), fnopt.dadapt_adamw(), fnopt.dog(), fnopt.dowg()):
        updates, state = jax.jit(tx.update)(zero, tx.init(params), params)
        assert all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves((updates, state)))
        assert not updates["w"].any()
