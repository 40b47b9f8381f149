"""GaLore: agreement with optax through refreshes, what is stored, what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnopt

SHAPES = {"tall": (6, 3), "tall_too": (6, 3), "wide": (3, 5), "square": (4, 4), "bias": (4,)}
STEPS = 20


def path(tx, dtype):
    rng = np.random.default_rng(0)
    noise = {k: jnp.asarray(rng.standard_normal((STEPS, *s)), dtype) for k, s in SHAPES.items()}
    params = jax.tree.map(lambda x: x[0], noise)

    def body(carry, g):
        params, state = carry
        updates, state = tx.update(g, state, params)
        params = jax.tree.map(lambda p, u: p + u.astype(p.dtype), params, updates)
        return (params, state), params

    run = jax.jit(lambda p, g: jax.lax.scan(body, (p, tx.init(p)), g)[1])
    return jax.tree.map(np.asarray, run(params, noise))


def test_twenty_steps_agree_with_optax():
    optax = pytest.importorskip("optax")
    options = {"rank": 2, "update_proj_gap": 6, "scale": 0.5, "weight_decay": 0.1}
    tx = fnopt.galore(0.1, **options)
    with jax.numpy_dtype_promotion("standard"):
        # The peer takes its singular vectors in float32, whatever the params are.
        expected = path(optax.contrib.galore(0.1, **options), jnp.float32)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=5e-5), path(tx, jnp.float32), expected
    )


def test_with_all_directions_nothing_is_lost():
    tx, rng = fnopt.scale_by_galore(8, 1, base_optimizer=fnopt.trace(0.0)), np.random.default_rng(1)
    g = {k: jnp.asarray(rng.standard_normal(shape), jnp.float32) for k, shape in SHAPES.items()}
    out, _ = jax.jit(tx.update)(g, tx.init(g))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), out, g)


def test_what_is_stored():
    numbers = fnopt.MatrixDimensionNumbers(1, 2)
    tx = fnopt.galore(0.1, 2, weight_dimension_numbers={"w": numbers, "b": None})
    slots = fnopt.slots(jax.eval_shape(tx.init, {"w": jnp.ones((3, 8, 4)), "b": jnp.ones(5)}))
    shapes = {k: jax.tree.map(lambda x: x.shape, v) for k, v in slots.items()}
    assert shapes["projector"] == {"w": ((3, 8, 2),), "b": ()}
    assert shapes["mu"] == {"w": ((3, 2, 4),), "b": ((5,),)}


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"contains .*add_decayed_weights, which reads the params"):
        fnopt.galore(0.1, base_optimizer=fnopt.adamw(0.1))
    with pytest.raises(ValueError, match="rank"):
        fnopt.galore(0.1, rank=0)
